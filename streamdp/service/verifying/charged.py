"""What the lines of one partition charge, as ranges of records with a number for the amount."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Bools, Ints, Table
from streamdp.core.ledger import TopicCharges

_AT_ONCE = 1 << 16  # rows that are looked at
_NOTHING = Fraction(0)


@dataclass(slots=True)
class ChargeNumbers:
    """Charges by number; 0 stands for nothing."""

    amounts: list[Fraction] = field(default_factory=lambda: [_NOTHING])
    _numbers: dict[Fraction, int] = field(default_factory=lambda: {_NOTHING: 0})

    def number(self, amount: Fraction) -> int:
        """The number of a charge."""
        if amount not in self._numbers:
            self._numbers[amount] = len(self.amounts)
            self.amounts.append(amount)
        return self._numbers[amount]

    def added(self, some: Ints, others: Ints) -> list[int]:
        """The numbers of sums."""
        pairs = zip(some.tolist(), others.tolist(), strict=True)
        return [self.number(self.amounts[one] + self.amounts[other]) for one, other in pairs]

    def more(self, some: Ints, others: Ints) -> Bools:
        """Where the first is more than the second."""
        amounts = np.array(self.amounts, dtype=object)
        return np.asarray(amounts[some] > amounts[others], dtype=np.bool_)


class BookedCharges:
    """Charges on records, from offset to offset, by the row of a key.

    A row has the charge of its newest block, and those of the blocks before it that were charged
    alike as one run.
    """

    def __init__(self, levels: ChargeNumbers) -> None:
        self._levels = levels
        self._runs: list[TopicCharges] = []

    def book(self, row: Ints, first: Ints, last: Ints, level: Ints) -> None:
        """Book charges on records, from offset to offset."""
        some = np.flatnonzero((level > 0) & (last >= first))
        if len(some):
            columns = (of[some].astype(np.int64) for of in (row, first, last, level))
            self._runs.append(TopicCharges(*columns))

    def with_newest(self, rows: Ints, of: Table, *, closes: Bools) -> Table:
        """The rows with the newest block among those before it; runs that end are booked.

        Two blocks may share a record (a frame with slots in both): its highest charge counts.
        """
        begun, runs, first = of["begun"].copy(), of["run_level"] > 0, of["first_offset"].copy()
        anew = begun & ~(runs & (of["run_level"] == of["level"]))
        shared = np.flatnonzero(anew & runs & (first == of["run_last"]))
        if len(shared):
            more = self._levels.more(of["level"][shared], of["run_level"][shared])
            of["run_last"][shared[more]] -= 1
            first[shared[~more]] += 1
        for ends in (anew, closes):
            run = of[ends]
            self.book(rows[ends], run["run_first"], run["run_last"], run["run_level"])
            if ends is anew:
                of["run_last"][begun] = of["last_offset"][begun]
                of["run_first"][anew], of["run_level"][anew] = first[anew], of["level"][anew]
        of["run_level"][closes], of["begun"] = 0, False
        return of

    def book_newest(self, some: Table, first: int = 0) -> None:
        """Book the blocks of all these rows, of which the first has this number."""
        rows = np.arange(first, first + len(some))
        self.with_newest(rows, some, closes=np.ones(len(some), dtype=np.bool_))

    def so_far(self, rows: Table) -> TopicCharges:
        """All charges by key, also of blocks that may still go on; the rows stay as they are."""
        runs = list(self._runs)
        for first in range(0, len(rows), _AT_ONCE):
            self.book_newest(rows[first : first + _AT_ONCE].copy(), first)
        runs, self._runs = self._runs, runs
        return TopicCharges.joined(runs)
