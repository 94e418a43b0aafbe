"""Files that a log is written to, row by row; an interrupted write can be resumed.

A target is opened (new, or at a mark), written to, marked (the rows so far are durable) and
finished, which completes the file. A file that was interrupted and resumed at its marks is byte for
byte that of an uninterrupted run.

`.npz` is built in memory and written at the end: it has no marks and cannot be resumed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig, StateMismatch, complaint
from streamdp.lab.replay.chunks import Chunk, nulls
from streamdp.lab.replay.journal import Mark
from streamdp.lab.replay.log import numbered_actions
from streamdp.wire.json_format import short_decimals

_HEADER_BYTES = 128  # of a .npy, whatever its shape
_NUMBERS_AT_ONCE = 1 << 15  # of lines: an array operation for many, and they stay in the cache
_JSON = msgspec.json.Encoder()


class _Line(msgspec.Struct, gc=False):
    """A line of NDJSON; its members are in this order, and UNSET ones are left out."""

    key: str | UnsetType
    offset: int | UnsetType
    partition: int | UnsetType
    losses: object


class Target(Protocol):
    """A file that grows."""

    def write(self, chunk: Chunk) -> None:
        """Append rows."""
        ...

    def mark(self) -> Mark | None:
        """Make the rows so far durable; return where to resume (None: cannot be resumed)."""
        ...

    def finish(self) -> Path:
        """Complete the file; return its path."""
        ...

    def close(self) -> None:
        """Close the file without completing it."""
        ...


def reopened(path: Path, size: int) -> IO[bytes]:
    """A partial file truncated at `size`, to append to; 0 creates a new one."""
    if size == 0:
        return path.open("wb")
    length = path.stat().st_size
    if length < size:
        text = complaint(str(path), "cut short", expected=f"{size} bytes", got=f"{length}")
        raise StateMismatch(text)
    file = path.open("r+b")
    file.truncate(size)
    file.seek(size)
    return file


def durable(file: IO[bytes]) -> int:
    """Make a file durable; return its length."""
    file.flush()
    os.fsync(file.fileno())
    return file.tell()


@dataclass(frozen=True, slots=True)
class LinesTarget:
    """NDJSON; keys must be UTF-8."""

    file: IO[bytes]
    actions: Sequence[str] | None  # None: numbered, so losses are written as lists

    @classmethod
    def open(cls, path: Path, actions: Sequence[str], mark: Mark | None) -> LinesTarget:
        """Open a new file, or resume at a mark."""
        named = tuple(actions) != numbered_actions(len(actions))
        return cls(reopened(path, mark["bytes"] if mark else 0), actions if named else None)

    def write(self, chunk: Chunk) -> None:
        """A line for each row; null losses as null."""
        texts = {key: UNSET if key is None else _text(key) for key in set(chunk.keys)}
        keys = map(texts.__getitem__, chunk.keys)
        offsets: Iterable[int | UnsetType]
        offsets = repeat(UNSET) if chunk.plain else chunk.offsets.tolist()
        partition = UNSET if chunk.plain else chunk.partition
        places = zip(keys, offsets, strict=False)
        rows = max(1, _NUMBERS_AT_ONCE // chunk.losses.shape[1])
        for begin in range(0, len(chunk), rows):
            losses = self._losses(chunk.losses[begin : begin + rows])
            lines = [
                _Line(key, offset, partition, row)
                for row, (key, offset) in zip(losses, places, strict=False)
            ]
            self.file.write(_JSON.encode_lines(lines))

    def _losses(self, rows: NDArray[np.float32]) -> list[object]:
        """Each row's losses in the form that is written."""
        numbers: list[list[float]] = short_decimals(rows).tolist()
        values: list[object] = [*numbers]
        if self.actions:
            values = [dict(zip(self.actions, row, strict=True)) for row in numbers]
        for null in np.flatnonzero(nulls(rows)).tolist():
            values[null] = None
        return values

    def mark(self) -> Mark:
        """The file's length."""
        return {"bytes": durable(self.file)}

    def finish(self) -> Path:
        """Finish the file: every row was added."""
        durable(self.file)
        return Path(self.file.name)

    def close(self) -> None:
        """Close the file without completing it."""
        self.file.close()


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise InvalidConfig(
            complaint("convert", "a key that is not UTF-8", expected="a .parquet", got=".ndjson")
        ) from None


