"""Runs of equal charges, and their exact sums."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import NamedTuple

NOTHING = Fraction(0)


class Run(NamedTuple):
    """A stretch [start, stop) on which each slot was charged `epsilon` in total."""

    start: int
    stop: int
    epsilon: Fraction


def added(runs: Iterable[Run]) -> Iterator[Run]:
    """The sum of any runs, in order: overlaps add, equal neighbours are joined, gaps left out.

    >>> [tuple(map(str, run)) for run in added([Run(1, 9, Fraction(1)), Run(4, 9, Fraction(1, 2))])]
    [('1', '4', '1'), ('4', '9', '3/2')]
    """
    change: dict[int, Fraction] = defaultdict(Fraction)
    for run in runs:
        change[run.start] += run.epsilon
        change[run.stop] -= run.epsilon
    start, total = 0, NOTHING
    for edge in sorted(change):
        if not change[edge]:
            continue
        if total:
            yield Run(start, edge, total)
        start, total = edge, total + change[edge]
