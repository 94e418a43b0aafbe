"""NumPy files: a .npy of n × K losses, or a .npz with `losses` and further columns.

A .npy in float32 is mapped and read as it is, whatever its size: pages are released after reading,
so a log of 10 GB needs some tens of megabytes. Other number types are converted portion by portion.
A row of NaN throughout is an intended null loss; one with some numbers missing or infinite is an
error, or with `on_bad = "null"` a null loss. Finite losses outside [0, 1] are clipped, and counted.

A .npz may also hold `actions` (K names), `keys` (n texts or bytes), `offsets` and `partitions` (n
whole numbers). Its losses are read as a stream, compressed or not.
"""

from __future__ import annotations

import mmap
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from streamdp.core.events import Key, numbered
from streamdp.lab.common.words import first_line
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.log import (
    PORTION_BYTES,
    Columns,
    FileLog,
    Log,
    OnBad,
    Portion,
    check_spelling,
    from_zero,
    named_actions,
    numbered_actions,
    portions_of,
    portions_of_numbers,
    wrong,
)

_CONVERTED_BYTES = 1 << 22
"""Bytes of losses in a portion that has to be converted: the copies are in float64."""


@dataclass(frozen=True, slots=True)
class _Header:
    """The content of a .npy's header."""

    rows: int
    columns: int
    dtype: np.dtype[Any]
    begin: int  # where the numbers begin in the file

    @property
    def row_bytes(self) -> int:
        return self.columns * self.dtype.itemsize

    @property
    def portion(self) -> int:
        """Rows in a portion; more of them where they are read as they are."""
        at_once = PORTION_BYTES if self.dtype == np.dtype(np.float32) else _CONVERTED_BYTES
        return max(1, at_once // (4 * self.columns))


def open_file(path: Path, how: ReadOptions) -> Log:
    """The log in a .npy or .npz."""
    return (_open_archive if path.suffix.lower() == ".npz" else _open_array)(path, how)


def _open_array(path: Path, how: ReadOptions) -> Log:
    """The log in a .npy, which is mapped: one key."""
    where = str(path)
    with path.open("rb") as file:
        header = _header(file, where=where)
    size, needed = path.stat().st_size, header.begin + header.rows * header.row_bytes
    if size < needed:
        raise wrong(where, "cut short", expected=f"{needed} bytes", got=size)
    actions = named_actions(how.actions, numbered_actions(header.columns), where=where)
    parts = tuple(
        _Rows(path, header, range(first, min(first + header.portion, header.rows)), how.on_bad)
        for first in range(0, header.rows, header.portion)
    )
    return FileLog(where, actions, header.rows, parts)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of a .npy."""

    path: Path
    header: _Header
    rows: range
    on_bad: OnBad

    def portions(self) -> Iterator[Portion]:
        """A view of the mapped file, whose pages are released behind it."""
        header, rows = self.header, self.rows
        begin = header.begin + rows.start * header.row_bytes
        page = begin - begin % mmap.ALLOCATIONGRANULARITY
        size = begin - page + len(rows) * header.row_bytes
        with self.path.open("rb") as file:
            pages = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=page)
        table: NDArray[Any] = np.frombuffer(
            pages, header.dtype, count=len(rows) * header.columns, offset=begin - page
        ).reshape(len(rows), header.columns)
        read = [(table, Columns())]
        yield from portions_of_numbers(read, self.on_bad, where=str(self.path), first=rows.start)

    def keyed(self) -> Iterator[Portion]:
        """The rows without losses."""
        yield from portions_of({}, Columns(), self.rows)


@dataclass(frozen=True, slots=True)
class _Archive:
    """A .npz: losses are read as a stream, the other columns are in memory."""

    path: Path
    header: _Header
    beside: dict[str, NDArray[Any]]
    on_bad: OnBad

    def portions(self) -> Iterator[Portion]:
        """The rows, as they are read from the archive."""
        return portions_of_numbers(self._parts(), self.on_bad, where=str(self.path), first=0)

    def keyed(self) -> Iterator[Portion]:
        """The rows without losses."""
        for first in range(0, self.header.rows, self.header.portion):
            rows = range(first, min(first + self.header.portion, self.header.rows))
            yield from portions_of({}, self._columns(slice(rows.start, rows.stop)), rows)

    def _parts(self) -> Iterator[tuple[NDArray[Any], Columns]]:
        header = self.header
        with zipfile.ZipFile(self.path) as archive, archive.open("losses.npy") as file:
            file.seek(header.begin)
            for first in range(0, header.rows, header.portion):
                stop = min(first + header.portion, header.rows)
                raw = file.read((stop - first) * header.row_bytes)
                if len(raw) < (stop - first) * header.row_bytes:
                    got = first + len(raw) // header.row_bytes
                    expected = f"{header.rows} rows"
                    raise wrong(str(self.path), "cut short", expected=expected, got=got)
                losses = np.frombuffer(raw, header.dtype).reshape(-1, header.columns)
                yield losses, self._columns(slice(first, stop))

    def _columns(self, rows: slice) -> Columns:
        keys, offsets, partitions = (
            self.beside[name][rows] if name in self.beside else None
            for name in ("keys", "offsets", "partitions")
        )
        named = None if keys is None else numbered([as_key(key) for key in keys.tolist()])
        return Columns(named, offsets, partitions)


def as_key(value: object) -> Key:
    """A key in the transports' form: bytes, or None for the null key."""
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def _header(file: IO[bytes], *, where: str) -> _Header:
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, OSError, EOFError) as error:
        raise wrong(
            where, "not a NumPy array", expected="a .npy header", got=first_line(error)
        ) from None
    if len(shape) != 2:
        raise wrong(where, "wrong shape", expected="n rows of K losses", got=shape)
    if dtype.kind not in "fiub":
        raise wrong(where, "wrong type", expected="numbers", got=dtype)
    if fortran:
        raise wrong(where, "stored by columns", expected="rows (C order)", got="Fortran order")
    if shape[0] < 1 or shape[1] < 2:
        raise wrong(where, "empty", expected="rows of at least 2 losses", got=shape)
    return _Header(int(shape[0]), int(shape[1]), dtype, file.tell())