@dataclass(frozen=True, slots=True)
class NpyTarget:
    """Losses alone: one key, offsets 0, 1, 2, …"""

    file: IO[bytes]
    path: Path
    columns: int

    @classmethod
    def open(cls, path: Path, actions: Sequence[str], mark: Mark | None) -> NpyTarget:
        """Open a new file, or resume at a mark."""
        file = reopened(path, mark["bytes"] if mark else 0)
        if mark is None:
            file.write(npy_header(0, len(actions)))
        return cls(file, path, len(actions))

    def write(self, chunk: Chunk) -> None:
        """Write the rows' bytes."""
        if not chunk.plain:
            raise InvalidConfig(
                complaint(
                    self.path.name.removesuffix(".part"),
                    "cannot hold keys, offsets or partitions",
                    expected="a log without them, or .npz, .parquet, .ndjson",
                    got="a log with them",
                )
            )
        self.file.write(np.ascontiguousarray(chunk.losses, dtype="<f4").data)

    def mark(self) -> Mark:
        """The file's length."""
        return {"bytes": durable(self.file)}

    def finish(self) -> Path:
        """Write the number of rows into the header."""
        rows = (self.file.tell() - _HEADER_BYTES) // (4 * self.columns)
        self.file.seek(0)
        self.file.write(npy_header(rows, self.columns))
        durable(self.file)
        return Path(self.file.name)

    def close(self) -> None:
        """Close the file without completing it."""
        self.file.close()


def npy_header(rows: int, columns: int) -> bytes:
    """The header of a float32 .npy, of one length for every shape."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class NpzTarget:
    """A .npz: kept in memory until it is complete."""

    path: Path
    actions: Sequence[str]
    chunks: list[Chunk] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path, actions: Sequence[str], mark: Mark | None) -> NpzTarget:
        """Begin a new file: there are no marks."""
        return cls(path, actions)

    def write(self, chunk: Chunk) -> None:
        """Keep a copy: losses may be a view of the log's own buffer."""
        copy = np.array(chunk.losses)
        self.chunks.append(
            Chunk(chunk.first, copy, chunk.keys, chunk.offsets, chunk.partition, after=None)
        )

    def mark(self) -> None:
        """This target cannot be resumed."""
        return

    def finish(self) -> Path:
        """Write the whole file."""
        keys = [key for chunk in self.chunks for key in chunk.keys]
        places = [np.full(len(chunk), chunk.partition, dtype=np.int64) for chunk in self.chunks]
        arrays: dict[str, Any] = {
            "losses": np.concatenate([chunk.losses for chunk in self.chunks]),
            "actions": list(self.actions),
            "offsets": np.concatenate([chunk.offsets for chunk in self.chunks]),
            "partitions": np.concatenate(places),
        }
        named = {key for key in keys if key is not None}
        if named and len(set(keys)) > len(named):
            raise self._refused("null keys among others")
        if any(key.endswith(b"\0") or not key for key in named):
            raise self._refused("keys that end in zeros")
        if named:
            arrays["keys"] = np.array(keys, dtype=f"S{max(map(len, named))}")
        with self.path.open("wb") as file:
            np.savez(file, **arrays)
            durable(file)
        return self.path

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _refused(self, what: str) -> InvalidConfig:
        where = self.path.name.removesuffix(".part")
        return InvalidConfig(complaint(where, what, expected="a .parquet", got="a .npz"))
