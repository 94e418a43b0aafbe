"""The state of many learners as arrays, one row per key.

The bank holds each learner's state at one position of the log and nothing else. It draws nothing
and charges nothing: `engine` does.

Columns, one entry per row; adding rows may replace the arrays:

    key, born          who the learner is: a record's key and the offset of its first record
    slots              how many slots it has taken
    block              the block that its next slot, or its latest open one, belongs to
    charged            the first slot that is not paid (`core.engine.charging`)
    first_offset       the first record of the open block
    first_unsaved      the first record that its latest save does not hold (`CLEAN`: none)
    seen               the partition's newest time when the key's latest record came; this and
                       `unsaved_time` only in streams whose keys go idle
    unsaved_time       the partition's newest time when `first_unsaved` came
    tags               the address of its random bits; only under seeded randomness
    private, public    the kind's own columns by name: what the open block's slots added up to, and
                       what is kept of releases
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Field, Ints
from streamdp.core.columns import Column
from streamdp.core.events import Key

CLEAN = np.iinfo(np.int64).max
"""`first_unsaved` of a row whose latest save holds everything."""

_GROWTH = 1.125
_FIRST_ROWS = 64
_AT_ONCE = 1 << 14  # rows moved at once


class Gathered(Mapping[str, NDArray[Any]]):
    """Some rows of columns; each column is gathered when it is asked for."""

    __slots__ = ("_columns", "_rows")

    def __init__(self, columns: Mapping[str, NDArray[Any]], rows: Ints) -> None:
        self._columns, self._rows = columns, rows

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A column's entries: a new array."""
        gathered: NDArray[Any] = self._columns[name][self._rows]
        return gathered

    def __iter__(self) -> Any:
        """The names."""
        return iter(self._columns)

    def __len__(self) -> int:
        """How many columns."""
        return len(self._columns)


class Bank:
    """Rows in arrays that grow as keys come."""

    __slots__ = (
        "_columns", "_kinds", "_rows", "block", "born", "charged", "first_offset", "first_unsaved",
        "keys", "private", "public", "seen", "slots", "tags", "unsaved_time",
    )  # fmt: skip

    block: Ints
    born: Ints
    charged: Ints
    first_offset: Ints
    first_unsaved: Ints
    seen: Ints
    slots: Ints
    tags: NDArray[np.uint8]
    unsaved_time: Ints

    def __init__(
        self,
        *,
        private: Sequence[Field],
        public: Sequence[Field],
        tagged: bool = False,
        aging: bool = False,
    ) -> None:
        """`tagged`: under seeded randomness; `aging`: where the rows of idle keys are dropped.

        A column that is not needed has width 0.
        """
        self.keys: list[Key] = []
        self._rows: dict[Key, int] = {}
        self.private: dict[str, NDArray[Any]] = {}
        self.public: dict[str, NDArray[Any]] = {}
        one, none = (), (0,)
        self._columns = {
            "block": Column(np.int64, one),
            "born": Column(np.int64, one),
            "charged": Column(np.int64, one),
            "first_offset": Column(np.int64, one),
            "first_unsaved": Column(np.int64, one),
            "seen": Column(np.int64, one if aging else none),
            "slots": Column(np.int64, one),
            "tags": Column(np.uint8, (16 if tagged else 0,)),
            "unsaved_time": Column(np.int64, one if aging else none),
        }
        self._kinds = [
            (of, field.name, Column(field.dtype, field.shape))
            for of, fields in ((self.private, private), (self.public, public))
            for field in fields
        ]
        self._grow(_FIRST_ROWS)

    def __len__(self) -> int:
        """How many rows."""
        return len(self.keys)

    def __repr__(self) -> str:
        """Show the number of rows, never their content."""
        return f"Bank({len(self)} rows)"

    def columns(self) -> dict[str, NDArray[Any]]:
        """Every column in use by name."""
        own = {name: getattr(self, name) for name in self._columns}
        return {
            name: column
            for name, column in {**own, **self.public, **self.private}.items()
            if 0 not in column.shape[1:]
        }

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
        self._rows.update(zip(keys, range(begin, begin + len(keys)), strict=True))
        return self._begin(keys, born)

    def rows_of(self, keys: Sequence[Key], born: Ints) -> Ints:
        """The row of each of these keys, all different, added where it has none."""
        begin, count = len(self.keys), len(keys)
        found = map(self._rows.setdefault, keys, range(begin, begin + count))
        rows = np.fromiter(found, dtype=np.int64, count=count)
        new = rows >= begin
        if new.all():
            self._begin(keys, born)
        else:
            rows[new] = self.add(list(compress(keys, new.tolist())), born[new])
        return rows

    def _begin(self, keys: Sequence[Key], born: Ints) -> Ints:
        """Begin the rows after the last one, which belong to these keys."""
        begin = len(self.keys)
        self._make_room(begin + len(keys))
        rows = np.arange(begin, begin + len(keys))
        self.keys.extend(keys)
        self.born[rows] = born
        self.first_offset[rows] = born
        self.first_unsaved[rows] = born
        return rows

    def keep(self, rows: Ints) -> None:
        """Keep only these rows (in ascending order), renumber them, and clear all others."""
        before, count = len(self.keys), len(rows)
        for column in self.columns().values():
            for first in range(0, count, _AT_ONCE):  # a row moves to its place or before it
                some = rows[first : first + _AT_ONCE]
                column[first : first + len(some)] = column[some]
            column[count:before] = 0
        self.keys = [self.keys[row] for row in rows.tolist()]
        self._rows = {key: row for row, key in enumerate(self.keys)}

    def low_time(self, now: int) -> int:
        """The partition's newest time when the oldest unsaved record came."""
        unsaved = self.first_unsaved[: len(self)]
        oldest = int(unsaved.argmin()) if len(unsaved) else 0
        if not len(unsaved) or unsaved[oldest] == CLEAN:
            return now
        return int(self.unsaved_time[oldest])

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
        """Make room; a referenced array cannot grow in place."""
        for name, column in self._columns.items():
            setattr(self, name, None)
            column.grow(room)
            setattr(self, name, column.array)
        for of, name, column in self._kinds:
            of.pop(name, None)
            column.grow(room)
            of[name] = column.array


def first_places(index: Ints, keys: int) -> Ints:
    """Where each key first occurs in a batch; the batch's length where it does not."""
    first = np.full(keys, len(index), dtype=np.int64)
    first[index[::-1]] = np.arange(len(index) - 1, -1, -1)
    return first
