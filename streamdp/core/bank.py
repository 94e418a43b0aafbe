"""The state of many learners as arrays, one row per key.

The bank holds each learner's state at one position of the log and nothing else. It draws nothing
and charges nothing: `engine` does. Sums are int64 and exact; see `grid` for why they cannot
overflow.

Columns, one entry per row; adding rows may replace the arrays:

    key, born          who the learner is: a record's key and the offset of its first record
    slots              how many slots it has taken
    block              the block that its next slot, or its latest open one, belongs to
    window             how many slots of that block count; only for randomly drawn windows
    action             the action in force
    remembered         what the learner's memory keeps of earlier votes; public
    first_offset       the first record of the open block
    first_unsaved      the first record that its latest save does not hold (`CLEAN`: none)
    sums               the window's sums of the open block, K wide; in feedback streams the sums of
                       centred gains of the whole block
    shown              feedback streams: how often the open block showed each arm, K wide
    totals, nulls      the sums of the whole block, and how many of its slots were null; only where
                       estimates are released
    seen               the partition's newest time when the key's latest record came; this and
                       `unsaved_time` only in streams whose keys go idle
    unsaved_time       the partition's newest time when `first_unsaved` came
    tags               the address of its random bits; only under seeded randomness
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.columns import Column
from streamdp.core.events import Key

CLEAN = np.iinfo(np.int64).max
"""`first_unsaved` of a row whose latest save holds everything."""

_GROWTH = 1.125
_FIRST_ROWS = 64
_AT_ONCE = 1 << 14  # rows moved at once


class Bank:
    """Rows in arrays that grow as keys come."""

    __slots__ = (
        "_columns", "_rows", "action", "block", "born", "first_offset", "first_unsaved", "keys",
        "nulls", "remembered", "seen", "shown", "slots", "sums", "tags", "totals", "unsaved_time",
        "window",
    )  # fmt: skip

    action: NDArray[np.int32]
    block: Ints
    born: Ints
    first_offset: Ints
    first_unsaved: Ints
    nulls: Ints
    remembered: NDArray[np.int32] | Ints
    seen: Ints
    shown: Ints
    slots: Ints
    sums: Ints
    tags: NDArray[np.uint8]
    totals: Ints
    unsaved_time: Ints
    window: Ints

    def __init__(
        self,
        actions: int,
        *,
        windows: str,
        whole: str,
        tagged: str,
        remembered: int = 0,
        observes: str = "losses",
        ages: str = "never",
    ) -> None:
        """`windows`: "drawn" or "fixed"; `whole`: "counted" or "summed"; `tagged`: "seeded" or not;
        `remembered`: how many integers the learner's memory keeps of each key; `observes`: "losses"
        or "feedback"; `ages`: "idle" where the rows of idle keys are dropped, or "never".

        A column that these choices make unnecessary has width 0.
        """
        wide = actions if whole == "summed" else 0
        self._columns = {
            "action": Column(np.int32, ()),
            "block": Column(np.int64, ()),
            "born": Column(np.int64, ()),
            "first_offset": Column(np.int64, ()),
            "first_unsaved": Column(np.int64, ()),
            "nulls": Column(np.int64, () if wide else (0,)),
            "remembered": Column(np.int64 if observes == "feedback" else np.int32, (remembered,)),
            "seen": Column(np.int64, () if ages == "idle" else (0,)),
            "shown": Column(np.int64, (actions if observes == "feedback" else 0,)),
            "slots": Column(np.int64, ()),
            "sums": Column(np.int64, (actions,)),
            "tags": Column(np.uint8, (16 if tagged == "seeded" else 0,)),
            "totals": Column(np.int64, (wide,)),
            "unsaved_time": Column(np.int64, () if ages == "idle" else (0,)),
            "window": Column(np.int64, () if windows == "drawn" else (0,)),
        }
        self.keys: list[Key] = []
        self._rows: dict[Key, int] = {}
        self._grow(_FIRST_ROWS)

    def __len__(self) -> int:
        """How many rows."""
        return len(self.keys)

    def __repr__(self) -> str:
        """Show the number of rows, never their content."""
        return f"Bank({len(self)} rows)"

    @property
    def kept(self) -> frozenset[str]:
        """The names of the columns in use."""
        return frozenset(name for name, column in self._columns.items() if 0 not in column.shape)

    def row(self, key: Key) -> int | None:
        """The row of a key, if it has one."""
        return self._rows.get(key)

    def rows(self, keys: Sequence[Key]) -> Ints:
        """The row of each key; -1 where it has none."""
        find = self._rows.get
        return np.fromiter(map(find, keys, repeat(-1)), dtype=np.int64, count=len(keys))

    def add(self, keys: Sequence[Key], born: Ints) -> Ints:
        """Add rows at slot 0 of their first block, in this order; return their numbers."""
        begin = len(self.keys)
        self._make_room(begin + len(keys))
        rows = np.arange(begin, begin + len(keys))
        for row, key in enumerate(keys, start=begin):
            self._rows[key] = row
        self.keys.extend(keys)
        self.born[rows] = born
        self.first_offset[rows] = born
        self.first_unsaved[rows] = born
        return rows

    def keep(self, rows: Ints) -> None:
        """Keep only these rows (in ascending order), renumber them, and clear all others."""
        before, count = len(self.keys), len(rows)
        for name in self.kept:
            column = getattr(self, name)
            for first in range(0, count, _AT_ONCE):  # a row moves to its place or before it
                some = rows[first : first + _AT_ONCE]
                column[first : first + len(some)] = column[some]
            column[count:before] = 0
        self.keys = [self.keys[row] for row in rows.tolist()]
        self._rows = {key: row for row, key in enumerate(self.keys)}

    def low_time(self, now: int) -> int:
        """The partition's newest time when the record of `low_water` came."""
        unsaved = self.first_unsaved[: len(self)]
        oldest = int(unsaved.argmin()) if len(unsaved) else 0
        if not len(unsaved) or unsaved[oldest] == CLEAN:
            return now
        return int(self.unsaved_time[oldest])

    def low_water(self, position: int) -> int:
        """The oldest record that a rebuild from the latest saves would have to read again."""
        if not self.keys:
            return position
        return min(position, int(self.first_unsaved[: len(self)].min()))

    def unsaved(self, *, before: int) -> int:
        """How many rows were changed since their save by a record older than `before`."""
        return int(np.count_nonzero(self.first_unsaved[: len(self)] < before))

    def longest_unsaved(self, most: int) -> Ints:
        """At most `most` rows that have changed since their save, the longest unsaved first."""
        unsaved = self.first_unsaved[: len(self)]
        rows = np.flatnonzero(unsaved != CLEAN)
        if len(rows) > most:
            rows = rows[np.argpartition(unsaved[rows], most)[:most]]
        return rows[np.argsort(unsaved[rows], kind="stable")]

    def _make_room(self, rows: int) -> None:
        room = len(self.born)
        if rows > room:
            self._grow(max(rows, int(room * _GROWTH) + _FIRST_ROWS))

    def _grow(self, room: int) -> None:
        for name, column in self._columns.items():
            setattr(self, name, None)  # a referenced array cannot grow in place
            column.grow(room)
            setattr(self, name, column.array)


def first_places(index: Ints, keys: int) -> Ints:
    """Where each key first occurs in a batch; the batch's length where it does not."""
    first = np.full(keys, len(index), dtype=np.int64)
    first[index[::-1]] = np.arange(len(index) - 1, -1, -1)
    return first
