"""A ledger of any ranges of slots: dense accounts, charged within a budget.

The papers' learners charge ranges that do not follow from a schedule. Every charge of a call is
stored, or `BudgetExceeded` is raised and none is; a charge is never clamped.

An account is one learner, a number from 0. Its charges are runs of equal totals. The last run (the
*tail*) lives in arrays; earlier runs are lists that accounts share. So an account takes 24 bytes
(27 with spare room), and bookings are array operations where a range starts or ends at the end of
its account.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.errors import BudgetExceeded, InvalidConfig
from streamdp.core.ledger.runs import NOTHING, Run, added

_FIRST_SWEEP = 1024  # nodes; smaller lists are not worth sweeping
_SPARE = 8  # room for an eighth more accounts: 27 bytes each at most


class Ledger:
    """Charges of dense accounts on ranges of slots, and the filter that keeps them in the budget.

    >>> ledger = Ledger(Fraction(1))
    >>> ledger.grow(1)
    >>> account = np.array([0])
    >>> ledger.book(account, np.array([1]), np.array([8]), epsilon=Fraction(7, 10))
    >>> ledger.book(account, np.array([7]), np.array([9]), epsilon=Fraction(4, 10))
    Traceback (most recent call last):
    streamdp.core.errors.BudgetExceeded: ledger: slots 7 to 8 charged; expected at most 1, got 11/10
    >>> ledger.spent(0, 7), ledger.spent(0, 8)
    (Fraction(7, 10), Fraction(0, 1))
    """

    __slots__ = ("_closed", "_count", "_histories", "_levels", "_tails", "budget")

    def __init__(self, budget: Fraction) -> None:
        _check_exact(budget, "ledger.budget")
        self.budget = budget
        self._count = 0
        self._tails = _Tails(0)
        self._levels = Levels()
        self._histories = Histories()
        self._closed = NOTHING  # the highest charge of closed accounts

    def __len__(self) -> int:
        """How many accounts."""
        return self._count

    def __repr__(self) -> str:
        """Show the budget and the number of accounts."""
        return f"Ledger(budget={self.budget}, accounts={self._count})"

    def grow(self, count: int) -> None:
        """Open `count` more accounts, with nothing charged."""
        needed = self._count + count
        if needed > len(self._tails.start):
            self._tails = self._tails.grown(needed + needed // _SPARE)
        self._count = needed

    def keep(self, accounts: Ints) -> None:
        """Keep only these accounts, renumbered in this order, and close the others.

        The guarantee still counts what these were charged: `highest` does not fall.
        """
        self._closed = self.highest()
        kept = _Tails(len(accounts))
        kept.put(np.arange(len(accounts)), self._tails.rows(accounts))
        self._tails, self._count = kept, len(accounts)

    def book(self, accounts: Ints, starts: Ints, stops: Ints, *, epsilon: Fraction) -> None:
        """Charge many ranges: all of them, or none and raise.

        Fast where each range starts at or after its account's end (the next block) or ends there
        (an estimate on the block just charged), and each account occurs once or with ranges that
        join; anything else is booked one by one.
        """
        self._check(accounts, starts, stops, epsilon)
        if not len(accounts):
            return
        if epsilon > self.budget:
            self._refuse(int(starts[0]), int(stops[0]), epsilon)
        self._histories.sweep(self._tails.history)
        goes_on = (accounts[1:] == accounts[:-1]) & (starts[1:] == stops[:-1])
        if goes_on.any():  # [1,2) and [2,4) of an account are [1,4)
            first, last = np.concatenate([[True], ~goes_on]), np.concatenate([~goes_on, [True]])
            accounts, starts, stops = accounts[first], starts[first], stops[last]
        ordered = accounts if (accounts[1:] > accounts[:-1]).all() else np.sort(accounts)
        if (ordered[1:] == ordered[:-1]).any():
            self._book_in_order(accounts, starts, stops, epsilon)
        elif not self._extended(accounts, starts, stops, epsilon):
            self._book_distinct(accounts, starts, stops, epsilon)

    def spent(self, account: int, slot: int) -> Fraction:
        """What one slot has been charged in total."""
        return self.max_spent(account, slot, slot + 1)

    def max_spent(self, account: int, start: int, stop: int) -> Fraction:
        """The most that any of the slots [start, stop) has been charged in total."""
        most = NOTHING
        for run in takewhile(lambda run: run.stop > start, self._back(account)):
            if run.start < stop:
                most = max(most, run.epsilon)
        return most

    def highest(self) -> Fraction:
        """The most that any slot of any account has been charged: the guarantee so far."""
        used: set[int] = set(np.unique(self._tails.level).tolist())
        alive = self._histories.reachable(self._tails.history)
        used.update(self._histories.nodes[node].level for node in np.flatnonzero(alive).tolist())
        return max(self._closed, *(self._levels.values[level] for level in used))

    def export(self, account: int) -> Iterator[Run]:
        """Every charged slot of an account, as runs in the order of slots; public and exact."""
        return reversed(list(self._back(account)))

    def _back(self, account: int) -> Iterator[Run]:
        self._check_account(account)
        for node in self._histories.back(self._tails.node(account)):
            yield Run(node.start, node.stop, self._levels.values[node.level])

    def _refuse(self, start: int, stop: int, total: Fraction) -> None:
        what = f"slots {start} to {stop - 1} charged"
        expected = f"at most {self.budget}"
        raise BudgetExceeded("ledger", what, expected=expected, got=total)

    def _check_account(self, account: int) -> None:
        if not 0 <= account < self._count:
            expected = f"one of {self._count}"
            raise InvalidConfig("ledger", "no such account", expected=expected, got=account)

    def _check(self, accounts: Ints, starts: Ints, stops: Ints, epsilon: Fraction) -> None:
        _check_exact(epsilon, "ledger.epsilon")
        if not len(accounts) == len(starts) == len(stops):
            expected = f"{len(accounts)} ranges"
            got = f"{len(starts)} starts and {len(stops)} stops"
            raise InvalidConfig("ledger", "uneven", expected=expected, got=got)
        if not len(accounts):
            return
        self._check_account(int(accounts.min()))
        self._check_account(int(accounts.max()))
        wrong = (starts < 1) | (starts >= stops)
        if wrong.any():
            at = int(wrong.argmax())
            expected, got = "slots with 1 ≤ start < stop", f"[{starts[at]}, {stops[at]})"
            raise InvalidConfig("ledger", "no slots", expected=expected, got=got)

    def _extended(self, accounts: Ints, starts: Ints, stops: Ints, epsilon: Fraction) -> bool:
        """Book the common case: every range continues a tail of this charge, or is the first.

        Return whether this was the case; otherwise nothing is booked.
        """
        tails, level = self._tails, self._levels.id_of(epsilon)
        levels = tails.level[accounts]
        first = levels == 0
        if not (((tails.stop[accounts] == starts) & (levels == level)) | first).all():
            return False
        if first.any():
            opened = accounts[first]
            tails.start[opened] = starts[first]
            tails.level[opened] = level
        tails.stop[accounts] = stops
        return True

    def _book_in_order(self, accounts: Ints, starts: Ints, stops: Ints, epsilon: Fraction) -> None:
        """Book any ranges, even several of one account: planned one by one, stored together."""
        planned: dict[int, Node] = {}
        columns = (accounts.tolist(), starts.tolist(), stops.tolist())
        for account, start, stop in zip(*columns, strict=True):
            tail = planned.get(account) or self._tails.node(account)
            planned[account] = self._charged(tail, start, stop, epsilon)
        for account, tail in planned.items():
            self._tails.store(account, tail)

    def _book_distinct(self, accounts: Ints, starts: Ints, stops: Ints, epsilon: Fraction) -> None:
        """Book one range an account: by arrays after or at the end of a tail, else one by one."""
        old = self._tails.rows(accounts)
        first, last, level, history = old.T
        own = self._levels.id_of(epsilon)
        goes_on = (starts == last) & (level == own)
        behind = (starts >= last) & (level != 0) & ~goes_on
        at_end = (starts >= first) & (starts < last) & (stops == last)
        simple = (level == 0) | goes_on | behind | at_end

        new_level = self._lifted(level, at_end, starts, stops, epsilon)
        self._book_in_order(accounts[~simple], starts[~simple], stops[~simple], epsilon)
        pushed = behind | at_end & (starts > first)
        if pushed.any():
            into = old[pushed]
            into[:, 1] = np.minimum(starts[pushed], into[:, 1])  # without the lifted part
            history[pushed] = self._histories.ids_of(into)
        new = np.column_stack([np.where(goes_on, first, starts), stops, new_level, history])
        self._join(new, at_end & ~pushed)
        self._tails.put(accounts[simple], new[simple])

    def _lifted(
        self,
        level: Ints,
        at_end: Bools,
        starts: Ints,
        stops: Ints,
        epsilon: Fraction,
    ) -> Ints:
        """The new level of each range: ε, or ε more than before where it ends a tail."""
        new = np.full(len(level), self._levels.id_of(epsilon))
        for before in np.unique(level[at_end]).tolist():
            lifted = at_end & (level == before)
            total = self._levels.values[before] + epsilon
            if total > self.budget:
                at = int(lifted.argmax())
                self._refuse(int(starts[at]), int(stops[at]), total)
            new[lifted] = self._levels.id_of(total)
        return new

    def _join(self, new: Ints, whole: Bools) -> None:
        """Join a tail that was lifted as a whole with the run before it, if they are equal now."""
        start, _, level, history = new.T
        for number in np.unique(history[whole]).tolist():
            before = self._histories.nodes[number]
            equal = (history == number) & (start == before.stop) & (level == before.level) & whole
            new[equal, 0], new[equal, 3] = before.start, before.history

    def _charged(self, tail: Node, start: int, stop: int, epsilon: Fraction) -> Node:
        """The tail after one more charge; raise if it does not fit. Nothing is stored."""
        touched: list[Run] = []
        values = self._levels.values
        while tail.stop >= start and tail.level:  # a run that ends where the range starts may join
            touched.append(Run(tail.start, tail.stop, values[tail.level]))
            tail = self._histories.nodes[tail.history]
        for run in added([*touched, Run(start, stop, epsilon)]):
            if run.epsilon > self.budget:
                self._refuse(start, stop, run.epsilon)
            before = self._histories.id_of(tail)
            tail = Node(run.start, run.stop, self._levels.id_of(run.epsilon), before)
        return tail


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


class _Tails:
    """The tail of every account as arrays: 24 bytes each, all zero where nothing was charged."""

    __slots__ = ("history", "level", "start", "stop")

    def __init__(self, room: int) -> None:
        self.start = np.zeros(room, dtype=np.int64)
        self.stop = np.zeros(room, dtype=np.int64)
        self.level = np.zeros(room, dtype=np.int32)
        self.history = np.zeros(room, dtype=np.int32)

    def grown(self, room: int) -> _Tails:
        """A copy with more room."""
        larger = _Tails(room)
        for name in self.__slots__:
            column = getattr(self, name)
            getattr(larger, name)[: len(column)] = column
        return larger

    def rows(self, accounts: Ints) -> Ints:
        """Many states as rows of a node's four fields."""
        columns = (self.start, self.stop, self.level, self.history)
        return np.stack([column[accounts] for column in columns], axis=1, dtype=np.int64)

    def put(self, accounts: Ints, rows: Ints) -> None:
        """Store many states."""
        self.start[accounts], self.stop[accounts] = rows[:, 0], rows[:, 1]
        self.level[accounts], self.history[accounts] = rows[:, 2], rows[:, 3]

    def node(self, account: int) -> Node:
        """One state."""
        return Node(
            int(self.start[account]),
            int(self.stop[account]),
            int(self.level[account]),
            int(self.history[account]),
        )

    def store(self, account: int, node: Node) -> None:
        """Store one state."""
        self.start[account], self.stop[account] = node.start, node.stop
        self.level[account], self.history[account] = node.level, node.history


def _check_exact(epsilon: object, where: str) -> None:
    if not isinstance(epsilon, Fraction):
        raise InvalidConfig(where, "not exact", expected="a Fraction", got=type(epsilon).__name__)
    if epsilon <= 0:
        raise InvalidConfig(where, "out of range", expected="more than 0", got=epsilon)
