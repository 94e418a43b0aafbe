"""Many runs of one feedback learner at once: one for each key and seed, released as live.

A run keeps what the engine keeps of a row, and goes through the same functions of the kind: draw,
fold, in force. Bits are at the same addresses (stream, partition, key, epoch, born, block) as in
the engine under that seed, so a run with a service's sums makes that service's releases, bit for
bit. `tests/test_offpolicy_fold.py` compares it with the engine.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - made-up requests: no secret

from streamdp.core.arrays import Columns, Ints
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.evidence import PublicRow
from streamdp.core.evidence.experiment import Arms, Experiment
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.lab.replay.cuts import EVERY_SEED, Bench, Rows


class Runs:
    """The public columns of R keys × S seeds of one learner."""

    __slots__ = ("_public", "_rows", "_sources", "_stream", "experiment", "learner", "watched")

    def __init__(self, learner: PolicyLearner, rows: Rows, bench: Bench, *, watched: int) -> None:
        self.learner = learner
        self._rows, self._sources, self._stream = rows, bench.randomness(), bench.stream
        self._public = {
            column.name: np.zeros((len(rows), len(bench.seeds), *column.shape), column.dtype)
            for column in learner.evidence.fields
        }  # the opening of a policy draws nothing
        self.watched = watched  # the key whose first seed is shown as an experiment
        self.experiment = experiment_of(learner)

    @classmethod
    def of(cls, learner: PolicyLearner, rows: Rows, bench: Bench, counts: Ints) -> Runs:
        """The runs of keys with these numbers of slots; the longest key is watched."""
        return cls(learner, rows, bench, watched=int(counts.argmax()))

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self._sources)

    def arms(self) -> Arms | None:
        """The watched key's first seed as its page shows it; None where arms are of many cells."""
        if isinstance(self.learner.rule, ContextModel):
            return None
        row = PublicRow(self.learner.evidence, self._columns(np.array([self.watched]), 0))
        return self.experiment.arms().by(row.likely_best())

    def policy(self, rows: Ints, blocks: Ints) -> Policy:
        """The policies in force during a block of each key, R × S × K parts of 2**24."""
        return self._in_force(rows, EVERY_SEED, blocks).reshape(len(rows), len(self._sources), -1)

    def policy_of_one(self, row: int, seed: int, block: int) -> Policy:
        """The policy of one key under one seed: K parts."""
        policy: Policy = self._in_force(np.array([row]), seed, np.array([block]))[0]
        return policy

    def close(self, rows: Ints, blocks: Ints, gains: Ints, shown: Ints) -> None:
        """End a block of each key with these sums (R × S × K, or R × 1 × K)."""
        shape = (len(rows), len(self._sources), len(self.learner.actions))
        gains, shown = np.broadcast_to(gains, shape), np.broadcast_to(shown, shape)
        released = [
            self._drawn(rows, seed, blocks, gains[:, seed], shown[:, seed])
            for seed in range(len(self._sources))
        ]
        self._fold(rows, EVERY_SEED, blocks, np.stack(released, axis=1))

    def close_one(self, row: int, seed: int, block: int, gains: Ints, shown: Ints) -> None:
        """End a block of one key under one seed, if runs go on at different speeds."""
        rows, blocks = np.array([row]), np.array([block])
        released = self._drawn(rows, seed, blocks, gains[None], shown[None])
        self._fold(rows, seed, blocks, released)

    def _drawn(self, rows: Ints, seed: int, blocks: Ints, gains: Ints, shown: Ints) -> Ints:
        """What the engine releases of these sums under one seed; the first seed is watched."""
        source, tags = self._sources[seed], self._rows.tags(rows, seed=seed)
        released = self.learner.draw(
            self.learner.releases[0].name,
            self.learner.totals(gains, shown),
            self._columns(rows, seed),
            lambda purpose: source.bits(self._stream, purpose, tags, blocks),
        )
        at = np.flatnonzero(rows == self.watched)
        if len(at) and not seed:
            self.experiment.add(released[at[0]])
        return released

    def _fold(self, rows: Ints, seed: int | slice, blocks: Ints, released: Ints) -> None:
        public, lengths = self._columns(rows, seed), self._lengths(blocks, seed)
        flat = released.reshape(len(lengths), -1)
        for name, column in self.learner.evidence.fold(public, flat, lengths).items():
            kept = self._public[name]
            kept[rows, seed] = column.reshape(kept[rows, seed].shape)

    def _in_force(self, rows: Ints, seed: int | slice, blocks: Ints) -> Policy:
        public, lengths = self._columns(rows, seed), self._lengths(blocks, seed)
        return self.learner.evidence.in_force(public, lengths)

    def _lengths(self, blocks: Ints, seed: int | slice) -> Ints:
        """The length of each run's block: all seeds of a key are in the same one."""
        seeds = len(self._sources) if isinstance(seed, slice) else 1
        return np.repeat(self.learner.schedule.lengths(blocks), seeds)

    def _columns(self, rows: Ints, seed: int | slice) -> Columns:
        """The public columns of some runs, a row each."""
        return {
            column.name: self._public[column.name][rows, seed].reshape(-1, *column.shape)
            for column in self.learner.evidence.fields
        }


def experiment_of(learner: PolicyLearner) -> Experiment:
    """An experiment without releases, of a learner that may have no noise."""
    scale = Fraction(0) if learner.sums_scale is None else learner.sums_scale / UNIT
    return Experiment.of(scale, pairs=learner.pairs, actions=learner.numbers)


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
