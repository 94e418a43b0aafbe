"""Arrays that grow in place, without a second copy of their rows.

An array that grows by copying is in memory twice for a moment, and the holes that its earlier
copies leave are too small for the next one: with many keys that was a third of a service's memory.
A large column therefore has a memory mapping of its own, which the system extends by moving page
tables; rows that were never written take no memory. While something still references the old array,
and on systems other than Linux, the column is copied instead.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

_LARGE = 1 << 20
"""Bytes from which a column gets a mapping of its own."""

_LINUX = hasattr(mmap, "MADV_HUGEPAGE")
"""Other systems cannot extend a mapping: there every column is copied."""


@dataclass(slots=True, repr=False)
class Column:
    """A growing array; read `array` again after each `grow`."""

    kind: type[np.generic]
    shape: tuple[int, ...]  # of one row
    array: Array = field(init=False)
    _memory: mmap.mmap | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Begin with no rows."""
        self.array = np.zeros((0, *self.shape), dtype=self.kind)

    def grow(self, rows: int) -> None:
        """Extend the array to so many rows; new rows are zeros."""
        if self._stretch(rows):
            return
        old, self.array = self.array, self._zeros(rows)
        self.array[: len(old)] = old

    def _bytes(self, rows: int) -> int:
        return rows * prod(self.shape) * np.dtype(self.kind).itemsize

    def _stretch(self, rows: int) -> bool:
        """Extend the mapping in place; False if there is none or the system refuses."""
        if self._memory is None:
            return False
        before = len(self.array)
        self.array = np.zeros((0, *self.shape), dtype=self.kind)  # a view would forbid the resize
        try:
            self._memory.resize(self._bytes(rows))
        except (BufferError, OSError, SystemError, ValueError):
            self.array = self._view(before)
            return False
        self.array = self._view(rows)
        return True

    def _zeros(self, rows: int) -> Array:
        self._memory = None
        if self._bytes(rows) < _LARGE or not _LINUX:
            return np.zeros((rows, *self.shape), dtype=self.kind)
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, self._bytes(rows), flags=private)
        with suppress(OSError):  # numpy does the same; a kernel may have no huge pages
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        return self._view(rows)

    def _view(self, rows: int) -> Array:
        assert self._memory is not None
        count = rows * prod(self.shape)
        return np.frombuffer(self._memory, dtype=self.kind, count=count).reshape(rows, *self.shape)
