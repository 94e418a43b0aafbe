"""Charges: before anything is drawn from a block, its slots are marked paid (P6).

1. A stream that could charge a slot beyond its share of the budget does not start: the tariff
   (`core.kinds.tariff`) is refused when the engine is made. So nothing is refused for the budget
   while it runs. What is left to hold is that each block ends once.
2. `Bank.charged` is, for each row, the *first slot that is not paid*. A block that ends must begin
   there. Its end is the next one. (The number of the block alone would miss gaps and overlaps.)
3. A row that is born begins to pay at the first slot of the block it opens with.
4. All ends of a batch are checked before anything is written: a batch that is refused changes
   nothing. Several ends of one row follow each other.
5. Only what was paid for is drawn, and each block once: `BlockEnds.take` hands out what a draw
   needs, after `pay` and never twice.

Whether a batch is refused follows from slot numbers alone, which are public.

What a slot was charged is a function of its block's length, so nothing else is stored. After a
rebuild `charged` follows from the row: the first slot of its open block. That proves nothing across
a crash; `engine.rebuilding` says what does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Bools, Ints
from streamdp.core.bank import Bank
from streamdp.core.engine.plan import Plan
from streamdp.core.errors import BudgetExceeded
from streamdp.core.events import Key
from streamdp.core.kinds.kind import BlockRelease
from streamdp.core.kinds.tariff import Tariff
from streamdp.core.ledger import Run
from streamdp.core.schedule import Schedule


@dataclass(frozen=True, slots=True, repr=False)
class BlockEnds:
    """Blocks that end in one batch, ordered by row and block."""

    rows: Ints
    block: Ints
    start: Ints
    stop: Ints
    due: tuple[Bools, ...]  # by release: which of the blocks pay for it
    payable: Bools  # which are paid and not drawn yet

    def pay(self, charged: Ints) -> None:
        """Mark their slots paid; call it once, after `ends_of` has checked them."""
        charged[self.rows] = self.stop  # of several ends of a row the last one counts
        self.payable[:] = True

    def take(self, at: Ints) -> tuple[Ints, Ints, Ints, Ints, tuple[Bools, ...]]:
        """Rows, blocks, starts, stops and due releases of some ends, to draw from, once."""
        if not self.payable[at].all():
            raise BudgetExceeded(
                "charge",
                "a draw that is not paid for",
                expected="each block drawn once, after its charge",
                got=f"block {self.block[at][~self.payable[at]][0]}",
            )
        self.payable[at] = False
        return (
            self.rows[at], self.block[at], self.start[at], self.stop[at],
            tuple(due[at] for due in self.due),
        )  # fmt: skip


def ends_of(planned: Plan, bank: Bank, releases: tuple[BlockRelease, ...]) -> BlockEnds:
    """The blocks that a plan ends, checked; nothing changes."""
    segments = planned.slots.segments
    closing = np.flatnonzero(segments.closes)
    rows, block = planned.slots.segment_rows[closing], segments.block[closing]
    start, stop = segments.start[closing], segments.stop[closing]
    due = tuple(release.due(stop - start) for release in releases)
    new = rows - len(bank)
    expected = np.empty_like(start)
    expected[new < 0] = bank.charged[rows[new < 0]]
    expected[new >= 0] = planned.begin[new[new >= 0]]
    follows = rows[1:] == rows[:-1]
    expected[1:][follows] = stop[:-1][follows]
    if (start != expected).any():
        at = int((start != expected).argmax())
        raise BudgetExceeded(
            "charge",
            f"slots {start[at]} to {stop[at] - 1} are charged out of turn",
            expected=f"slot {expected[at]}, the first that is not paid",
            got=f"slot {start[at]}",
        )
    apart = rows[1:][~follows]
    if (apart <= rows[:-1][~follows]).any() and len(np.unique(rows)) <= len(apart):
        raise BudgetExceeded(
            "charge", "a row in two places", expected="its blocks together", got="others between"
        )
    return BlockEnds(rows, block, start, stop, due, np.zeros(len(rows), dtype=np.bool_))


@dataclass(frozen=True, slots=True)
class Charges:
    """The charges, by key. Public: they follow from slot numbers.

    A learner that carried over begins with a later block than the first, and its row does not say
    with which one: the slots before that block count as charged too, though the learner never had
    them. So the figures may be too high but never too low. The record of charges is the ledger
    topic, not this.
    """

    tariff: Tariff | None  # None: not private
    schedule: Schedule
    bank: Bank
    furthest: int  # the first slot that no row has ever paid, rows that were dropped included

    def spent(self, key: Key, *, slot: int) -> Fraction:
        """What one slot of a key has been charged in total."""
        return self.max_spent(key, start=slot, stop=slot + 1)

    def max_spent(self, key: Key, *, start: int, stop: int) -> Fraction:
        """The most that any of the slots [start, stop) of a key has been charged."""
        row = self.bank.row(key)
        if row is None:
            return Fraction(0)
        runs = self._runs(int(self.bank.charged[row]))
        of = (run.epsilon for run in runs if run.start < stop and start < run.stop)
        return max(of, default=Fraction(0))

    def highest(self) -> Fraction:
        """The most that any slot of any key has been charged: the guarantee so far."""
        return max((run.epsilon for run in self._runs(self.furthest)), default=Fraction(0))

    def export(self) -> Iterator[tuple[Key, Run]]:
        """Every charged stretch of slots, key by key."""
        for row, key in enumerate(self.bank.keys):
            for run in self._runs(int(self.bank.charged[row])):
                yield key, run

    def _runs(self, charged: int) -> Iterator[Run]:
        """What the slots before this one were charged, as runs of equal charges."""
        if self.tariff is None:
            return
        last: Run | None = None
        blocks = self.schedule.block_of(charged)
        for epsilon, begin, end in self.tariff.of_first(blocks, self.schedule):
            run = Run(self.schedule.start(begin), self.schedule.start(end), epsilon)
            if last is not None and last.epsilon == epsilon:
                run = run._replace(start=last.start)
            elif last is not None:
                yield last
            last = run
        if last is not None:
            yield last
