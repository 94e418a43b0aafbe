"""Runs of equal charges: their exact sums and maxima."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise
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


def highest(runs: Iterable[Run]) -> Iterator[Run]:
    """The maximum of any runs, in order: where they overlap, the largest charge counts.

    >>> [tuple(map(str, run)) for run in highest([Run(1, 9, Fraction(1)), Run(4, 6, Fraction(2))])]
    [('1', '4', '1'), ('4', '6', '2'), ('6', '9', '1')]
    """
    waiting = sorted(runs, reverse=True)
    edges = sorted({edge for run in waiting for edge in (run.start, run.stop)})
    open_runs: list[tuple[Fraction, int]] = []
    for start, stop in pairwise(edges):
        while waiting and waiting[-1].start <= start:
            run = waiting.pop()
            heappush(open_runs, (-run.epsilon, run.stop))
        while open_runs and open_runs[0][1] <= start:
            heappop(open_runs)
        if open_runs:
            yield Run(start, stop, -open_runs[0][0])
