"""Many draws from a few binomial laws, by inversion with a table. NOT PRIVATE.

The unit interval is cut into 2**14 cells. Nearly all of them lie within one value's stretch of the
distribution function: there 14 random bits are the draw. In the others more random bits say where
in the cell the draw is. So values have the law of inverting a uniform float of 53 digits, at about
a tenth of the cost of `Generator.binomial`, which takes the draws of small groups and long counts.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.random import Generator  # noqa: TID251 - what is made up is no secret
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints

_CELLS = 1 << 14
_AT_ONCE = 1 << 16  # draws whose memory stays in a processor's cache
_LONGEST = 1 << 12  # counts whose laws are tabled
_MANY = 1 << 13  # draws that are worth a table


def binomials(counts: Ints, phases: Ints, chances: Floats, generator: Generator) -> Ints:
    """Draws for so many slots of each phase: n × K, by the chances of each phase (P × K)."""
    drawn = np.empty((len(counts), chances.shape[1]), dtype=np.int64)
    alike = counts * len(chances) + phases
    order = np.argsort(alike, kind="stable")
    rest = [order[:0]]
    for places in np.split(order, np.flatnonzero(np.diff(alike[order])) + 1):
        if len(places) * drawn.shape[1] < _MANY or (count := int(counts[places[0]])) > _LONGEST:
            rest.append(places)
            continue
        values, which = np.unique(chances[phases[places[0]]], return_inverse=True)
        found = np.empty((len(places), len(which)), dtype=np.int64)
        for at, chance in enumerate(values.tolist()):
            mine = np.flatnonzero(which == at)
            many = len(places) * len(mine)
            found[:, mine] = _draws(count, chance, many, generator).reshape(-1, len(mine))
        drawn[places] = found
    others = np.concatenate(rest)
    drawn[others] = generator.binomial(counts[others, None], chances[phases[others]])
    return drawn


def _draws(count: int, chance: float, many: int, generator: Generator) -> Ints:
    """So many draws from one law."""
    reached, cells = _table(count, chance)
    drawn = np.empty(many, dtype=np.int64)
    for first in range(0, many, _AT_ONCE):
        part = drawn[first : first + _AT_ONCE]
        where = generator.integers(0, _CELLS, len(part), dtype=np.uint16)
        part[:] = cells[where]
        open_ = np.flatnonzero(part < 0)
        exact = (where[open_] + generator.random(len(open_))) / _CELLS
        part[open_] = np.searchsorted(reached, exact, side="right")
    return drawn


@lru_cache(maxsize=256)
def _table(count: int, chance: float) -> tuple[Floats, NDArray[np.int16]]:
    """The distribution function below each value, and the value of each cell; −1: several."""
    values = np.arange(count + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(values[1:]))])
    with np.errstate(divide="ignore", invalid="ignore"):  # a chance of 0 or 1
        hits, misses = values * np.log(chance), values[::-1] * np.log1p(-chance)
    logs = (
        factorials[-1] - factorials - factorials[::-1] + np.nan_to_num(hits, nan=0.0, neginf=-1e9)
    )
    law = np.exp(logs + np.nan_to_num(misses, nan=0.0, neginf=-1e9))
    reached = np.cumsum(law)[:-1] / law.sum()
    cells = np.searchsorted(reached, np.arange(_CELLS + 1) / _CELLS, side="right")
    return reached, np.where(cells[1:] == cells[:-1], cells[:-1], -1).astype(np.int16)
