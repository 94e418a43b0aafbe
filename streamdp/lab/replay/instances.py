"""Made-up worlds to simulate learners in: the mean loss of each action, and when it changes.

An instance is a list of phases. Within a phase slots are independent and alike. Losses are 0 or 1
and independent over actions; an instance with `outcomes` has one of a few loss vectors in each
slot, so its losses are correlated and not binary. Phases begin at shares of the horizon, so an
instance means the same at every length.

Three families: `STATIONARY`, where the best action stays; `DRIFTING`, where it changes by 3, 20 or
200 switches or by slow cycles; and `OTHERS`: seasons, correlated losses that are not all binary,
many small changes, a slow decline, small gaps. The default recipe was chosen by looking at these;
it had never been run on those of `held_out` before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import cos, pi

import numpy as np
from numpy.random import Generator  # noqa: TID251 - losses are made up: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.core.grid import UNIT

Means = tuple[float, ...]


@dataclass(frozen=True)
class Instance:
    """The mean loss of each action, phase by phase."""

    name: str
    means: Means  # of the first phase; with outcomes: the probability of each
    later: tuple[tuple[float, Means], ...] = ()  # share of the horizon at its start, and means
    outcomes: tuple[Means, ...] = ()  # the loss vectors, one of which is each slot's

    @cached_property
    def table(self) -> Floats:
        """The mean loss of each action in each phase."""
        means = np.array([self.means, *(later for _, later in self.later)])
        return means @ np.array(self.outcomes) if self.outcomes else means

    @property
    def actions(self) -> int:
        """How many."""
        return int(self.table.shape[1])

    @property
    def gaps(self) -> Floats:
        """The loss of each action above the best, per slot, in the first phase."""
        return np.asarray(self.table[0] - self.table[0].min())

    def starts(self, horizon: int) -> Ints:
        """The slots after which each phase begins."""
        return np.array([0, *(int(share * horizon) for share, _ in self.later)], dtype=np.int64)

    def regret_until(self, slots: Ints, horizon: int) -> Floats:
        """Each action's loss above the best of each moment, if it were in force all the time."""
        starts = self.starts(horizon)
        gaps = self.table - self.table.min(axis=1, keepdims=True)
        before = np.cumsum(gaps * np.diff(starts, append=horizon)[:, None], axis=0)
        before = np.concatenate([np.zeros((1, self.actions)), before])
        phase = np.searchsorted(starts, slots, side="right") - 1
        return np.asarray(before[phase] + gaps[phase] * (slots - starts[phase])[:, None])

    def sums(self, lengths: Ints, phases: Ints, generator: Generator) -> Ints:
        """Exact sums, on the grid, over the given numbers of slots of these phases."""
        means = np.array([self.means, *(later for _, later in self.later)])[phases]
        if not self.outcomes:
            return np.asarray(generator.binomial(lengths[..., None], means) * UNIT, dtype=np.int64)
        units = np.rint(np.array(self.outcomes) * UNIT).astype(np.int64)
        return np.asarray(generator.multinomial(lengths, means) @ units, dtype=np.int64)


def _switches(name: str, count: int, *, actions: int, gap: float) -> Instance:
    """Another action is best after each switch; the others are alike."""

    def means(best: int) -> Means:
        return tuple(0.5 - gap * (action == best) for action in range(actions))

    later, best = [], 0
    for at in range(1, count + 1):
        best = (best + 1 + int(_scatter(3 * at) * (actions - 1))) % actions
        later.append(((at - _scatter(at) / 2) / (count + 1), means(best)))
    return Instance(name, means(0), tuple(later))


def _scatter(number: int) -> float:
    """A number between 0 and 1, evenly spread: multiples of the golden ratio."""
    return number * 0.6180339887498949 % 1


