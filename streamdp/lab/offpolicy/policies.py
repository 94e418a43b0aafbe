"""Many runs of one feedback learner at once: one for each key and seed, released as live.

A run keeps what the engine keeps of a row: the history of released sums. Noise comes from the same
bits at the same addresses (stream, partition, key, epoch, born, block) as in the engine under that
seed, so a run with a service's sums makes that service's releases, bit for bit.
`tests/test_offpolicy_fold.py` compares it with the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - made-up requests: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.experiment import Experiment, Scales
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.noise import discrete_laplaces
from streamdp.core.randomness import Purpose
from streamdp.lab.replay.cuts import Bench, Rows


@dataclass(frozen=True, slots=True)
class Released:
    """The releases of some runs at the end of one block: R × seeds × K each."""

    gains: Ints
    shown: Ints


class Runs:
    """The histories of R keys × S seeds of one learner."""

    __slots__ = ("_rows", "_sources", "_stream", "experiment", "learner", "state", "watched")

    def __init__(self, learner: PolicyLearner, rows: Rows, bench: Bench, *, watched: int) -> None:
        self.learner = learner
        self._rows, self._sources, self._stream = rows, bench.randomness(), bench.stream
        kept = learner.nothing_known(len(rows) * len(bench.seeds))
        self.state: Floats = kept.reshape(len(rows), len(bench.seeds), *kept.shape[1:])
        self.watched = watched  # the key whose first seed is shown as an experiment
        self.experiment = Experiment.of(scales(learner), actions=len(learner.actions))

    @classmethod
    def of(cls, learner: PolicyLearner, rows: Rows, bench: Bench, counts: Ints) -> Runs:
        """The runs of keys with these numbers of slots; the longest key is watched."""
        return cls(learner, rows, bench, watched=int(counts.argmax()))

    def policy(self, rows: Ints, blocks: Ints) -> Policy:
        """The policies in force during a block of each key, R × S × K parts of 2**24."""
        state = self.state[rows]
        flat = state.reshape(-1, *state.shape[2:])
        policy = self.learner.policy(flat, np.repeat(blocks, state.shape[1]))
        return policy.reshape(*state.shape[:2], -1)

    def policy_of_one(self, row: int, seed: int, block: int) -> Policy:
        """The policy of one key under one seed: K parts."""
        policy: Policy = self.learner.policy(self.state[row, seed][None], np.array([block]))[0]
        return policy

    def close(self, rows: Ints, blocks: Ints, gains: Ints, shown: Ints) -> None:
        """End a block of each key with these sums (R × S × K, or R × 1 × K)."""
        released = self._released(rows, blocks, gains, shown)
        flat = (len(rows) * self.state.shape[1], -1)
        state = self.state[rows]
        self.state[rows] = self.learner.learned(
            state.reshape(flat[0], *state.shape[2:]),
            released.gains.reshape(flat),
            released.shown.reshape(flat),
        ).reshape(state.shape)
        at = np.flatnonzero(rows == self.watched)
        if len(at):
            self.experiment.add(released.gains[at[0], 0], released.shown[at[0], 0])

    def close_one(self, row: int, seed: int, block: int, gains: Ints, shown: Ints) -> None:
        """End a block of one key under one seed, if runs go on at different speeds."""
        at, ended = np.array([row]), np.array([block])
        noisy, counts = self._noisy(at, seed, ended, gains[None], shown[None])
        state = self.state[row, seed][None]
        self.state[row, seed] = self.learner.learned(state, noisy, counts)[0]
        if row == self.watched and seed == 0:
            self.experiment.add(noisy[0], counts[0])

    def _released(self, rows: Ints, blocks: Ints, gains: Ints, shown: Ints) -> Released:
        shape = (len(rows), len(self._sources), len(self.learner.actions))
        noisy, counts = np.broadcast_to(gains, shape).copy(), np.broadcast_to(shown, shape).copy()
        for seed in range(len(self._sources)):
            noisy[:, seed], counts[:, seed] = self._noisy(
                rows, seed, blocks, noisy[:, seed], counts[:, seed]
            )
        return Released(noisy, counts)

    def _noisy(
        self, rows: Ints, seed: int, blocks: Ints, gains: Ints, shown: Ints
    ) -> tuple[Ints, Ints]:
        """Sums and counts with the noise that the engine draws under one seed."""
        learner, arms = self.learner, gains.shape[1]
        tags = self._rows.tags(rows, seed=seed)
        bits = self._sources[seed].bits(self._stream, Purpose.NOISE, tags, blocks)
        if learner.sums_scale is not None:
            gains = gains + discrete_laplaces(learner.sums_scale, bits, arms)
        if learner.counts_scale is not None:
            shown = shown + discrete_laplaces(learner.counts_scale, bits, arms, position=2 * arms)
        return gains, shown


def scales(learner: PolicyLearner) -> Scales:
    """The scale of the noise in a learner's releases, in losses and in shows."""
    on_sums = Fraction(0) if learner.sums_scale is None else learner.sums_scale / UNIT
    return Scales(on_sums, learner.counts_scale or Fraction(0))


def drawn(policies: Policy, which: Ints, coins: Ints) -> Ints:
    """The arm that each coin draws from one of some policies; coins are uniform in [0, 2**24).

    >>> halves = np.array([[PARTS // 2, PARTS // 2], [0, PARTS]], dtype=np.uint32)
    >>> drawn(halves, np.array([0, 0, 1]), np.array([0, PARTS // 2, 0])).tolist()
    [0, 1, 1]
    """
    arms = policies.shape[1]
    upto = np.cumsum(policies, axis=1, dtype=np.int64)
    upto += PARTS * np.arange(len(policies))[:, None]
    places = np.searchsorted(upto.ravel(), coins + PARTS * which, side="right")
    drawn_arms: Ints = places - which * arms
    return drawn_arms


def coins_of(bench: Bench) -> list[Generator]:
    """Each seed's random generator for the draws of requests."""
    return [default_rng((int(seed < 0), abs(seed))) for seed in bench.seeds]
