"""What keys of a feedback stream gain by learning from each other, beside the same keys alone.

As in `crowds`, blocks are played, not slots: in each phase of the world the shows of a block's arms
are multinomial under the policy in force, losses are binomial, noise is Laplace, and regret is that
of the mean losses. A block's outcomes are known when it ends. Learners, policies and priors are the
shipped ones, and priors are made where the engine makes them: after the release with which they are
due, in the order in which the keys' blocks end. Both plays take each block's random draws from the
same seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.random import default_rng  # noqa: TID251 - losses are made up: no secret

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.events import CrowdPrior
from streamdp.core.evidence.crowd import due
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.learners.feedback.learner import pooling
from streamdp.lab.replay.crowd_worlds import BESIDE, STAGGERED, Kind, World
from streamdp.lab.replay.crowds import CrowdOutcome, Size, in_turns, outcomes

KINDS = tuple(kind for kind in (*STAGGERED, *BESIDE) if kind.grouped == "never")
"""Kinds without groups: a feedback stream has none."""

_OPENS = -1


def simulate_feedback_crowds(
    learner: Callable[[Fraction, Sequence[str]], PolicyLearner],
    epsilons: Sequence[Fraction],
    *,
    kinds: Sequence[Kind] = KINDS,
    size: Size,
    progress: Callable[[Kind], None] = lambda kind: None,
) -> Iterator[CrowdOutcome]:
    """Every kind at every ε."""

    def regrets(world: World, alone: PolicyLearner, seeds: tuple[int, ...]) -> list[Floats]:
        return [_Play.of(world, one, seeds).regret() for one in (alone, pooling(alone))]

    return outcomes(learner, epsilons, regrets, kinds=kinds, size=size, progress=progress)


@dataclass(slots=True)
class _Play:
    """One learner for each key of a world, and the state of their crowd."""

    world: World
    learner: PolicyLearner
    seeds: tuple[int, ...]
    stops: Ints  # slots after which each block ends
    state: Floats  # N × 2 × K
    policy: Floats  # N × K
    lost: Floats  # N
    borders: Ints  # the slots that each key has had when each phase ends
    scales: tuple[float | None, ...]  # of the noise of gains, in losses, and of counts
    priors: dict[int, CrowdPrior] = field(default_factory=dict)
    released: int = 0

    @classmethod
    def of(cls, world: World, learner: PolicyLearner, seeds: tuple[int, ...]) -> _Play:
        """Before anything happens."""
        blocks = np.arange(learner.schedule.block_of(int(world.slots.max())) + 1)
        priors = {} if learner.crowd is None else {0: learner.crowd.nothing}
        scales = ((learner.sums_scale, UNIT), (learner.counts_scale, 1))
        return cls(
            world, learner, seeds, np.cumsum(learner.schedule.lengths(blocks)),
            learner.nothing_known(len(world.slots)), np.zeros(world.means.shape[1:]),
            np.zeros(len(world.slots)), world.borders,
            tuple(None if scale is None else float(scale / unit) for scale, unit in scales), priors,
        )  # fmt: skip

    def regret(self) -> Floats:
        """The loss of each key above its best action."""
        keys, blocks = self._events()
        first = 0
        while first < len(keys):
            stop = self._under_one_prior(keys[first:], blocks[first:]) + first
            for now in in_turns(keys[first:stop]):
                self._play(keys[first:stop][now], blocks[first:stop][now])
            self._make_prior()
            first = stop
        return self.lost

    def _events(self) -> tuple[Ints, Ints]:
        """Keys as they open and as their blocks end, or break off, in the order of time."""
        world, keys = self.world, np.arange(len(self.lost))
        begins = np.concatenate([[0], self.stops[:-1]])
        key, block = np.nonzero(begins[None, :] < world.slots[:, None])
        slots = np.minimum(self.stops[block], world.slots[key])
        when = np.append(world.starts, world.starts[key] + slots / world.pace[key])
        key, block = np.append(keys, key), np.append(np.full(len(keys), _OPENS), block)
        order = np.lexsort((block, key, when))
        return key[order], block[order]

    def _under_one_prior(self, keys: Ints, blocks: Ints) -> int:
        """How many of the next events come before another prior is made."""
        if not self.priors:
            return len(keys)
        ends = np.cumsum(self._whole(keys, blocks))
        wanted = due(self.priors[len(self.priors) - 1].after) - self.released
        return min(len(keys), int(np.searchsorted(ends, wanted)) + 1)

    def _whole(self, keys: Ints, blocks: Ints) -> Bools:
        """Which of these events are the ends of whole blocks."""
        return np.asarray((blocks >= 0) & (self.stops[blocks] <= self.world.slots[keys]))

    def _play(self, keys: Ints, blocks: Ints) -> None:
        """Play events of different keys under one prior."""
        arms = self.policy.shape[1]
        gains, shown = np.zeros((len(keys), arms)), np.zeros((len(keys), arms))
        for at in np.flatnonzero(blocks >= 0).tolist():
            gains[at], shown[at] = self._block(int(keys[at]), int(blocks[at]))
        whole, opens = self._whole(keys, blocks), blocks == _OPENS
        rows, moves = keys[whole], whole | opens
        units = np.rint(gains[whole] * UNIT).astype(np.int64)
        counts = np.rint(shown[whole]).astype(np.int64)
        self.state[rows] = self.learner.learned(self.state[rows], units, counts)
        newest = self.priors[len(self.priors) - 1] if self.priors else None
        if moves.any():
            now, after = keys[moves], blocks[moves] + 1
            self.policy[now] = self.learner.policy(self.state[now], after, newest) / PARTS
        self.released += len(rows)

    def _block(self, key: int, block: int) -> tuple[Floats, Floats]:
        """One block's noisy sums and counts; its charge is noted."""
        chance = default_rng((*self.seeds, key, block))
        begin, stop = (int(self.stops[at]) if at >= 0 else 0 for at in (block - 1, block))
        arms, before = self.policy.shape[1], 0
        gains, shown = np.zeros(arms), np.zeros(arms)
        for phase, border in enumerate(self.borders[:, key].tolist()):
            slots = max(0, min(stop, border) - max(begin, before))
            means = self.world.means[phase, key]
            counts = chance.multinomial(slots, self.policy[key])
            self.lost[key] += float(counts @ (means - means.min()))
            gains += counts / 2 - chance.binomial(counts, means)
            shown, before = shown + counts, border
        for numbers, scale in zip((gains, shown), self.scales, strict=True):
            if scale is not None:
                numbers += chance.laplace(0, scale, arms)
        return gains, shown

    def _make_prior(self) -> None:
        crowd = self.learner.crowd
        if crowd is None or self.released < due(self.priors[len(self.priors) - 1].after):
            return
        kept = np.zeros((len(self.lost), crowd.width), dtype=np.int64)
        kept[:, :-1] = self.state.reshape(len(self.lost), -1).view(np.int64)
        made = crowd.made_from(kept, self.priors, after=self.released)
        self.priors[made.number] = made
