"""How likely each arm is the best, given independent normal laws of the arms' means.

With arm j's law N(μ_j, s_j²): P(j is best) = ∫ Π_{i≠j} Φ((x − μ_i)/s_i) dΦ((x − μ_j)/s_j).

The quadrature, by name *cells of the maximum*. Nearly all of the maximum's law lies between
max_j(μ_j − 4 s_j) and max_j(μ_j + 5 s_j). This interval is cut into equal cells, then into `CELLS`
cells of which half follow the maximum's law and half the length, so that the cells are fine enough
for well-known arms beside little-known ones. The integral over a cell is the arm's own probability
of the cell times the mean, over the cell's borders, of Π_{i≠j} Φ.

Sampling is not good enough: 256 samples round small chances to 0, and some runs then never recover.
Everything is one correctly rounded operation at a time (see `policy_arithmetic`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from streamdp.core.arrays import Floats
from streamdp.core.evidence.policy_arithmetic import (
    normal_cdf,
    ordered_product,
    ordered_sum,
)

CELLS = 32
_COARSE = 16
_BELOW, _ABOVE = 4.0, 5.0  # standard deviations
_VALUES = 1 << 15  # of an array at once: 256 kB, of which several fit into a processor's cache
_MOST_ARMS = 1 << 14  # at once


def chances_of_best(means: Floats, deviations: Floats) -> Floats:
    """For each row of K normal laws: how likely each is the largest. Rows add up to 1.

    >>> chances_of_best(np.array([[0.0, 0.0], [0.0, 2.0]]), np.ones((2, 2))).round(2)
    array([[0.5 , 0.5 ],
           [0.08, 0.92]])
    """
    rows, arms = means.shape
    at_once = max(1, _VALUES // (arms * (CELLS + 1)))
    chances = np.empty((rows, arms))
    for first in range(0, rows, at_once):
        some = slice(first, first + at_once)
        laws = (np.ascontiguousarray(numbers[some].T) for numbers in (means, deviations))
        chances[some] = _chances(*laws).T
    return chances


def _chances(means: Floats, deviations: Floats) -> Floats:
    """K × R chances from K × R laws. Arrays over points are C × R, or C × K × R for each arm."""
    low = (means - deviations * _BELOW).max(axis=0)
    high = (means + deviations * _ABOVE).max(axis=0)
    coarse = low + (high - low) * (np.arange(_COARSE + 1) / _COARSE)[:, None]
    points = _refined(coarse, _product(_below_by_piece(coarse, means, deviations)))
    if len(means) <= _MOST_ARMS:
        below = _below(points, means, deviations)
        chances = _of_cells(below, _product([below]))
    else:  # computing twice takes less memory than keeping it
        every = _product(_below_by_piece(points, means, deviations))
        parts = [_of_cells(part, every) for part in _below_by_piece(points, means, deviations)]
        chances = np.concatenate(parts)
    return chances / ordered_sum(chances)


def _of_cells(below: Floats, every: Floats) -> Floats:
    """The sums over the cells, for some arms."""
    others = every[:, None] / below
    steps = below[1:] - below[:-1]
    steps *= others[1:] + others[:-1]
    return ordered_sum(steps)


def _below(points: Floats, means: Floats, deviations: Floats) -> Floats:
    """The probability that each of some arms is below each point."""
    return normal_cdf(points[:, None], means, deviations)


def _below_by_piece(points: Floats, means: Floats, deviations: Floats) -> Iterator[Floats]:
    """`_below` of all arms, `_MOST_ARMS` at a time."""
    for at in range(0, len(means), _MOST_ARMS):
        piece = slice(at, at + _MOST_ARMS)
        yield _below(points, means[piece], deviations[piece])


def _product(pieces: Iterable[Floats]) -> Floats:
    """The probability that all arms are below each point."""
    every: Floats | None = None
    for below in pieces:
        product = ordered_product(below.swapaxes(0, 1))
        every = product if every is None else every * product
    assert every is not None
    return every


def _refined(points: Floats, below: Floats) -> Floats:
    """`CELLS` + 1 points of each row: half follow the law given by `below`, half are even."""
    last, rows = len(points) - 1, points.shape[1]
    even = np.arange(last + 1) / last
    law = below / below[-1]
    reached = 0.5 * (law + even[:, None])
    wanted = np.arange(1, CELLS) / CELLS
    first = np.ceil(reached * CELLS).astype(np.intp) * rows  # of those wanted from here: exact
    first += np.arange(rows)
    begun = np.bincount(first.reshape(-1), minlength=(CELLS + 1) * rows).reshape(CELLS + 1, rows)
    cell = (begun.cumsum(axis=0)[1:CELLS] - 1) * rows
    cell += np.arange(rows)
    left, begin = reached.take(cell), points.take(cell)
    width, step = reached.take(cell + rows) - left, points.take(cell + rows) - begin
    inner = begin + step * ((wanted[:, None] - left) / width)
    return np.concatenate([points[:1], inner, points[-1:]])
