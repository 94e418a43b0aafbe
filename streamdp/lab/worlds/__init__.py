"""Made-up worlds as values: the mean loss of each action, when it changes, and the law of losses.

A world is a list of phases. Within a phase slots are independent and alike; phases begin at shares
of the horizon, so a world means the same at every length. Losses are 0 or 1 and independent over
actions, or of beta laws; a world with `outcomes` has one of a few loss vectors in each slot, so its
losses are correlated and not binary (with one outcome they are constant: the deterministic setting
of Wu & Wang 2026, §4). A click is a loss of 0, so clicks of 2 % are mean losses of .98.

Sums over slots are drawn at once, with exactly the distribution of summing draws slot by slot; of
beta laws up to 64 one by one, above that by the normal law of their sum. Generators are numpy's:
what is made up is no secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.random import Generator  # noqa: TID251 - losses are made up: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.core.grid import UNIT
from streamdp.lab.worlds.binomials import binomials

Means = tuple[float, ...]

Yardstick = Literal["moment", "fixed"]
"""What regret is measured against: the best action of each moment, or the best fixed action."""

CONCENTRATION = 4.0
"""Of beta losses: their variance is m(1 − m)/5."""

_ONE_BY_ONE = 64


@dataclass(frozen=True)
class World:
    """The mean loss of each action, phase by phase."""

    name: str
    means: Means  # of the first phase; with outcomes: the probability of each
    later: tuple[tuple[float, Means], ...] = ()  # share of the horizon at its start, and means
    outcomes: tuple[Means, ...] = ()  # the loss vectors, one of which is each slot's
    concentration: float | None = None  # of beta losses; None: 0 or 1
    late: float = 0.0  # the share of feedback that comes with the next block's
    yardstick: Yardstick = "moment"
    courses: tuple[World, ...] = ()  # the same world drawn anew: each run is in the next of them

    @classmethod
    def of_rewards(
        cls,
        name: str,
        *stretches: Sequence[float],
        concentration: float | None = None,
        late: float = 0.0,
        yardstick: Yardstick = "moment",
    ) -> World:
        """A world of mean rewards that change between equal stretches of the horizon.

        >>> World.of_rewards("clicks", (0.05, 0.02), (0.02, 0.05)).later
        ((0.5, (0.98, 0.95)),)
        """
        phases = [tuple(round(1 - reward, 12) for reward in rewards) for rewards in stretches]
        later = tuple((at / len(phases), means) for at, means in enumerate(phases) if at)
        return cls(name, phases[0], later, (), concentration, late, yardstick)

    @cached_property
    def chances(self) -> Floats:
        """The mean loss of each action in each phase; with outcomes the probability of each."""
        return np.array([self.means, *(later for _, later in self.later)])

    @cached_property
    def table(self) -> Floats:
        """The mean loss of each action in each phase."""
        return self.chances @ np.array(self.outcomes) if self.outcomes else self.chances

    @cached_property
    def _units(self) -> Ints:
        """The loss vectors on the grid: outcomes × K."""
        return np.asarray(np.rint(np.array(self.outcomes) * UNIT), dtype=np.int64)

    @property
    def actions(self) -> int:
        """How many."""
        return int(self.table.shape[1])

    @cached_property
    def gaps(self) -> Floats:
        """The loss of each action above the yardstick's, per slot, in each phase.

        >>> World("two", (0.0, 1.0), ((0.5, (0.5, 0.25)),)).gaps.tolist()
        [[0.0, 1.0], [0.25, 0.0]]
        >>> World("two", (0.0, 1.0), ((0.5, (0.5, 0.25)),), yardstick="fixed").gaps.tolist()
        [[0.0, 1.0], [0.0, -0.25]]
        """
        if self.yardstick == "moment":
            return np.asarray(self.table - self.table.min(axis=1, keepdims=True))
        lengths = np.diff(self._shares, append=1.0)
        best = int((lengths @ self.table).argmin())
        return np.asarray(self.table - self.table[:, [best]])

    def starts(self, horizon: int) -> Ints:
        """The slots after which each phase begins."""
        return (self._shares * horizon).astype(np.int64)

    @cached_property
    def _shares(self) -> Floats:
        return np.array([0.0, *(share for share, _ in self.later)])

    def phases_of(self, slots: Ints, horizon: int) -> Ints:
        """The phase of each slot, numbered from 0."""
        return np.asarray(np.searchsorted(self.starts(horizon), slots, side="right") - 1)

    def parts(self, slots: range, horizon: int) -> Iterator[tuple[int, int]]:
        """The phases of some slots, numbered from 0, and how many of the slots lie in each."""
        if not self.later:  # also asked for each slot alone
            yield 0, len(slots)
            return
        starts = self.starts(horizon)
        first, last = self.phases_of(np.array([slots.start, slots.stop - 1]), horizon).tolist()
        for phase in range(first, last + 1):
            end = int(starts[phase + 1]) if phase + 1 < len(starts) else slots.stop
            count = min(end, slots.stop) - max(int(starts[phase]), slots.start)
            if count > 0:
                yield phase, count

    def costs(self, ends: Ints, horizon: int) -> Floats:
        """Each action's loss above the yardstick's between each two of some slots: n × K."""
        return np.asarray(self._overlaps(ends, horizon) @ self.gaps)

    def best_in(self, ends: Ints, horizon: int) -> Floats:
        """The share of slots between each two in which each action is a best one: n × K."""
        best = self.table == self.table.min(axis=1, keepdims=True)
        return np.asarray(self._overlaps(ends, horizon) @ best / np.diff(ends)[:, None])

    def _overlaps(self, ends: Ints, horizon: int) -> Floats:
        """How many of the slots between each two lie in each phase."""
        starts = self.starts(horizon)
        stops = np.append(starts[1:], max(horizon, int(ends[-1])))
        within = np.minimum(ends[1:, None], stops) - np.maximum(ends[:-1, None], starts)
        return np.asarray(np.maximum(within, 0), dtype=np.float64)

    def sums(self, lengths: Ints, phases: Ints, generator: Generator) -> Ints:
        """Sums of all losses, on the grid, over the given numbers of slots of these phases."""
        if self.outcomes:
            drawn = generator.multinomial(lengths, self.chances[phases])
            return np.asarray(drawn @ self._units, dtype=np.int64)
        shape = (*lengths.shape, self.actions)
        if self.concentration is None:
            ones = binomials(lengths.ravel(), phases.ravel(), self.chances, generator)
            ones *= UNIT
            return ones.reshape(shape)
        counts = np.broadcast_to(lengths[..., None], shape)
        return self._on_grid(counts, self.chances[phases], generator)

    def shown_sums(self, shown: Ints, phase: int, generator: Generator) -> Ints:
        """The losses, on the grid, of actions that were shown so often in one phase: R × K."""
        if not self.outcomes:
            return self._on_grid(shown, self.table[phase], generator)
        drawn = generator.multinomial(shown, self.chances[phase])  # R × K × outcomes
        return np.asarray((drawn * self._units.T).sum(axis=2), dtype=np.int64)

    def _on_grid(self, counts: Ints, means: Floats, generator: Generator) -> Ints:
        if self.concentration is None:
            return np.asarray(generator.binomial(counts, means) * UNIT, dtype=np.int64)
        return np.rint(self.lost(counts, means, generator) * UNIT).astype(np.int64)

    def lost(self, counts: Ints, means: Floats, generator: Generator) -> Floats:
        """The total loss of so many slots of these means, each action's apart."""
        if self.concentration is None:
            return np.asarray(generator.binomial(counts, means), dtype=np.float64)
        means = np.broadcast_to(means, counts.shape)
        spread = np.sqrt(counts * means * (1 - means) / (1 + self.concentration))
        total = counts * means + spread * generator.standard_normal(counts.shape)
        few = counts <= _ONE_BY_ONE
        alpha = means[few] * self.concentration
        draws = generator.beta(alpha, self.concentration - alpha, size=(_ONE_BY_ONE, len(alpha)))
        total[few] = (draws * (np.arange(_ONE_BY_ONE)[:, None] < counts[few])).sum(axis=0)
        return np.clip(total, 0, counts)
