"""`streamdp convert`: a log in another kind of file, or sent to a topic (`sending`).

Losses are written as float32 in [0, 1], which every reader makes of them, so a converted log
replays to the same releases; what was clipped is counted. Keys, offsets and partitions are written
too; a target that cannot hold them is refused. A file gets its name when it is complete; until then
it is ``NAME.part``, which a fault removes.

    .npy             losses alone: one key, offsets 0, 1, 2, …
    .npz             everything; made in memory
    .ndjson          everything; null losses as null; keys must be UTF-8
    .parquet .arrow  everything; by pyarrow's writers
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.lib import format as npy
from numpy.typing import NDArray

from streamdp.cli.writing import check_writable, writing
from streamdp.core.errors import InvalidConfig
from streamdp.lab.logs import need_pyarrow
from streamdp.lab.logs.chunks import Chunk, chunks, nulls
from streamdp.lab.logs.log import Log, numbered_actions
from streamdp.wire.json_format import short_decimals

_NUMBERS_AT_ONCE = 1 << 15  # of lines: an array operation for many, and they stay in the cache
_JSON = msgspec.json.Encoder()


@dataclass(slots=True)
class Written:
    """How many slots were written, and how many of them do not count as they stand in the log."""

    slots: int = 0
    clipped: int = 0
    nulls: int = 0

    def take(self, chunk: Chunk) -> None:
        """Count the rows of a chunk."""
        self.slots += len(chunk)
        self.clipped += chunk.clipped
        self.nulls += int(np.count_nonzero(chunk.nulls()))


def convert(
    log: Log, target: Path, *, progress: Callable[[int], None] = lambda slots: None
) -> Written:
    """Write a log to a file; return what the file holds."""
    write = TARGETS.get(target.suffix.lower())
    if write is None:
        what, expected = "unknown kind of file", ", ".join(TARGETS)
        raise InvalidConfig(str(target), what, expected=expected, got=target.suffix)
    if target.resolve() == Path(log.name).resolve():
        expected = "another file"
        raise InvalidConfig("target", "is the log", expected=expected, got=target)
    if write is _write_arrow:
        need_pyarrow(str(target))
    check_writable(target)
    part, written = target.with_name(target.name + ".part"), Written()

    def rows() -> Iterator[Chunk]:
        for chunk in chunks(log.portions()):
            yield chunk
            written.take(chunk)
            progress(written.slots)

    try:
        with writing(target):
            write(part, target, log.actions, rows())
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return written


# -- the kinds of files --------------------------------------------------------------------------


def _write_arrow(part: Path, target: Path, actions: Sequence[str], rows: Iterable[Chunk]) -> None:
    """A Parquet or Arrow IPC file; the names of actions are in the schema's metadata."""
    import pyarrow as pa
    import pyarrow.ipc
    import pyarrow.parquet as pq

    columns = [
        pa.field("key", pa.binary()),
        pa.field("partition", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("losses", pa.list_(pa.float32(), len(actions))),
    ]
    schema = pa.schema(columns, metadata={"streamdp.actions": json.dumps(list(actions))})
    new = pq.ParquetWriter if target.suffix.lower() == ".parquet" else pyarrow.ipc.new_file
    with part.open("wb") as file, new(file, schema) as writer:
        for chunk in rows:
            losses = pa.array(chunk.losses.reshape(-1))
            arrays = [
                pa.array(chunk.keys, pa.binary()),
                pa.array(np.full(len(chunk), chunk.partition, dtype=np.int64)),
                pa.array(chunk.offsets),
                pa.FixedSizeListArray.from_arrays(losses, len(actions)),
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


class _Line(msgspec.Struct, gc=False):
    """A line of NDJSON; its members are in this order, and UNSET ones are left out."""

    key: str | UnsetType
    offset: int | UnsetType
    partition: int | UnsetType
    losses: object


def _write_lines(part: Path, target: Path, actions: Sequence[str], rows: Iterable[Chunk]) -> None:
    """NDJSON; losses of numbered actions are lists."""
    names = None if tuple(actions) == numbered_actions(len(actions)) else actions
    with part.open("wb") as file:
        for chunk in rows:
            texts = {key: UNSET if key is None else _text(key, target) for key in set(chunk.keys)}
            keys = map(texts.__getitem__, chunk.keys)
            offsets: Iterable[int | UnsetType]
            offsets = repeat(UNSET) if chunk.plain else chunk.offsets.tolist()
            partition = UNSET if chunk.plain else chunk.partition
            places = zip(keys, offsets, strict=False)
            step = max(1, _NUMBERS_AT_ONCE // len(actions))
            for begin in range(0, len(chunk), step):
                losses = _json_losses(chunk.losses[begin : begin + step], names)
                lines = [
                    _Line(key, offset, partition, row)
                    for row, (key, offset) in zip(losses, places, strict=False)
                ]
                file.write(_JSON.encode_lines(lines))


def _json_losses(rows: NDArray[np.float32], names: Sequence[str] | None) -> list[object]:
    """Each row's losses in the form that is written; null losses as null."""
    numbers: list[list[float]] = short_decimals(rows).tolist()
    values: list[object] = [*numbers]
    if names is not None:
        values = [dict(zip(names, row, strict=True)) for row in numbers]
    for null in np.flatnonzero(nulls(rows)).tolist():
        values[null] = None
    return values


def _text(key: bytes, target: Path) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise _cannot_hold(target, "a key that is not UTF-8") from None


def _write_array(part: Path, target: Path, actions: Sequence[str], rows: Iterable[Chunk]) -> None:
    """A .npy of losses alone; numpy keeps room in the header for the number of rows."""
    shape: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (0, len(actions))}
    with part.open("wb") as file:
        npy.write_array_header_1_0(file, shape)
        begin, slots = file.tell(), 0
        for chunk in rows:
            if not chunk.plain:
                raise _cannot_hold(target, "keys, offsets or partitions")
            file.write(np.ascontiguousarray(chunk.losses, dtype="<f4").data)
            slots += len(chunk)
        file.seek(0)
        npy.write_array_header_1_0(file, shape | {"shape": (slots, len(actions))})
        assert file.tell() == begin


def _write_archive(part: Path, target: Path, actions: Sequence[str], rows: Iterable[Chunk]) -> None:
    """A .npz. Losses are copied: they may be views of the log's own buffer."""
    losses, keys, offsets, partitions = [], list[bytes | None](), [], []
    for chunk in rows:
        losses.append(np.array(chunk.losses))
        keys += chunk.keys
        offsets.append(chunk.offsets)
        partitions.append(np.full(len(chunk), chunk.partition, dtype=np.int64))
    arrays: dict[str, Any] = {
        "losses": np.concatenate(losses),
        "actions": list(actions),
        "offsets": np.concatenate(offsets),
        "partitions": np.concatenate(partitions),
    }
    named = {key for key in keys if key is not None}
    if named and len(set(keys)) > len(named):
        raise _cannot_hold(target, "null keys among others")
    if any(key.endswith(b"\0") or not key for key in named):
        raise _cannot_hold(target, "keys that end in zeros")
    if named:
        arrays["keys"] = np.array(keys, dtype=f"S{max(map(len, named))}")
    with part.open("wb") as file:
        np.savez(file, **arrays)


def _cannot_hold(target: Path, what: str) -> InvalidConfig:
    where = str(target)
    got = f"a {target.suffix}"
    return InvalidConfig(where, f"cannot hold {what}", expected="a .parquet", got=got)


Write = Callable[[Path, Path, Sequence[str], Iterable[Chunk]], None]
"""Writes rows of named actions to the first path; the second is the target that errors name."""

TARGETS: Mapping[str, Write] = {
    ".npy": _write_array,
    ".npz": _write_archive,
    ".ndjson": _write_lines,
    ".jsonl": _write_lines,
    ".parquet": _write_arrow,
    ".arrow": _write_arrow,
    ".feather": _write_arrow,
}
"""The writer of each file ending."""