def _open_archive(path: Path, how: ReadOptions) -> Log:
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if "losses.npy" not in archive.namelist():
                raise wrong(where, "no array `losses`", expected="losses", got=archive.namelist())
            with archive.open("losses.npy") as file:
                header = _header(file, where=f"{where}: losses")
        with np.load(path, allow_pickle=False) as arrays:
            beside = {name: arrays[name] for name in arrays.files if name != "losses"}
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        if isinstance(error, ValueError) and type(error) is not ValueError:
            raise
        expected = "a .npz of arrays of numbers and texts"
        raise wrong(where, "cannot be read", expected=expected, got=first_line(error)) from None
    check_spelling(beside, ("keys", "offsets", "partitions"), where=where)
    for name, array in beside.items():
        if name in ("keys", "offsets", "partitions") and array.shape != (header.rows,):
            raise wrong(f"{where}: {name}", "length", expected=header.rows, got=array.shape)
    actions = [str(name) for name in beside["actions"].tolist()] if "actions" in beside else None
    if actions is not None and len(actions) != header.columns:
        raise wrong(f"{where}: actions", "length", expected=header.columns, got=len(actions))
    for name in [name for name in ("offsets", "partitions") if name in beside]:
        dtype = beside[name].dtype
        if dtype.kind not in "iu":
            raise wrong(f"{where}: {name}", "type", expected="whole numbers", got=dtype)
        beside[name] = from_zero(beside[name], where=f"{where}: {name}")
    names = named_actions(how.actions, actions or numbered_actions(header.columns), where=where)
    archived = _Archive(path, header, beside, how.on_bad)
    return FileLog(where, names, header.rows, (archived,))
