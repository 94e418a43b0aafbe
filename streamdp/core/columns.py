"""Arrays that grow where they are: rows are added without all of them being there twice.

A large array that grows by copying is in memory twice for a moment, and the holes that its earlier
copies leave behind are of little use to anything else: with many keys that was a third of a
service's memory. A large column is therefore memory of its own, which the system extends by moving
page tables; rows that were never written take no memory. Where somebody still looks at the old
array, and on systems other than Linux, it is copied instead.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

_LARGE = 1 << 20
"""Bytes from which a column is memory of its own."""

_LINUX = hasattr(mmap, "MADV_HUGEPAGE")
"""Elsewhere memory cannot be extended, and every array is copied."""


@dataclass(slots=True, repr=False)
class Column:
    """One growing array, zeros at first; after growing, read `array` again."""

    kind: type[np.generic]
    shape: tuple[int, ...]  # of one row
    array: Array = field(init=False)
    _memory: mmap.mmap | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """No rows."""
        self.array = np.zeros((0, *self.shape), dtype=self.kind)

    def grow(self, rows: int) -> None:
        """So many rows: those that there were, then zeros."""
        if self._stretch(rows):
            return
        old, self.array = self.array, self._zeros(rows)
        self.array[: len(old)] = old

    def _bytes(self, rows: int) -> int:
        return rows * int(np.prod(self.shape)) * np.dtype(self.kind).itemsize

    def _stretch(self, rows: int) -> bool:
        """Extend the memory where it is; False if that is not to be had."""
        if self._memory is None:
            return False
        before = len(self.array)
        self.array = np.zeros((0, *self.shape), dtype=self.kind)  # a view of it would hold it
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
        with suppress(OSError):  # as numpy asks for its own; a kernel may have none
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        return self._view(rows)

    def _view(self, rows: int) -> Array:
        assert self._memory is not None
        count = rows * int(np.prod(self.shape))
        return np.frombuffer(self._memory, dtype=self.kind, count=count).reshape(rows, *self.shape)
