"""The worst log-ratio of one selection over base sums up to 256: small n hides a factor of two.

At two slots Laplace noise of half the scale looks like 1.31 ε, at 256 like 1.99 ε. So the sums of
the slots that do not change are swept far beyond the streams that can be enumerated: all
differences for two actions, and for more a grid that is dense near 0 and near the end. On top of
each base, one slot holds every vertex of [0,1]^K. With a random prefix, the law is the mixture over
windows, for blocks whose losses come evenly or all before the shortest window's end.

A rate may depend on the number of actions, so `sweep_wide` uses the learner's own number, for which
not every vertex can be tried: one action ahead of or behind all others, moved against all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

import numpy as np

from streamdp.audit.exposure import vertices
from streamdp.core.arrays import Floats, Ints
from streamdp.core.grid import UNIT
from streamdp.core.learners import Leader
from streamdp.core.selection import Mechanism, Prior

LONGEST = 256
_EVENLY = 15  # every 15th base is also reached evenly: a mixture of 128 laws each
_FEW = (0, 1, 3, 14, 56, 255)
_GRID = (0, 1, 2, 3, 4, 6, 9, 14, 22, 35, 56, 90, 144, 200, 230, 250, 253, 254, 255)


def sweep(learner: Leader, *, longest: int = LONGEST) -> float:
    """The worst log-ratio of one selection after blocks of `longest` slots, over all priors."""
    actions = len(learner.actions)
    laws = _Laws(learner.choose, learner.bonus)
    corners = vertices(actions).astype(np.int64)
    favoured = range(actions) if learner.bonus else [None]
    worst = 0.0
    for base, action in product(_bases(actions, longest - 1), favoured):
        for paths in _paths(learner, base, longest):
            logs = [
                _mixed([laws.of(path + corner, action) for path in paths]) for corner in corners
            ]
            worst = max(worst, _spread(np.array(logs)))
    return worst


def sweep_wide(learner: Leader, *, longest: int = LONGEST) -> float:
    """The worst log-ratio of one selection among many actions, one of them apart."""
    actions = len(learner.actions)
    laws = _Laws(learner.choose, learner.bonus)
    one = np.eye(actions, dtype=np.int64)[:2]
    corners = [*one, *(1 - one), 0 * one[0], 0 * one[0] + 1]
    worst = 0.0
    for lead, action in product(_FEW, (0, 1, 2) if learner.bonus else (None,)):
        for base in (one[0] * min(lead, longest - 1), (1 - one[0]) * min(lead, longest - 1)):
            worst = max(worst, _spread(np.array([laws.of(base + c, action) for c in corners])))
    return worst


def _bases(actions: int, most: int) -> Iterator[Ints]:
    """Sums of the slots that stay; only differences matter, so one of them is 0."""
    if actions == 2:
        for difference in range(-most, most + 1):
            yield np.array([max(0, difference), max(0, -difference)])
        return
    grid = sorted({min(value, most) for value in _GRID})
    for leads in product(grid, repeat=actions - 1):
        if list(leads) == sorted(leads):
            yield np.array([0, *leads])


def _paths(learner: Leader, base: Ints, longest: int) -> Iterator[list[Ints]]:
    """For each way in which a block reaches its base sums: the sums of each of its windows."""
    yield [base]
    if learner.window == "random_prefix" and base.sum() % _EVENLY == _EVENLY - 1:
        windows = range(longest // 2 + 1, longest + 1)
        yield [base * window // longest for window in windows]


@dataclass(slots=True)
class _Laws:
    """Log-probabilities by sums in whole losses, each computed once."""

    choose: Mechanism
    bonus: Fraction
    known: dict[tuple[tuple[int, ...], int | None], Floats] = field(default_factory=dict)

    def of(self, sums: Ints, favoured: int | None) -> Floats:
        """The law of a selection; without a prior, computed once for all orders of the sums."""
        values = sums.tolist()
        least = min(values)
        moved = [value - least for value in values]
        order = list(range(len(moved)))
        if favoured is None:
            order.sort(key=moved.__getitem__)
        ordered = tuple(moved[action] for action in order)
        law = self.known.get((ordered, favoured))
        if law is None:
            prior = None
            if favoured is not None:
                prior = Prior.incumbent(np.array([favoured]), self.bonus)
            law = self.choose.log_probabilities(np.array(ordered) * UNIT, prior)
            self.known[ordered, favoured] = law
        back = np.empty_like(law)
        back[order] = law
        return back


def _mixed(logs: list[Floats]) -> Floats:
    """The logarithm of the mean of probabilities."""
    if len(logs) == 1:
        return logs[0]
    table = np.array(logs)
    top = table.max(axis=0)
    return np.asarray(np.log(np.exp(table - top).mean(axis=0)) + top)


def _spread(logs: Floats) -> float:
    """The worst log-ratio of any two of these laws at any action."""
    high, low = logs.max(axis=0), logs.min(axis=0)
    possible = np.isfinite(high)
    return float(np.max(high[possible] - low[possible], initial=0.0))
