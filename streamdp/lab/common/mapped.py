"""Arrays that are too long for memory: in files that are mapped and have no names.

Such a file lasts as long as its array. Another process of this machine that is sent the array gets
the place of the file, so what one process lays out all map, and nobody copies it. What was read or
written stays in memory until it is let go (`let_go`), so it is let go piece by piece.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from tempfile import TemporaryFile
from typing import IO, Any, Literal
from weakref import finalize

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamdp.core.arrays import Ints

_IN_MEMORY = 1 << 21  # bytes of columns
_SORTED = 1 << 22  # bytes of rows that are brought in order at once

Arrays = tuple[NDArray[Any], ...]


class Mapped(np.memmap[Any, Any]):
    """A mapped array, which processes of this machine are sent as the place of its file."""

    _place: str | None = None  # of the file of a whole array, never of a part of one
    _mode: Literal["r", "r+"] = "r"  # in which other processes map it
    _file: IO[bytes] | None = None  # of a whole array that this process made

    @classmethod
    def of(
        cls,
        file: IO[bytes],
        kind: DTypeLike,
        mode: Any,
        shape: Any = None,
        *,
        others: Literal["r", "r+"] = "r",
    ) -> Mapped:
        """All of a file without a name, which is kept as long as the array."""
        array = cls(file, kind, mode, shape=shape)
        array._place, array._mode, array._file = place_of(file), others, file
        finalize(array, file.close)
        return array

    @classmethod
    def at(cls, place: str, kind: DTypeLike, shape: Any, mode: Literal["r", "r+"]) -> Mapped:
        """An array of another process of this machine."""
        array = cls(place, kind, mode, shape=shape)
        array._place = place
        return array

    def longer(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """The same rows and more, in the same file: nothing is copied."""
        assert self._file is not None
        again = os.fdopen(os.dup(self._file.fileno()), "r+b")
        return Mapped.of(again, self.dtype, "r+", shape)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The place of the file; the content of a part of an array."""
        if self._place is None:
            return np.asarray(self).__reduce_ex__(protocol)
        return Mapped.at, (self._place, self.dtype, self.shape, self._mode)


def place_of(file: IO[bytes]) -> str:
    """Where other processes of this machine find an open file that has no name."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def held(shape: tuple[int, ...], kind: DTypeLike) -> NDArray[Any]:
    """An array of zeros: in memory, or in a mapped file without a name where it is large."""
    if int(np.prod(shape)) * np.dtype(kind).itemsize <= _IN_MEMORY:
        return np.zeros(shape, kind)
    return Mapped.of(TemporaryFile(), kind, "w+", shape)


def shared(shape: tuple[int, ...], kind: DTypeLike) -> NDArray[Any]:
    """A mapped array of zeros, into which other processes of this machine may write."""
    return Mapped.of(TemporaryFile(), kind, "w+", shape, others="r+")


def grown(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """An array with room for this many rows, held as `held` does: new rows are zeros."""
    if rows <= len(array):
        return array
    shape = (max(rows, 2 * len(array)), *array.shape[1:])
    if isinstance(array, Mapped):
        return array.longer(shape)
    more = held(shape, array.dtype)
    more[: len(array)] = array
    let_go(more)
    return more


def let_go(*arrays: NDArray[Any]) -> None:
    """Release the memory of arrays that are mapped: what is in them stays in their files."""
    for array in arrays:
        if isinstance(array, np.memmap):
            array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


class Gathered:
    """Columns that grow: in memory while they are short, then in files without names."""

    __slots__ = ("_files", "_held", "_rows", "_size")

    def __init__(self) -> None:
        self._held: list[Arrays] = []
        self._size = self._rows = 0
        self._files: list[IO[bytes]] = []

    def add(self, columns: Arrays) -> None:
        """Add rows, of the same types as before."""
        self._held.append(columns)
        self._rows += len(columns[0])
        self._size += sum(column.nbytes for column in columns)
        if self._size > _IN_MEMORY:
            self._spill()

    def columns(self) -> Arrays:
        """All rows: arrays, or mapped files, which last as long as these."""
        if not self._files:
            return tuple(map(np.concatenate, zip(*self._held, strict=True)))
        like = self._held[-1]
        self._spill()
        for file in self._files:
            file.flush()
        return tuple(
            Mapped.of(file, of.dtype, "r", (self._rows, *of.shape[1:]))
            for file, of in zip(self._files, like, strict=True)
        )

    def _spill(self) -> None:
        if not self._files:
            self._files = [TemporaryFile() for _ in self._held[0]]  # noqa: SIM115 - see `columns`
        for file, columns in zip(self._files, zip(*self._held, strict=True), strict=True):
            for column in columns:
                file.write(np.ascontiguousarray(column).data)
        self._held, self._size = [tuple(column[:0] for column in self._held[-1])], 0


def longest_first(counts: Ints) -> Ints:
    """The keys with these numbers of rows in the order in which they are laid out and played."""
    order: Ints = np.argsort(-counts, kind="stable")
    return order


def begins_of(order: Ints, counts: Ints) -> Ints:
    """Where the rows of each key begin, if keys with these numbers of rows lie in an order."""
    begins = np.empty_like(counts)
    begins[order] = np.cumsum(counts[order]) - counts[order]
    return begins


def by_key(
    counts: Ints,
    chunks: Iterable[tuple[NDArray[Any], Arrays]],
    like: Sequence[tuple[DTypeLike, int]],
    order: Ints | None = None,
) -> Arrays:
    """Rows key by key, the longest key first or in an order, and of a key in their order.

    `counts` are the rows of each key; chunks say of each row its key, and its columns, which have
    these types and widths (0: a number). Rows are first brought together by keys that follow one
    another, then each such run is sorted, so only as much as one run is in memory.
    """
    order, n = longest_first(counts) if order is None else order, int(counts.sum())
    rank = np.empty(len(counts), np.int32)
    rank[order] = np.arange(len(counts))
    ends = np.cumsum(counts[order])
    starts, edges = ends - counts[order], [0]
    at_once = _SORTED // sum(np.dtype(kind).itemsize * max(1, width) for kind, width in like)
    while edges[-1] < len(order):
        beyond = int(np.searchsorted(ends, starts[edges[-1]] + at_once, side="right"))
        edges.append(max(edges[-1] + 1, beyond))
    run = _narrow(np.repeat(np.arange(len(edges) - 1), np.diff(edges))[rank])
    begins = np.append(starts[edges[:-1]], n)
    free = begins[:-1].copy()
    laid = [held((n, width) if width else (n,), kind) for kind, width in ((np.int32, 0), *like)]
    for key, columns in chunks:
        of, sizes = run[key], np.bincount(run[key], minlength=len(free))
        at = np.argsort(of, kind="stable")
        places = (free - np.cumsum(sizes) + sizes)[of[at]] + np.arange(len(at))
        free += sizes
        for own, column in zip(laid, (rank[key], *columns), strict=True):
            own[places] = column[at]
        let_go(*laid)
    for (first, last), (begin, end) in zip(pairwise(edges), pairwise(begins.tolist()), strict=True):
        if last > first + 1:
            at = np.argsort(_narrow(laid[0][begin:end] - first), kind="stable")
            for own in laid[1:]:
                own[begin:end] = own[begin:end][at]
        let_go(*laid)
    return tuple(laid[1:])


def _narrow(numbers: Ints) -> NDArray[Any]:
    """Numbers from 0 on in a type that is sorted fast: of up to two bytes by counting."""
    return numbers.astype(np.min_scalar_type(numbers.max(initial=0)))
