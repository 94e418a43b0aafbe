"""The plan of a batch: which rows its slots belong to and where their blocks end.

It is made from keys, offsets and slot numbers alone; nothing here looks at content or changes
state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import NoneType

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.bank import CLEAN, Bank, first_places
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Batch, Carried, Key
from streamdp.core.schedule import LAST_SLOT, Schedule
from streamdp.core.segments import BatchSlots, Grouped, Segments, cut, group

CarriedOf = Callable[[Sequence[Key], Ints], dict[int, Carried]]
"""Returns what keys that are born at these offsets carry over, by their places."""

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Plan:
    """The slots of a batch by row and block, and the rows that are born."""

    slots: BatchSlots  # without those of keys that get no row
    new: Ints = field(default_factory=lambda: _NONE)
    """Which of the batch's keys are born, in the order of their first records."""
    born: Ints = field(default_factory=lambda: _NONE)  # the offset where each is born
    begin: Ints = field(default_factory=lambda: _NONE)  # the first slot of each
    carried: dict[int, Carried] = field(default_factory=dict)
    """What they carry over, by their places in `new`."""
    refused: int = 0  # how many slots were of keys beyond the limit


class Alone:
    """Lays out one slot of a known row that ends no block: the same arrays, filled anew.

    Most calls with one event are of this form, and laying out arrays would take most of their time.
    Whether a slot is laid out here follows from keys and slot numbers: public. What it adds is
    added by the same code as the slots of any batch; it draws nothing and is charged nothing.
    """

    __slots__ = ("_bank", "_bounds", "_schedule", "slots")

    def __init__(self, bank: Bank, schedule: Schedule) -> None:
        self._bank, self._schedule = bank, schedule
        self._bounds: dict[int, tuple[int, int]] = {}  # of blocks: first slot, one after the last

        def one(number: int = 0) -> Ints:
            return np.full(1, number, dtype=np.int64)

        segments = Segments(
            of=one(), block=one(), start=one(), stop=one(), begin=one(), length=one(1), into=one(),
            closes=np.zeros(1, dtype=np.bool_), wave=one(),
        )  # fmt: skip
        nothing: Batch = None  # type: ignore[assignment]
        self.slots = BatchSlots(nothing, one(), one(), Grouped(one(), one(1), None), segments)

    def lay_out(self, batch: Batch) -> BatchSlots | None:
        """The only slot of a batch, valid until the next call; None if it begins or ends a row's
        learner or block.
        """
        row = self._bank.row(batch.keys[int(batch.index[0])])
        if row is None:
            return None
        taken, block = int(self._bank.slots[row]), int(self._bank.block[row])
        bounds = self._bounds.get(block)
        if bounds is None:
            if len(self._bounds) == _BLOCKS_REMEMBERED:
                self._bounds.clear()
            start, stop = self._schedule.starts(np.array([block, block + 1])).tolist()
            bounds = self._bounds[block] = start, min(stop, LAST_SLOT + 2)  # no slot lies beyond
        start, stop = bounds
        if not start <= taken + 1 < stop - 1:
            return None
        slots = self.slots
        slots.batch, slots.rows[0], slots.taken[0] = batch, row, taken
        slots.segments.block[0], slots.segments.into[0] = block, taken + 1 - start
        return slots

    def note(self, slots: BatchSlots) -> None:
        """Count the slot, and note its record."""
        bank, row, batch = self._bank, int(slots.rows[0]), slots.batch
        offset, clean = batch.offsets[0], bank.first_unsaved[row] == CLEAN
        if not slots.segments.into[0]:
            bank.first_offset[row] = offset
        bank.slots[row] += 1
        if clean:
            bank.first_unsaved[row] = offset
        if batch.times is not None:
            bank.seen[row] = batch.times[0]
            if clean:
                bank.unsaved_time[row] = batch.times[0]


_BLOCKS_REMEMBERED = 1024


def plan(
    bank: Bank,
    schedule: Schedule,
    batch: Batch,
    *,
    limit: int,
    carried_of: CarriedOf,
    away: Collection[Key] = frozenset(),
) -> Plan:
    """Lay a checked batch out over rows; keys beyond `limit` rows get none.

    Keys that are `away` count as if they had their rows: they come back whatever the limit.
    """
    rows = bank.rows(batch.keys)
    first = first_places(batch.index, len(batch.keys)) if (rows < 0).any() else rows
    new = np.flatnonzero((rows < 0) & (first < len(batch.index)))
    new, room = new[np.argsort(first[new], kind="stable")], limit - len(bank)
    if away:
        news = np.array([batch.keys[key] not in away for key in new.tolist()], dtype=np.bool_)
        new = new[~news | (np.cumsum(news) <= room - len(away))]
    else:
        new = new[: max(0, room)]
    born = batch.offsets[first[new]]
    rows[new] = len(bank) + np.arange(len(new))
    keep = rows[batch.index] >= 0
    kept = batch if keep.all() else batch.part(keep)
    grouped = group(kept.index, len(batch.keys))
    touched = rows[grouped.touched]
    taken = np.where(touched < len(bank), bank.slots[np.minimum(touched, len(bank.slots) - 1)], 0)
    carried = carried_of([batch.keys[key] for key in new.tolist()], born) if len(new) else {}
    begin = np.ones(len(new), dtype=np.int64)
    if carried:
        begin[list(carried)] = [schedule.start(known.block) for known in carried.values()]
        fresh = touched >= len(bank)
        taken[fresh] = begin[touched[fresh] - len(bank)] - 1
    if len(taken) and (last := int((taken + grouped.counts).max())) > LAST_SLOT:
        raise InvalidConfig("batch", "too many slots of one key", expected=LAST_SLOT, got=last)
    return Plan(
        slots=BatchSlots(kept, touched, taken, grouped, cut(schedule, grouped, taken)),
        new=new,
        born=born,
        begin=begin,
        carried=carried,
        refused=len(batch.index) - len(kept.index),
    )


def check_keys(keys: Sequence[object]) -> None:
    """Refuse keys that are not bytes or None: a str would get a learner beside its bytes'."""
    kinds = set(map(type, keys))
    if kinds <= {bytes, NoneType}:
        return
    wrong = next((kind for kind in kinds if not issubclass(kind, bytes | None)), None)
    if wrong is not None:
        raise InvalidConfig("key", "no key", expected="bytes, or None", got=wrong.__name__)


def check_order(batch: Batch, *, position: int) -> None:
    """Refuse a wrong or repeated key, an index without a key, and records that come again."""
    n, keys, index, offsets = len(batch.index), batch.keys, batch.index, batch.offsets
    check_keys(keys)
    different = len(set(keys))
    if different != len(keys):
        expected = f"{len(keys)} different keys"
        raise InvalidConfig("batch.keys", "a key twice", expected=expected, got=different)
    if not n:
        return
    low, high = (
        (index[0], index[0]) if n == 1 else (np.minimum.reduce(index), np.maximum.reduce(index))
    )
    if low < 0 or high >= len(keys):
        expected, got = f"0 … {len(keys) - 1}", f"{low} … {high}"
        raise InvalidConfig("batch.index", "no such key", expected=expected, got=got)
    falls = n > 1 and bool((offsets[1:] < offsets[:-1]).any())
    if falls or offsets[0] < position:
        at = int((offsets[1:] < offsets[:-1]).argmax()) + 1 if falls else 0
        got, expected = f"{offsets[at]}, in place {at}", f"rising from {position}"
        raise InvalidConfig("batch.offsets", "a record again", expected=expected, got=got)