def smooth(name: str, curves: Sequence[Means], knots: int = 512) -> Instance:
    """Means that move in small steps from one vector to the next."""
    places = np.linspace(0, len(curves) - 1, knots)
    columns = np.array(curves).T
    table = np.array([np.interp(places, np.arange(len(curves)), column) for column in columns]).T
    rows = [tuple(row) for row in table.round(6).tolist()]
    later = tuple((at / knots, rows[at]) for at in range(1, knots))
    return Instance(name, rows[0], later)


def _cycles(name: str, count: int, *, actions: int) -> Instance:
    """Waves of the same height, one after another."""
    steps = 64 * count
    curves = [
        tuple(0.5 + 0.2 * cos(2 * pi * (count * at / steps + a / actions)) for a in range(actions))
        for at in range(steps + 1)
    ]
    return smooth(name, curves)


def _small_changes(name: str, *, actions: int, changes: int) -> Instance:
    """Every mean moves by ±.04 at each of many changes, within .2 and .8."""
    means, rows = [0.5] * actions, []
    for at in range(changes):
        for action in range(actions):
            step = 0.04 if _scatter((at + 1) * (action + 3) ** 2) < 0.5 else -0.04
            means[action] += step if 0.2 <= means[action] + step <= 0.8 else -step
        rows.append(tuple(round(mean, 6) for mean in means))
    later = tuple((at / changes, rows[at]) for at in range(1, changes))
    return Instance(name, rows[0], later)


_GOOD_DAYS = ((0.1, 0.2, 0.2, 0.3, 0.3), (0.6, 0.7, 0.75, 0.7, 0.8), (0.3, 0.3, 0.2, 0.35, 0.9))
_BAD_DAYS = ((0.9, 0.95, 1.0, 0.6, 0.5),)

STATIONARY = (
    Instance("graded gaps, K = 5", (0.25, 0.375, 0.5, 0.625, 0.75)),
    Instance("equal gaps, K = 5", (0.5, 0.6, 0.6, 0.6, 0.6)),
    Instance("K = 100", (0.4, *(0.5,) * 99)),
    Instance("K = 1000", (0.4, *(0.5,) * 999)),
    Instance("doubling gaps, K = 6", (0.3, 0.32, 0.34, 0.38, 0.46, 0.62)),
)
"""The first two are those of Hu et al. 2025, Fig. 1 and 2, in losses; one action is better by
.1 among 100 and among 1000; gaps of .02, .04, …, .32 have no single scale."""

DRIFTING = (
    _switches("3 switches", 3, actions=5, gap=0.2),
    _switches("20 switches", 20, actions=5, gap=0.2),
    _switches("200 switches", 200, actions=5, gap=0.2),
    _switches("20 switches, K = 20", 20, actions=20, gap=0.3),
    _cycles("slow cycles", 3, actions=4),
)

OTHERS = (
    Instance(
        "seasons",
        (0.3, 0.5, 0.5, 0.45, 0.6),
        tuple(
            (at / 16, ((0.3, 0.5, 0.5, 0.45, 0.6), (0.5, 0.5, 0.3, 0.45, 0.6))[at % 2])
            for at in range(1, 16)
        ),
    ),
    Instance("correlated, stationary", (0.3, 0.3, 0.2, 0.2), (), _GOOD_DAYS + _BAD_DAYS),
    Instance(
        "correlated, 10 switches",
        (0.3, 0.3, 0.2, 0.2),
        tuple(
            (at / 11 - 0.02, ((0.3, 0.3, 0.2, 0.2), (0.1, 0.2, 0.2, 0.5))[at % 2])
            for at in range(1, 11)
        ),
        _GOOD_DAYS + _BAD_DAYS,
    ),
    _small_changes("many small changes", actions=6, changes=256),
    smooth("a slow decline", [(0.3, 0.4, 0.45, 0.5, 0.6), (0.6, 0.4, 0.45, 0.5, 0.25)]),
    _switches("small gaps, 20 switches", 20, actions=8, gap=0.06),
)
