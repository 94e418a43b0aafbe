"""What was earned beside showing all actions alike, and beside always showing one: public, at no ε.

A block of n shows that showed action a n_a times, and released the noisy sum S_a of its rewards,
says that always showing a would have earned n·S_a/n_a in it; showing all of K alike would have
earned Σ_a n/K·S_a/n_a. These add up over blocks. Divided by the blocks' shows the sum is what a
show would have earned *in these blocks*. What keeps it honest:

*Nothing has to stand still.* What an action earns may change from block to block, of all actions
together or of each by itself. The number is about the blocks that count, and what was earned is
compared in the same ones.

*A block weighs as much as it has shows.* Its policy was fixed before it began, and how often it
showed an action says nothing of its rewards. So a block's term less the truth has the mean 0,
whatever was before. If precise blocks weighed more, those before an action fell out of favour would
weigh more the unluckier it was in them: over many actions such a lift is too large by most of the
half-width of its interval. (How many blocks count is not fixed beforehand either, and what that
does stays below .05 half-widths: `tests/bench/bench_lift.py` measures it.)

*Which blocks count follows from counts.* A policy that has made up its mind shows the others a few
times in a block, and there the noise is larger than any reward. So blocks are put into classes by
the noise of a show, in proportion to Σ π_a²·n/n_a² for shares π; a block that never showed an
action with a share is left out. Of the sets "this class and all with less noise" the largest one
counts whose interval is at most `_WIDER` times as wide as the narrowest.

*Intervals hold with few rewards, too.* A mean m has the variance P·m(1 − m) + Q, with P from shows
and Q from noise; the interval has each m that is within so many of its own deviations of the
estimate (Wilson 1927, with noise beside).

An interval may be so wide that it says nothing, and is given nevertheless. An action is shown the
more, the luckier it was: what is said only where it is narrow would be too large in the mean. (So
it would be if means were cut off at 0, below which noise may take them.) More shows of all actions
narrow it, by a larger `floor` or in a second stream (docs/feedback.md).

*With contexts* (`Lift.of_tables`) each entry of a block's table is a block by itself. What was
shown there is a sample of all the entry's events, if the policy was alike in its cells; if it was
not (`_ALIKE`), the block says nothing of other shares.

Counts have to be exact: with noisy ones S/n would be biased, block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from streamdp.core.arrays import Bools, Floats
from streamdp.core.evidence.block_tables import BlockTables
from streamdp.core.evidence.context_value import MISSES, RewardInterval, tails

_WIDER = 1.5  # the most that an interval is widened by blocks that it could do without
_OCTAVES = 3  # of noise, in a class of blocks
_ALIKE = 0.01  # by this part a policy may differ in the cells of an entry: so may a mean, at most


class Beside(NamedTuple):
    """What other shares would have earned, in the shows that say something of it."""

    reward: RewardInterval
    more: RewardInterval  # that was earned in the same shows
    blocks: int
    shows: int


class Earned(NamedTuple):
    """What a show earned, and would have with other shares. None: no block says anything of it."""

    reward: RewardInterval
    blocks: int
    shows: int
    alike: Beside | None  # beside all actions alike that might be shown
    always: tuple[Beside | None, ...]  # beside each action; these intervals hold all at once


@dataclass(slots=True)
class Lift:
    """The sums of a key's blocks, by class: of each action, and then of all of them alike.

    >>> lift = Lift(2)
    >>> lift.add(np.array([[-200.0, -40.0]]), np.array([[500.0, 500.0]]), noise=2.0)
    >>> found = lift.earned()
    >>> round(found.reward.mean, 3), [round(of.reward.mean, 3) for of in found.always]
    (0.26, [0.1, 0.42])
    """

    actions: int
    _classes: dict[int, Floats] = field(default_factory=dict, repr=False)  # (K + 1) × 8 numbers
    _all: Floats = field(default_factory=lambda: np.zeros(4), repr=False)

    @classmethod
    def of_tables(cls, tables: BlockTables, allowed: Sequence[Bools | None]) -> Lift:
        """That of blocks with contexts and exact counts, and of what each might show."""
        lift = cls(tables.shown.shape[2])
        for of, mask in zip(tables.each(), allowed, strict=True):
            might = np.ones(lift.actions, dtype=np.bool_) if mask is None else mask
            might = np.tile(might & (of.apart[0] <= _ALIKE), (of.shown.shape[1], 1))
            lift.add(
                of.gains[0], of.shown[0], noise=of.noise.on_sums, allowed=might, parts=len(might)
            )
        return lift

    def add(
        self,
        gains: Floats,
        shown: Floats,
        *,
        noise: float,
        allowed: Bools | None = None,
        parts: int = 1,
    ) -> None:
        """Add blocks of gains (rewards less 1/2) and shows, B × K, and what they might show.

        `noise` is its variance in each of the gains. With `parts` so many rows are a block.
        """
        might = np.ones(shown.shape, dtype=np.bool_) if allowed is None else allowed
        shows, rewards = shown.sum(axis=1, keepdims=True), gains + shown / 2
        earned, known = rewards.sum(axis=1, keepdims=True), np.maximum(shown, 1.0)
        there = shown > 0  # the sum of what was never shown is noise alone
        self._all += [
            len(shown) / parts, shows.sum(), rewards[there].sum(), noise * np.count_nonzero(there)
        ]  # fmt: skip
        told = might & there
        counts = np.column_stack([told, (told | ~might).all(axis=1) & told.any(axis=1)])
        one = shows / known  # what each reward of an action counts in place of all shows
        alike = one * might / np.maximum(might.sum(axis=1, keepdims=True), 1)

        def each(of_one: Floats, of_alike: Floats) -> Floats:
            return np.column_stack([of_one, of_alike.sum(axis=1)])

        numbers = np.stack(
            [
                np.full(counts.shape, 1 / parts),
                np.broadcast_to(shows, counts.shape),
                np.broadcast_to(earned, counts.shape),
                each(one * rewards, alike * rewards),
                each(one * shows, alike**2 * shown),
                noise * each(one**2, alike**2),
                each(one * (shows - shown), (1 - alike) ** 2 * shown),
                noise * each(self.actions - 1 + (1 - one) ** 2, (1 - alike) ** 2),
            ],
            axis=2,
        )
        classes = np.frexp(each(one / known, alike**2 / np.maximum(shows, 1.0)))[1] // _OCTAVES
        for number in np.unique(classes[counts]).tolist():
            here = counts & (classes == number)
            before = self._classes.get(number, 0.0)
            self._classes[number] = before + (numbers * here[:, :, None]).sum(axis=0)

    def joined(self, other: Lift) -> Lift:
        """That of all blocks of both, which are of the same actions."""
        classes = dict(self._classes)
        for number, sums in other._classes.items():
            classes[number] = classes.get(number, 0.0) + sums
        return Lift(self.actions, classes, self._all + other._all)

    def earned(self) -> Earned | None:
        """What there is to say; None before any show."""
        blocks, shows, total, noise = self._all.tolist()
        if shows <= 0:
            return None
        level = _within(total / shows, 1 / shows, noise / shows**2, among=1)
        *always, alike = (
            self._beside(at, _variance(level.mean), among=1 if at == self.actions else self.actions)
            for at in range(self.actions + 1)
        )
        return Earned(level, round(blocks), int(shows), alike, tuple(always))

    def _beside(self, at: int, variance: float, *, among: int) -> Beside | None:
        """The largest set of blocks whose interval is not much wider than the narrowest one."""
        sums = [of[at] for _, of in sorted(self._classes.items()) if of[at, 1] > 0]
        if not sums:
            return None
        sets, reach = np.array(sums).cumsum(axis=0), _reach(among)
        # of all that was earned: an estimate that fell low must not look the surer for it
        noise = tails(among, reach) * sets[:, 5]
        off = reach * np.sqrt(variance * sets[:, 4] + noise) / sets[:, 1]
        last = np.flatnonzero(off <= _WIDER * off.min())[-1]
        blocks, shows, earned, would, p, q, p_more, q_more = sets[last].tolist()
        reward = _within(would / shows, p / shows**2, q / shows**2, among=among)
        more, variance = (earned - would) / shows, max(variance, _variance(reward.mean))
        wide = reach * sqrt(variance * p_more + tails(among, reach) * q_more) / shows
        low, high = max(more - wide, -1.0), min(more + wide, 1.0)
        return Beside(reward, RewardInterval(more, low, high), round(blocks), int(shows))


def _variance(mean: float) -> float:
    """That of a reward which is 0 or 1, whose mean has noise."""
    rate = min(max(mean, 0.0), 1.0)
    return rate * (1.0 - rate)


def _reach(among: int) -> float:
    """How many deviations the intervals of so many means reach, to hold all at once."""
    return NormalDist().inv_cdf(1 - MISSES / (2 * among))


def _within(mean: float, p: float, q: float, *, among: int) -> RewardInterval:
    """Each m that is at most so many deviations (P·m(1 − m) + Q)^½ away.

    >>> round(_within(0.0, 1 / 100, 0.0, among=1).high, 3)
    0.037
    """
    z = _reach(among) ** 2
    noise = z * tails(among, sqrt(z)) * q
    wide, middle = 1 + z * p, mean + z * p / 2
    root = sqrt(max(middle * middle - wide * (mean * mean - noise), 0.0))
    ends = ((middle - root) / wide, (middle + root) / wide)
    return RewardInterval(mean, *(min(max(end, 0.0), 1.0) for end in ends))
