"""Families of worlds: where the best action stays, where it changes, and clicks.

Four families: `STATIONARY`, where the best action stays; `DRIFTING`, where it changes by 3, 20 or
200 switches or by slow cycles; `OTHERS`: seasons, correlated losses that are not all binary, many
small changes, a slow decline, small gaps; and `FEEDBACK`: rewards of what was shown. The default
recipe was chosen by looking at the first three; it had never been run on those of `held_out`
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi

import numpy as np

from streamdp.lab.worlds import CONCENTRATION, Means, World


def in_turn(
    name: str, begins: Sequence[float], rows: Sequence[Means], outcomes: tuple[Means, ...] = ()
) -> World:
    """The first row from the start, and at each of some shares of the horizon the next in turn."""
    later = tuple((begin, rows[at % len(rows)]) for at, begin in enumerate(begins, 1))
    return World(name, rows[0], later, outcomes)


def evenly(count: int) -> list[float]:
    """Where so many equal stretches of the horizon begin, but for the first."""
    return [at / count for at in range(1, count)]


def _switches(name: str, count: int, *, actions: int, gap: float) -> World:
    """Another action is best after each switch; the others are alike."""
    bests = [0]
    for at in range(1, count + 1):
        bests.append((bests[-1] + 1 + int(_scatter(3 * at) * (actions - 1))) % actions)
    begins = [(at - _scatter(at) / 2) / (count + 1) for at in range(1, count + 1)]
    rows = [tuple(0.5 - gap * (action == best) for action in range(actions)) for best in bests]
    return in_turn(name, begins, rows)


def _scatter(number: int) -> float:
    """A number between 0 and 1, evenly spread: multiples of the golden ratio."""
    return number * 0.6180339887498949 % 1


def smooth(name: str, curves: Sequence[Means], knots: int = 512) -> World:
    """Means that move in small steps from one vector to the next."""
    places = np.linspace(0, len(curves) - 1, knots)
    columns = np.array(curves).T
    table = np.array([np.interp(places, np.arange(len(curves)), column) for column in columns]).T
    return in_turn(name, evenly(knots), [tuple(row) for row in table.round(6).tolist()])


def _cycles(name: str, count: int, *, actions: int) -> World:
    """Waves of the same height, one after another."""
    steps = 64 * count
    curves = [
        tuple(0.5 + 0.2 * cos(2 * pi * (count * at / steps + a / actions)) for a in range(actions))
        for at in range(steps + 1)
    ]
    return smooth(name, curves)


def _small_changes(name: str, *, actions: int, changes: int) -> World:
    """Every mean moves by ±.04 at each of many changes, within .2 and .8."""
    means, rows = [0.5] * actions, []
    for at in range(changes):
        for action in range(actions):
            step = 0.04 if _scatter((at + 1) * (action + 3) ** 2) < 0.5 else -0.04
            means[action] += step if 0.2 <= means[action] + step <= 0.8 else -step
        rows.append(tuple(round(mean, 6) for mean in means))
    return in_turn(name, evenly(changes), rows)


_GOOD_DAYS = ((0.1, 0.2, 0.2, 0.3, 0.3), (0.6, 0.7, 0.75, 0.7, 0.8), (0.3, 0.3, 0.2, 0.35, 0.9))
_BAD_DAYS = ((0.9, 0.95, 1.0, 0.6, 0.5),)

STATIONARY = (
    World("graded gaps, K = 5", (0.25, 0.375, 0.5, 0.625, 0.75)),
    World("equal gaps, K = 5", (0.5, 0.6, 0.6, 0.6, 0.6)),
    World("K = 100", (0.4, *(0.5,) * 99)),
    World("K = 1000", (0.4, *(0.5,) * 999)),
    World("doubling gaps, K = 6", (0.3, 0.32, 0.34, 0.38, 0.46, 0.62)),
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
    in_turn("seasons", evenly(16), [(0.3, 0.5, 0.5, 0.45, 0.6), (0.5, 0.5, 0.3, 0.45, 0.6)]),
    World("correlated, stationary", (0.3, 0.3, 0.2, 0.2), (), _GOOD_DAYS + _BAD_DAYS),
    in_turn(
        "correlated, 10 switches",
        [begin - 0.02 for begin in evenly(11)],
        [(0.3, 0.3, 0.2, 0.2), (0.1, 0.2, 0.2, 0.5)],
        _GOOD_DAYS + _BAD_DAYS,
    ),
    _small_changes("many small changes", actions=6, changes=256),
    smooth("a slow decline", [(0.3, 0.4, 0.45, 0.5, 0.6), (0.6, 0.4, 0.45, 0.5, 0.25)]),
    _switches("small gaps, 20 switches", 20, actions=8, gap=0.06),
)

_GRADED = (0.75, 0.625, 0.5, 0.375, 0.25)
_EQUAL = (0.5, 0.4, 0.4, 0.4, 0.4)

FEEDBACK = (
    World.of_rewards("graded, K = 5", _GRADED),
    World.of_rewards("equal, K = 5", _EQUAL),
    World.of_rewards("clicks 5 %, K = 4", (0.05, 0.04, 0.04, 0.03)),
    World.of_rewards("clicks 2 %, K = 4", (0.02, 0.016, 0.015, 0.015)),
    World.of_rewards("clicks 6 %, K = 20", (0.06, *(0.04,) * 19)),
    World.of_rewards("equal, K = 2", (0.5, 0.4)),
    World.of_rewards("equal, K = 20", (0.5, *(0.4,) * 19)),
    World.of_rewards("equal, K = 100", (0.5, *(0.4,) * 99)),
    World.of_rewards("graded, beta rewards", _GRADED, concentration=CONCENTRATION),
    World.of_rewards("graded, a tenth late", _GRADED, late=0.1),
    World.of_rewards("equal, a tenth late", _EQUAL, late=0.1),
    World.of_rewards(
        "the best arm changes 9 times",
        *(tuple(0.6 if arm == at % 5 else 0.4 for arm in range(5)) for at in range(10)),
    ),
    World.of_rewards(
        "an adversary, K = 5",
        *((0.55, 0.9 if at % 2 else 0.1, 0.1 if at % 2 else 0.9, 0.3, 0.3) for at in range(64)),
        yardstick="fixed",
    ),
)
"""The first two are those of Hu et al. (2025), Fig. 1 and 2; then click rates, numbers of arms,
rewards that are not 0 or 1, late feedback, drift; and an oblivious adversary: two arms take turns
as the best, and a third is steady and better than both on average."""
