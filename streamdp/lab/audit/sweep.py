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

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.grid import UNIT
from streamdp.core.kinds.kind import Kind
from streamdp.core.randomness import Purpose
from streamdp.lab.audit.laws import Choice
from streamdp.lab.audit.neighbours import blank_law, neighbours_of
from streamdp.lab.audit.transcripts import distinct_rows, log_mean, spread

LONGEST = 256
_EVENLY = 15  # every 15th base is also reached evenly: a mixture of 128 laws each
_FEW = (0, 1, 3, 14, 56, 255)
_GRID = (0, 1, 2, 3, 4, 6, 9, 14, 22, 35, 56, 90, 144, 200, 230, 250, 253, 254, 255)


def sweep(kind: Kind, *, longest: int = LONGEST) -> float:
    """The worst log-ratio of one selection after blocks of `longest` slots, over all priors."""
    actions = len(kind.actions)
    corners = np.array(list(product((0, 1), repeat=actions)))
    paths = [np.array(list(_bases(actions, longest - 1)))[:, None], _evenly(kind, longest)]
    worst = 0.0
    for favoured, path in product(_favoured(kind, actions), paths):
        sums = path[:, :, None] + corners  # bases × windows × corners × K
        worst = max(worst, spread(log_mean(_laws(kind, sums, favoured)), axis=1))
    return worst


def sweep_wide(kind: Kind, *, longest: int = LONGEST) -> float:
    """The worst log-ratio of one selection among many actions, one of them apart."""
    actions = len(kind.actions)
    one = np.eye(actions, dtype=np.int64)[:2]
    corners = np.array([*one, *(1 - one), 0 * one[0], 0 * one[0] + 1])
    leads = np.minimum(_FEW, longest - 1)[:, None]
    sums = np.concatenate([leads * one[0], leads * (1 - one[0])])[:, None] + corners
    favoured = _favoured(kind, 3)
    return max(spread(_laws(kind, sums, action), axis=1) for action in favoured)


def _favoured(kind: Kind, actions: int) -> Sequence[int | None]:
    """The actions that a prior may favour: the first so many, or none without a bonus."""
    law = blank_law(kind, kind.releases[0].name)
    return range(actions) if isinstance(law, Choice) and law.prior is not None else (None,)


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


def _evenly(kind: Kind, longest: int) -> Ints:
    """Bases × windows × K: the sums of each window of blocks that reach their base evenly.

    Without a random prefix there is one window, whose sums are the base: nothing more to ask.
    """
    actions = len(kind.actions)
    if Purpose.WINDOW not in neighbours_of(kind).tosses:
        return np.zeros((0, 1, actions), dtype=np.int64)
    bases = np.array(list(_bases(actions, longest - 1)))
    some = bases[bases.sum(axis=1) % _EVENLY == _EVENLY - 1]
    windows = np.arange(longest // 2 + 1, longest + 1)
    return np.asarray(some[:, None] * windows[:, None] // longest, dtype=np.int64)


def _laws(kind: Kind, sums: Ints, favoured: int | None) -> Floats:
    """Log-probabilities by sums in whole losses (… × K); equal differences are computed once.

    Without a prior, all orders of the same differences count as equal.
    """
    rows = sums.reshape(-1, sums.shape[-1])
    moved = rows - rows.min(axis=1, keepdims=True)
    order = np.broadcast_to(np.arange(moved.shape[1]), moved.shape)
    if favoured is None:
        order = np.argsort(moved, axis=1, kind="stable")
    distinct, which = distinct_rows(np.take_along_axis(moved, order, axis=1))
    public = {"action": np.full(1, 0 if favoured is None else favoured)}
    row, name = neighbours_of(kind), kind.releases[0].name
    law = row.law(name, {"sums": np.zeros((1, rows.shape[1]), np.int64)}, public)
    assert isinstance(law, Choice)
    known = [law.mechanism.log_probabilities(one * UNIT, law.prior) for one in distinct]
    laws = np.empty(rows.shape)
    np.put_along_axis(laws, order, np.array(known).reshape(-1, rows.shape[1])[which], axis=1)
    return laws.reshape(sums.shape)
