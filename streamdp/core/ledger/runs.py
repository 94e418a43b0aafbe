"""Runs of equal charges: their exact sums and maxima, and interned lists that accounts share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints

NOTHING = Fraction(0)
_FIRST_SWEEP = 1024  # nodes; smaller lists are not worth sweeping


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


class Node(NamedTuple):
    """A run, with its total as a level's number and the run before it as a node's number."""

    start: int
    stop: int
    level: int
    history: int


END = Node(0, 0, 0, 0)
"""The node that ends every list, number 0; also the state of an account with no charge."""


class Levels:
    """Interned totals: small integers stand for `Fraction`s; 0 stands for nothing charged."""

    __slots__ = ("_ids", "values")

    def __init__(self) -> None:
        self.values = [NOTHING]
        self._ids = {NOTHING: 0}

    def id_of(self, total: Fraction) -> int:
        """The number of a total; `values[number]` is the total."""
        if total not in self._ids:
            self._ids[total] = len(self.values)
            self.values.append(total)
        return self._ids[total]


class Histories:
    """Interned lists of runs that only grow at their head: equal lists are one list.

    Ranges are functions of slot numbers, so a million accounts have a handful of histories. A
    parent's number is below its child's. Nodes that no account reaches any more are swept when the
    nodes have doubled since the last sweep, which costs O(1) for each node ever made.
    """

    __slots__ = ("_ids", "_sweep_at", "nodes")

    def __init__(self) -> None:
        self.nodes: list[Node] = [END]
        self._ids: dict[Node, int] = {END: 0}
        self._sweep_at = _FIRST_SWEEP

    def id_of(self, node: Node) -> int:
        """The number of a node, which is added if it is new."""
        number = self._ids.get(node)
        if number is None:
            number = self._ids[node] = len(self.nodes)
            self.nodes.append(node)
        return number

    def ids_of(self, nodes: Ints) -> Ints:
        """The numbers of many nodes (rows of their four fields), of which few differ."""
        if bool((nodes == nodes[0]).all()):
            return np.full(len(nodes), self.id_of(Node(*nodes[0].tolist())), dtype=np.int64)
        distinct, where = np.unique(nodes, axis=0, return_inverse=True)
        ids = [self.id_of(Node(*row)) for row in distinct.tolist()]
        return np.array(ids, dtype=np.int64)[where]

    def back(self, node: Node) -> Iterator[Node]:
        """A node and those before it, last first, without the end."""
        while node != END:
            yield node
            node = self.nodes[node.history]

    def reachable(self, heads: NDArray[np.int32]) -> Bools:
        """Which nodes can be reached from these; the end always can."""
        alive = np.zeros(len(self.nodes), dtype=np.bool_)
        alive[heads] = True
        for number in range(len(self.nodes) - 1, 0, -1):
            if alive[number]:
                alive[self.nodes[number].history] = True
        alive[0] = True
        return alive

    def sweep(self, heads: NDArray[np.int32]) -> None:
        """If there are enough nodes, drop those that `heads` cannot reach; renumber `heads`."""
        if len(self.nodes) < self._sweep_at:
            return
        alive = self.reachable(heads)
        number = np.cumsum(alive) - 1
        kept = [node for node, lives in zip(self.nodes, alive.tolist(), strict=True) if lives]
        self.nodes = [node._replace(history=int(number[node.history])) for node in kept]
        self._ids = {node: new for new, node in enumerate(self.nodes)}
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self.nodes))
        heads[:] = number[heads]
