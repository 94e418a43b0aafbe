"""The short way for a batch of one slot inside a block: nothing begins or ends, only a sum grows.

Such a slot draws nothing and is charged nothing: it is arithmetic on one row, which does not need
the arrays by which `plan` and `waves` lay out many slots. Whether a slot may go this way follows
from public facts: the batch's length, the key, the slot number and the learner. Every birth, draw
and charge goes through `plan`, `charges` and `waves`, even for one slot alone.

Privacy: the row's sums, counts, totals, nulls and offsets become exactly what the general way makes
of them (`tests/test_quiet.py` compares the two, and the audit runs designs slot by slot). A slot
that shows a known action and one that shows none take the same steps, since the action may be
content.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools
from streamdp.core.bank import CLEAN, Bank
from streamdp.core.engine.operator import NotPrivate
from streamdp.core.engine.plan import Batch
from streamdp.core.events import FeedbackBatch, LossBatch
from streamdp.core.grid import NULL, Quantiser, unshift
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.learners.leader import Leader
from streamdp.core.schedule import LAST_SLOT, Schedule

_BLOCKS_REMEMBERED = 1024
_ONE = np.array(1)


class Inside:
    """Finds slots that begin and end nothing, and counts them in their row."""

    __slots__ = ("_bank", "bounds")

    def __init__(self, *, schedule: Schedule, bank: Bank) -> None:
        self._bank = bank
        self.bounds = lru_cache(maxsize=_BLOCKS_REMEMBERED)(
            lambda block: (schedule.start(block), schedule.stop(block))
        )

    def row(self, batch: Batch) -> int | None:
        """The row of the batch's only slot, if the slot begins no row and ends no block; public."""
        if len(batch.index) != 1:
            return None
        row = self._bank.row(batch.keys[int(batch.index[0])])
        if row is None:
            return None
        slot = int(self._bank.slots[row]) + 1
        start, stop = self.bounds(int(self._bank.block[row]))
        return row if start <= slot < stop - 1 and slot <= LAST_SLOT else None

    def begins(self, row: int) -> bool:
        """Whether the row's next slot is its block's first."""
        start, _ = self.bounds(int(self._bank.block[row]))
        return bool(self._bank.slots[row] + 1 == start)

    def note(self, batch: Batch, row: int) -> None:
        """Count the batch's only slot, and note its record."""
        bank = self._bank
        if self.begins(row):
            bank.first_offset[row] = batch.offsets[0]
        bank.slots[row] += 1
        clean = bank.first_unsaved[row] == CLEAN
        if clean:
            bank.first_unsaved[row] = batch.offsets[0]
        if batch.times is not None:
            bank.seen[row] = batch.times[0]
            if clean:
                bank.unsaved_time[row] = batch.times[0]


class QuietFeedback:
    """The short way of a feedback stream: adds one gain and one count."""

    __slots__ = ("_arms", "_bank", "_inside")

    def __init__(self, *, learner: PolicyLearner, bank: Bank) -> None:
        self._arms, self._bank = len(learner.actions), bank
        self._inside = Inside(schedule=learner.schedule, bank=bank)

    def row(self, batch: Batch) -> int | None:
        """The row of the batch's only slot, if that begins and ends nothing; public."""
        return self._inside.row(batch)

    def take(self, batch: Batch, row: int) -> None:
        """Add the only slot of a checked batch to its row."""
        assert isinstance(batch, FeedbackBatch)
        played = int(batch.played[0])
        known = int(0 <= played < self._arms)  # a slot of no arm adds 0 to the first one
        self._bank.sums[row, played * known] += known * max(-NULL, min(NULL, int(batch.gain[0])))
        self._bank.shown[row, played * known] += known
        self._inside.note(batch, row)


class Quiet:
    """The short way of a stream of losses."""

    __slots__ = ("_bank", "_counts_whole", "_inside", "_learner", "_not_private", "_quantiser")

    def __init__(
        self, *, learner: Leader, bank: Bank, counts_whole: object, not_private: NotPrivate | None
    ) -> None:
        """`counts_whole`: whether totals and nulls of whole blocks are kept (for estimates)."""
        self._learner, self._bank, self._not_private = learner, bank, not_private
        self._counts_whole = bool(counts_whole)
        self._quantiser = Quantiser(len(learner.actions))
        self._inside = Inside(schedule=learner.schedule, bank=bank)

    def row(self, batch: Batch) -> int | None:
        """The row of the batch's only slot, if that begins and ends nothing; public."""
        row = self._inside.row(batch)
        if row is None or self._learner.resample != "none":
            return None
        drawn_here = self._learner.window == "random_prefix" and self._inside.begins(row)
        return None if drawn_here else row

    def take(self, batch: Batch, row: int) -> None:
        """Add the only slot of a checked batch to its row."""
        assert isinstance(batch, LossBatch)
        shifted, null = self._quantiser.shift(batch.losses)
        self._add(row, unshift(shifted[0].view(np.uint32), _ONE), null)
        self._inside.note(batch, row)

    def _add(self, row: int, losses: NDArray[np.uint32], null: Bools) -> None:
        bank = self._bank
        if self._counts(row):
            bank.sums[row] += losses
        if self._counts_whole:
            bank.totals[row] += losses
            bank.nulls[row] += null[0]
        if self._not_private is not None:
            rows = np.array([row])
            self._not_private.latest_nulls = null
            self._not_private.observe(
                rows,
                bank.action[rows].astype(np.int64),
                losses[None].astype(np.int64),
                null.astype(np.int64),
            )

    def _counts(self, row: int) -> bool:
        """Whether the next slot lies in its block's window."""
        if self._learner.window != "random_prefix":
            return True
        start, _ = self._inside.bounds(int(self._bank.block[row]))
        return bool(self._bank.slots[row] + 1 - start < self._bank.window[row])
