"""Parquet and Arrow IPC files as targets; an interrupted write can be resumed.

Both kinds end in a footer that indexes the file, and pyarrow can append to neither. A Parquet file
is therefore written in segments: each is a complete Parquet file up to a mark, one after another in
the partial file; at the end their row groups are copied into one file. To resume an IPC file, the
batches up to the mark are copied into a new one.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from streamdp.core.errors import StateMismatch, complaint
from streamdp.lab.replay.chunks import Chunk
from streamdp.lab.replay.journal import Mark
from streamdp.lab.replay.targets import durable, reopened

_IPC_HEAD = 8  # bytes before the stream in an IPC file


def _schema(actions: Sequence[str]) -> Any:
    columns = [
        pa.field("key", pa.binary()),
        pa.field("partition", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("losses", pa.list_(pa.float32(), len(actions))),
    ]
    return pa.schema(columns, metadata={"streamdp.actions": json.dumps(list(actions))})


def _record_batch(schema: Any, chunk: Chunk) -> Any:
    n, K = chunk.losses.shape
    losses = pa.FixedSizeListArray.from_arrays(pa.array(chunk.losses.reshape(-1)), K)
    partition = pa.array(np.full(n, chunk.partition, dtype=np.int64))
    keys = pa.array(chunk.keys, pa.binary())
    return pa.record_batch([keys, partition, pa.array(chunk.offsets), losses], schema=schema)


@dataclass(slots=True)
class ArrowTarget:
    """An Arrow IPC file."""

    path: Path
    file: IO[bytes]
    schema: Any
    writer: Any
    batches: int = 0

    @classmethod
    def open(cls, path: Path, actions: Sequence[str], mark: Mark | None) -> ArrowTarget:
        """Open a new file, or one with the batches up to a mark."""
        schema = _schema(actions)
        new = path.with_name(path.name + ".new") if mark else path
        file = new.open("wb")
        target = cls(path, file, schema, pyarrow.ipc.new_file(file, schema))
        if mark:
            target._copy(path, mark["batches"])
            durable(file)
            new.replace(path)
        return target

    def _copy(self, path: Path, count: int) -> None:
        """Copy the first batches of a file that has no footer."""
        try:
            with path.open("rb") as old:
                mapped = mmap.mmap(old.fileno(), 0, access=mmap.ACCESS_READ)
            stream = pyarrow.ipc.open_stream(pa.py_buffer(mapped).slice(_IPC_HEAD))
            for _ in range(count):
                self.writer.write_batch(stream.read_next_batch())
        except (pa.ArrowException, OSError, ValueError, StopIteration):
            text = complaint(str(path), "cut short", expected=f"{count} batches", got="fewer")
            raise StateMismatch(text) from None
        self.batches = count

    def write(self, chunk: Chunk) -> None:
        """Write one batch."""
        self.writer.write_batch(_record_batch(self.schema, chunk))
        self.batches += 1

    def mark(self) -> Mark:
        """The number of batches written so far."""
        durable(self.file)
        return {"batches": self.batches}

    def finish(self) -> Path:
        """Write the footer."""
        self.writer.close()
        durable(self.file)
        return self.path

    def close(self) -> None:
        """Close the file without completing it."""
        self.file.close()


@dataclass(frozen=True, slots=True)
class _Segment:
    """A Parquet file in memory."""

    held: pa.BufferOutputStream
    writer: pq.ParquetWriter


@dataclass(slots=True)
class ParquetTarget:
    """A Parquet file made of segments."""

    file: IO[bytes]
    schema: Any
    ends: list[int] = field(default_factory=list)  # where each segment ends in the file
    _segment: _Segment | None = None  # the segment that is being written

    @classmethod
    def open(cls, path: Path, actions: Sequence[str], mark: Mark | None) -> ParquetTarget:
        """Open a new file, or append after the segments that a mark lists."""
        ends = list(mark["ends"]) if mark else []
        return cls(reopened(path, ends[-1] if ends else 0), _schema(actions), ends)

    def write(self, chunk: Chunk) -> None:
        """One row group."""
        self._begun().writer.write_batch(_record_batch(self.schema, chunk))

    def mark(self) -> Mark:
        """The ends of the segments; completes the open segment first."""
        if self._segment is not None:
            self._segment.writer.close()
            self.file.write(self._segment.held.getvalue())
            self._segment = None
            self.ends.append(self.file.tell())
        durable(self.file)
        return {"ends": self.ends}

    def finish(self) -> Path:
        """Copy all segments' row groups into one file; a single segment is that file already.

        The segments stay until the finished file has its name: a crash only repeats the copy.
        """
        if not self.ends:
            self._begun()
        self.mark()
        path = Path(self.file.name)
        return path if len(self.ends) == 1 else self._joined(path)

    def close(self) -> None:
        """Close the file without completing it."""
        self.file.close()

    def _begun(self) -> _Segment:
        if self._segment is None:
            held = pa.BufferOutputStream()
            self._segment = _Segment(held, pq.ParquetWriter(held, self.schema))
        return self._segment

    def _joined(self, path: Path) -> Path:
        joined = path.with_name(path.name + ".new")
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        segments = pa.py_buffer(mapped)
        with joined.open("wb") as out:
            with pq.ParquetWriter(out, self.schema) as writer:
                for begin, end in pairwise([0, *self.ends]):
                    reader = pa.BufferReader(segments.slice(begin, end - begin))
                    with pq.ParquetFile(reader) as segment:
                        for number in range(segment.num_row_groups):
                            group = segment.read_row_group(number)
                            writer.write_table(group, row_group_size=group.num_rows)
            durable(out)
        return joined
