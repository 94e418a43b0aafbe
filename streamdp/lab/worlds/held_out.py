"""Held-out worlds: no default was tuned on them, so they test whether the tuning holds.

The default recipe's schedule and memory were chosen by looking at `families`. These worlds were
made afterwards and run once, and nothing was changed because of the result. Before you tune
anything on them, make new ones. They differ in gaps, K (2 … 40), periods, the law of losses (rare,
heavy-tailed, common shocks that make actions alike) and the times of changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamdp.lab.worlds import Means, World
from streamdp.lab.worlds.families import (
    DRIFTING,
    FEEDBACK,
    OTHERS,
    STATIONARY,
    evenly,
    in_turn,
    smooth,
)


def _irregular(number: int) -> float:
    """A number between 0 and 1: multiples of √2 − 1, unlike those in `families`."""
    return number * 0.41421356237309515 % 1


def _best_of(best: int, actions: int, *, gap: float, step: float, base: float) -> Means:
    """One action is best by `gap`; the others lie `step` apart."""
    others = [base + gap + step * rank for rank in range(actions - 1)]
    return tuple(round(loss, 6) for loss in [*others[:best], base, *others[best:]])


def _turns(
    name: str, shares: Sequence[float], *, actions: int, gap: float, step: float, base: float
) -> World:
    """After each share another action is best."""
    best, rows = 0, []
    for at in range(len(shares) + 1):
        rows.append(_best_of(best, actions, gap=gap, step=step, base=base))
        best = (best + 1 + int(_irregular(at + 1) * (actions - 1))) % actions
    return in_turn(name, shares, rows)


def _walk(name: str, *, actions: int, changes: int, step: float) -> World:
    """Each mean takes many small steps up or down, within .1 and .9."""
    means, rows = np.linspace(0.4, 0.6, actions), []
    for at in range(changes):
        up = np.array([_irregular((at + 2) * (action + 5) ** 2) < 0.5 for action in range(actions)])
        means = np.clip(means + np.where(up, step, -step), 0.1, 0.9)
        rows.append(tuple(means.round(6).tolist()))
    return in_turn(name, evenly(changes), rows)


def _rotation(name: str, *, actions: int) -> World:
    """Every action slides through every rank, so that the best one changes without a jump."""
    ranks = np.linspace(0.25, 0.65, actions)
    curves = [tuple(np.roll(ranks, turn).tolist()) for turn in range(actions + 1)]
    return smooth(name, curves, 300)


def _shocked(losses: Sequence[float]) -> tuple[Means, ...]:
    """Loss vectors of calm, bad and very bad moments: the same shock for all actions."""
    return tuple(
        tuple(round(min(1.0, loss * scale + shift), 6) for loss in losses)
        for scale, shift in ((0.6, 0.0), (1.0, 0.1), (0.5, 0.5))
    )


_SPREAD = tuple(round(0.15 + 0.03 * at, 6) for at in range(10))
_SHOCKS = _shocked(_SPREAD) + _shocked(_SPREAD[::-1])
_CALM, _TURNED = (0.55, 0.2, 0.1, 0.1, 0.03, 0.02), (0.1, 0.03, 0.02, 0.55, 0.2, 0.1)

_TAILS = (
    (0.02, 0.05, 0.04, 0.08, 0.06, 0.10),
    (0.15, 0.08, 0.20, 0.10, 0.25, 0.12),
    (1.00, 0.10, 0.30, 0.20, 0.10, 0.15),
    (0.10, 1.00, 0.20, 0.90, 0.30, 0.15),
)
"""Mostly small losses, rarely a whole one: the least usual loss is not that of the best mean."""

_RARE = (0.02, 0.035, 0.04, 0.04, 0.05, 0.05, 0.06, 0.08)

HELD_OUT_STATIONARY = (
    World("two actions, gap .03", (0.47, 0.5)),
    World("ranks .05 apart, K = 12", tuple(round(0.2 + 0.05 * at, 6) for at in range(12))),
    World("rare losses, K = 8", _RARE),
    World("common shocks, K = 10", _CALM, (), _SHOCKS),
    World("heavy tails, K = 6", (0.7, 0.24, 0.05, 0.01), (), _TAILS),
    World("three good, K = 40", (0.3, 0.31, 0.33, *(0.5 + 0.005 * at for at in range(37)))),
)

HELD_OUT_DRIFTING = (
    in_turn(
        "three seasons in turn, K = 4",
        [(at + 0.3 * _irregular(at)) / 24 for at in range(1, 24)],
        [(0.3, 0.4, 0.5, 0.45), (0.55, 0.35, 0.5, 0.4), (0.5, 0.45, 0.5, 0.2)],
    ),
    _turns(
        "abrupt, then calm", [0.013 * at for at in range(1, 9)],
        actions=6, gap=0.15, step=0.02, base=0.35,
    ),
    _turns(
        "calm, then abrupt", [0.6 + 0.04 * at for at in range(1, 9)],
        actions=6, gap=0.15, step=0.02, base=0.35,
    ),
    _turns("50 switches, K = 12", evenly(51), actions=12, gap=0.1, step=0.01, base=0.4),
    _turns("two actions, 30 switches", evenly(31), actions=2, gap=0.1, step=0.0, base=0.45),
    _turns("rare losses, 12 switches", evenly(13), actions=8, gap=0.02, step=0.005, base=0.02),
    _walk("400 small steps, K = 10", actions=10, changes=400, step=0.02),
    _rotation("ranks rotate, K = 7", actions=7),
    in_turn("common shocks, 8 changes", evenly(9), [_CALM, _TURNED], _SHOCKS),
    in_turn(
        "heavy tails, 15 changes",
        evenly(16),
        [(0.7, 0.24, 0.05, 0.01), (0.7, 0.24, 0.01, 0.05)],
        _TAILS,
    ),
)  # fmt: skip

FAMILIES = {
    "stationary": STATIONARY,
    "drifting": DRIFTING,
    "others": OTHERS,
    "held-out-stationary": HELD_OUT_STATIONARY,
    "held-out-drifting": HELD_OUT_DRIFTING,
    "feedback": FEEDBACK,
}
"""All families, by their names in `streamdp simulate --worlds`."""
