"""The losses of simulated bandits: made up, so their regret is exact.

With independent rewards regret is Σ over slots of (the yardstick's mean − the mean of the arm
played); with a table that an adversary wrote it is loss − the loss of the best fixed arm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
from numpy.random import Generator  # noqa: TID251 - losses are made up: no secret

from streamdp.core.arrays import Floats, Ints

Yardstick = Literal["moment", "fixed"]
"""What regret is measured against: the best arm of each moment, or the best fixed arm."""


class Losses(Protocol):
    """The losses of one run; slots are numbered from 0."""

    @property
    def arms(self) -> int:
        """The number of arms."""
        ...

    def loss(self, arm: int, slots: Ints, generator: Generator) -> float:
        """The arm's total loss at these slots; each slot may be asked for only once."""
        ...


class BanditWorld(Losses, Protocol):
    """The losses of many runs, and their regret."""

    def losses(self, arms: Ints, first: int, stop: int, generator: Generator) -> Floats:
        """The losses of some runs in the slots [first, stop), each run playing its own arm."""
        ...

    def cost(self, arms: Ints, first: int, stop: int) -> Floats:
        """The cost of some runs in the slots [first, stop), each run playing its own arm."""
        ...

    def least(self, marks: Sequence[int]) -> Floats:
        """The yardstick's loss over the first slots; regret is the rest."""
        ...

    def regret(self, played: Ints, marks: Sequence[int]) -> Floats:
        """The regret of one run after each of the given numbers of slots."""
        ...


@dataclass(frozen=True, slots=True)
class IndependentRewards:
    """Independent rewards whose means may change at known slots: equal stretches of a horizon.

    >>> IndependentRewards.steady((0.5, 0.4)).regret(np.array([0, 1, 1]), [1, 3]).round(2).tolist()
    [0.0, 0.2]
    """

    stretches: tuple[tuple[float, ...], ...]
    horizon: int = 1
    concentration: float | None = None  # of beta rewards; None: 0 or 1
    yardstick: Yardstick = "moment"

    @classmethod
    def steady(cls, means: Sequence[float]) -> IndependentRewards:
        """Rewards of 0 or 1 whose means never change."""
        return cls((tuple(means),))

    @property
    def arms(self) -> int:
        """The number of arms."""
        return len(self.stretches[0])

    def loss(self, arm: int, slots: Ints, generator: Generator) -> float:
        """Binomial draws, or beta draws one by one."""
        means = np.array(self.stretches)[:, arm]
        counts = np.bincount(self._stretch(slots), minlength=len(means))
        if self.concentration is None:
            return float(generator.binomial(counts, 1 - means).sum())
        pseudocounts = np.repeat(1 - means, counts) * self.concentration
        return float(generator.beta(pseudocounts, self.concentration - pseudocounts).sum())

    def losses(self, arms: Ints, first: int, stop: int, generator: Generator) -> Floats:
        """One arm's losses for each run."""
        total = np.zeros(len(arms))
        for at, count in self._counts(first, stop):
            mean = 1 - np.array(self.stretches[at])[arms]
            if self.concentration is None:
                total += generator.binomial(count, mean)
            else:
                alpha = mean * self.concentration
                beta = self.concentration - alpha
                total += generator.beta(alpha, beta, size=(count, len(arms))).sum(axis=0)
        return total

    def cost(self, arms: Ints, first: int, stop: int) -> Floats:
        """The gap of each slot."""
        gaps = gaps_of(self.stretches, self.yardstick)
        total = np.zeros(len(arms))
        for at, count in self._counts(first, stop):
            total += count * gaps[at][arms]
        return total

    def least(self, marks: Sequence[int]) -> Floats:
        """0: `cost` sums gaps, which are regret already."""
        return np.zeros(len(marks))

    def regret(self, played: Ints, marks: Sequence[int]) -> Floats:
        """Against the best mean of each moment, or of the whole horizon."""
        gaps = gaps_of(self.stretches, self.yardstick)
        own = gaps[self._stretch(np.arange(len(played))), played]
        regret: Floats = np.cumsum(own)[np.asarray(marks) - 1]
        return regret

    def _counts(self, first: int, stop: int) -> list[tuple[int, int]]:
        """The stretches of the slots [first, stop), and how many of these lie in each."""
        if len(self.stretches) == 1:
            return [(0, stop - first)]
        counts = np.bincount(self._stretch(np.arange(first, stop)))
        return [(at, count) for at, count in enumerate(counts.tolist()) if count]

    def _stretch(self, slots: Ints) -> Ints:
        count = len(self.stretches)
        if count == 1:
            return np.zeros(len(slots), dtype=np.int64)
        borders = np.array([self.horizon * at // count for at in range(1, count)])
        stretch: Ints = np.searchsorted(borders, slots, side="right")
        return stretch


@lru_cache
def gaps_of(stretches: tuple[tuple[float, ...], ...], yardstick: Yardstick) -> Floats:
    """The loss of each arm per slot above the yardstick, by stretch.

    >>> gaps_of(((1.0, 0.0), (0.5, 0.75)), "moment").tolist()
    [[0.0, 1.0], [0.25, 0.0]]
    >>> gaps_of(((1.0, 0.0), (0.5, 0.75)), "fixed").tolist()
    [[0.0, 1.0], [0.0, -0.25]]
    """
    means = np.array(stretches, dtype=np.float64)
    fixed = means[:, [int(means.sum(axis=0).argmax())]]
    gaps: Floats = (means.max(axis=1, keepdims=True) if yardstick == "moment" else fixed) - means
    return gaps


@dataclass(frozen=True, slots=True)
class WrittenLosses:
    """Losses that an adversary has written down beforehand: slots × arms."""

    written: Floats

    @property
    def arms(self) -> int:
        """The number of arms."""
        return len(self.written[0])

    def loss(self, arm: int, slots: Ints, generator: Generator) -> float:
        """The sum of the table's entries."""
        return float(self.written[slots, arm].sum())

    def losses(self, arms: Ints, first: int, stop: int, generator: Generator) -> Floats:
        """One arm's losses for each run."""
        sums: Floats = self.written[first:stop].sum(axis=0)[arms]
        return sums

    def cost(self, arms: Ints, first: int, stop: int) -> Floats:
        """The losses themselves."""
        sums: Floats = self.written[first:stop].sum(axis=0)[arms]
        return sums

    def least(self, marks: Sequence[int]) -> Floats:
        """The loss of the best fixed arm over the first slots."""
        totals: Floats = np.cumsum(self.written, axis=0)[np.asarray(marks) - 1].min(axis=1)
        return totals

    def regret(self, played: Ints, marks: Sequence[int]) -> Floats:
        """Regret against the best fixed arm over the first slots."""
        own = np.cumsum(self.written[np.arange(len(played)), played])
        regret: Floats = own[np.asarray(marks) - 1] - self.least(marks)
        return regret
