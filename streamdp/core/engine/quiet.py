"""A batch of one slot inside a block: nothing begins, nothing ends, only a sum grows.

Such a slot draws nothing and is charged nothing, so all it does is arithmetic on one row, and that
needs none of the arrays by which `plan` and `waves` lay out many slots. What decides whether a slot
is of this kind is public: the batch's length, the key, the slot number and the learner. Every
birth, draw and charge goes through `plan`, `charges` and `waves`, also for one slot alone.

Privacy: the row's sums, totals, nulls and offsets become exactly what the long way makes of them
(`tests/test_quiet.py` holds them side by side, and the audit runs designs slot by slot).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from streamdp.core.bank import CLEAN, Bank
from streamdp.core.engine.operator import NotPrivate
from streamdp.core.events import LossBatch
from streamdp.core.grid import Quantiser, unshift
from streamdp.core.learners.leader import Leader
from streamdp.core.schedule import LAST_SLOT

_BLOCKS_REMEMBERED = 1024
_ONE = np.array(1)


class Quiet:
    """Takes the slots of one bank that begin and end nothing, one at a time."""

    __slots__ = ("_bank", "_bounds", "_counts_whole", "_learner", "_not_private", "_quantiser")

    def __init__(
        self, *, learner: Leader, bank: Bank, counts_whole: object, not_private: NotPrivate | None
    ) -> None:
        """`counts_whole`: whether totals and nulls of whole blocks are kept (for estimates)."""
        schedule = learner.schedule
        self._learner, self._bank, self._not_private = learner, bank, not_private
        self._counts_whole = bool(counts_whole)
        self._quantiser = Quantiser(len(learner.actions))
        self._bounds = lru_cache(maxsize=_BLOCKS_REMEMBERED)(
            lambda block: (schedule.start(block), schedule.stop(block))
        )

    def row(self, batch: LossBatch) -> int | None:
        """The row of the batch's only slot, if that begins and ends nothing; public."""
        if len(batch.index) != 1 or self._learner.resample != "none":
            return None
        row = self._bank.row(batch.keys[int(batch.index[0])])
        if row is None:
            return None
        slot = int(self._bank.slots[row]) + 1
        start, stop = self._bounds(int(self._bank.block[row]))
        drawn_here = slot == start and self._learner.window == "random_prefix"
        inside = start <= slot < stop - 1 and slot <= LAST_SLOT
        return row if inside and not drawn_here else None

    def take(self, batch: LossBatch, row: int) -> None:
        """Add the only slot of a checked batch to its row."""
        bank = self._bank
        shifted, null = self._quantiser.shift(batch.losses)
        self._add(row, unshift(shifted[0].view(np.uint32), _ONE), null)
        if bank.slots[row] + 1 == self._bounds(int(bank.block[row]))[0]:
            bank.first_offset[row] = batch.offsets[0]
        bank.slots[row] += 1
        if bank.first_unsaved[row] == CLEAN:
            bank.first_unsaved[row] = batch.offsets[0]

    def _add(self, row: int, losses: NDArray[np.uint32], null: NDArray[np.bool_]) -> None:
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
        start, _ = self._bounds(int(self._bank.block[row]))
        return bool(self._bank.slots[row] + 1 - start < self._bank.window[row])
