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

from streamdp.core.events import Key
from streamdp.lab.replay.clipping import narrowed
from streamdp.lab.replay.log import (
    PORTION_BYTES,
    START,
    Columns,
    Log,
    OnBad,
    Portion,
    Position,
    check_spelling,
    check_usable,
    from_zero,
    named_actions,
    numbered_actions,
    portions_of,
    wrong,
)
from streamdp.lab.replay.sources import ReadOptions, file_identity

_CONVERTED_BYTES = 1 << 22
"""Bytes of losses in a portion that has to be converted: the copies are in float64."""


@dataclass(frozen=True, slots=True)
class _Table:
    """The content of a .npy's header."""

    rows: int
    columns: int
    dtype: np.dtype[Any]
    begin: int  # where the numbers begin in the file

    @property
    def row_bytes(self) -> int:
        return self.columns * self.dtype.itemsize

    @property
    def ready(self) -> bool:
        """Whether the rows are float32 in this machine's byte order."""
        return bool(self.dtype == np.dtype(np.float32))

    @property
    def portion(self) -> int:
        """Rows in a portion."""
        return max(1, (PORTION_BYTES if self.ready else _CONVERTED_BYTES) // (4 * self.columns))


def open_file(path: Path, how: ReadOptions) -> Log:
    """The log in a .npy or .npz."""
    if path.suffix.lower() == ".npz":
        return _open_archive(path, how)
    with path.open("rb") as file:
        table = _header(file, where=str(path))
    size, needed = path.stat().st_size, table.begin + table.rows * table.row_bytes
    if size < needed:
        raise wrong(str(path), "cut short", expected=f"{needed} bytes", got=size)
    actions = named_actions(how.actions, numbered_actions(table.columns), where=str(path))
    return MappedLog(path, actions, table, how.on_bad)


@dataclass(frozen=True, slots=True)
class MappedLog:
    """A .npy that is mapped into memory, one key."""

    path: Path
    actions: tuple[str, ...]
    table: _Table
    on_bad: OnBad

    @property
    def name(self) -> str:
        """The file's name."""
        return str(self.path)

    @property
    def slots(self) -> int:
        """One for each row."""
        return self.table.rows

    def identity(self) -> str:
        """Path, size and time of change."""
        return file_identity(self.path, actions=self.actions)

    def portions(self, start: Position = START) -> Iterator[Portion]:
        """Views of the mapped file; its pages are released after each."""
        table, step = self.table, self.table.portion
        with self.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        rows: NDArray[Any] = np.frombuffer(
            mapped, table.dtype, count=table.rows * table.columns, offset=table.begin
        ).reshape(table.rows, table.columns)
        released = 0
        for first in range(start.get("row", 0), table.rows, step):
            stop = min(first + step, table.rows)
            part = rows[first:stop]
            check_usable(part, self.on_bad, where=self.name, rows=range(first, stop))
            losses, clipped = _as_float32(part, table)
            after = {"row": stop}
            yield from portions_of(losses, Columns(), first=first, after=after, clipped=clipped)
            page = (table.begin + stop * table.row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
            if page > released:
                mapped.madvise(mmap.MADV_DONTNEED, released, page - released)
                released = page


@dataclass(frozen=True, slots=True)
class ArchivedLog:
    """A .npz: losses are read as a stream, the other columns are in memory."""

    path: Path
    actions: tuple[str, ...]
    table: _Table
    keys: NDArray[Any] | None
    offsets: NDArray[np.int64] | None
    partitions: NDArray[np.int64] | None
    on_bad: OnBad

    @property
    def name(self) -> str:
        """The file's name."""
        return str(self.path)

    @property
    def slots(self) -> int:
        """One for each row."""
        return self.table.rows

    def identity(self) -> str:
        """Path, size and time of change."""
        return file_identity(self.path, actions=self.actions)

    def portions(self, start: Position = START) -> Iterator[Portion]:
        """The rows, as they are read from the archive."""
        table = self.table
        begin = start.get("row", 0)
        with zipfile.ZipFile(self.path) as archive, archive.open("losses.npy") as file:
            file.seek(table.begin + begin * table.row_bytes)
            for first in range(begin, table.rows, table.portion):
                stop = min(first + table.portion, table.rows)
                raw = file.read((stop - first) * table.row_bytes)
                if len(raw) < (stop - first) * table.row_bytes:
                    got = first + len(raw) // table.row_bytes
                    raise wrong(self.name, "cut short", expected=f"{table.rows} rows", got=got)
                part = np.frombuffer(raw, table.dtype).reshape(-1, table.columns)
                check_usable(part, self.on_bad, where=self.name, rows=range(first, stop))
                losses, clipped = _as_float32(part, table)
                columns, after = self._columns(slice(first, stop)), {"row": stop}
                yield from portions_of(losses, columns, first=first, after=after, clipped=clipped)

    def _columns(self, part: slice) -> Columns:
        return Columns(
            None if self.keys is None else [as_key(key) for key in self.keys[part].tolist()],
            None if self.offsets is None else self.offsets[part],
            None if self.partitions is None else self.partitions[part],
        )


def _as_float32(part: NDArray[Any], table: _Table) -> tuple[NDArray[np.float32], int]:
    """Rows as float32, and how many were clipped by that: none if they are float32 already."""
    return (part, 0) if table.ready else narrowed(part, actions=table.columns)


def as_key(value: object) -> Key:
    """A key in the transports' form: bytes, or None for the null key."""
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def _header(file: IO[bytes], *, where: str) -> _Table:
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, OSError, EOFError) as error:
        raise wrong(
            where, "not a NumPy array", expected="a .npy header", got=_first_line(error)
        ) from None
    if len(shape) != 2:
        raise wrong(where, "wrong shape", expected="n rows of K losses", got=shape)
    if dtype.kind not in "fiub":
        raise wrong(where, "wrong type", expected="numbers", got=dtype)
    if fortran:
        raise wrong(where, "stored by columns", expected="rows (C order)", got="Fortran order")
    if shape[0] < 1 or shape[1] < 2:
        raise wrong(where, "empty", expected="rows of at least 2 losses", got=shape)
    return _Table(int(shape[0]), int(shape[1]), dtype, file.tell())


def _open_archive(path: Path, how: ReadOptions) -> Log:
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if "losses.npy" not in archive.namelist():
                raise wrong(where, "no array `losses`", expected="losses", got=archive.namelist())
            with archive.open("losses.npy") as file:
                table = _header(file, where=f"{where}: losses")
        with np.load(path, allow_pickle=False) as arrays:
            beside = {name: arrays[name] for name in arrays.files if name != "losses"}
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        if isinstance(error, ValueError) and type(error) is not ValueError:
            raise
        expected = "a .npz of arrays of numbers and texts"
        raise wrong(where, "cannot be read", expected=expected, got=_first_line(error)) from None
    check_spelling(beside, ("keys", "offsets", "partitions"), where=where)
    for name, array in beside.items():
        if name in ("keys", "offsets", "partitions") and array.shape != (table.rows,):
            raise wrong(f"{where}: {name}", "length", expected=table.rows, got=array.shape)
    actions = [str(name) for name in beside["actions"].tolist()] if "actions" in beside else None
    if actions is not None and len(actions) != table.columns:
        raise wrong(f"{where}: actions", "length", expected=table.columns, got=len(actions))
    return ArchivedLog(
        path,
        named_actions(how.actions, actions or numbered_actions(table.columns), where=where),
        table,
        beside.get("keys"),
        _whole(beside, "offsets", where),
        _whole(beside, "partitions", where),
        how.on_bad,
    )


def _whole(beside: dict[str, Any], name: str, where: str) -> NDArray[np.int64] | None:
    if name not in beside:
        return None
    if beside[name].dtype.kind not in "iu":
        raise wrong(f"{where}: {name}", "type", expected="whole numbers", got=beside[name].dtype)
    return from_zero(beside[name], where=f"{where}: {name}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
