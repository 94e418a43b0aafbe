"""`streamdp convert`: a log in another kind of file, or sent to a topic.

Losses are written as float32, which is what every reader makes of them, so a converted log replays
to the same releases. Keys, offsets and partitions go along wherever the target can hold them; a
target that cannot is refused rather than written without. A file appears under its name when it is
complete.

    .npy             losses alone: one key, offsets 0, 1, 2, …
    .npz             everything
    .ndjson          everything; null losses as null; keys must be UTF-8
    .parquet .arrow  everything
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.events import Key
from streamdp.replay.log import Log, Portion, numbered_actions
from streamdp.replay.sources import need_pyarrow
from streamdp.wire.json_format import short_decimals

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows to be written: losses, and who and where they are."""

    first: int
    losses: NDArray[np.float32]
    keys: list[Key]
    offsets: Ints
    partition: int

    @property
    def plain(self) -> bool:
        """Whether rows alone say everything: one null key, partition 0, offsets as numbered."""
        numbered = np.arange(self.first, self.first + len(self.offsets))
        return (
            self.partition == 0
            and all(key is None for key in set(self.keys))
            and bool((self.offsets == numbered).all())
        )


def convert(log: Log, target: Path, *, progress: Callable[[int], None] | None = None) -> int:
    """Write a log to a file; how many slots it has."""
    write = WRITERS.get(target.suffix.lower())
    if write is None:
        expected = ", ".join(WRITERS)
        raise InvalidConfig(
            complaint(str(target), "unknown kind of file", expected=expected, got=target.suffix)
        )
    if write in (_write_arrow, _write_parquet):
        need_pyarrow(str(target))
    new = target.with_name(target.name + ".part")
    counted = _counted(log, progress)
    try:
        slots = write(new, log, counted)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    new.replace(target)
    return slots


def chunks(portions: Iterable[Portion]) -> Iterator[Chunk]:
    """Portions as rows to be written."""
    first = 0
    for portion in portions:
        batch = portion.batch
        keys = [batch.keys[at] for at in batch.index.tolist()]
        yield Chunk(first, batch.losses, keys, batch.offsets, portion.partition)
        first += len(keys)


def _counted(log: Log, progress: Callable[[int], None] | None) -> Iterator[Chunk]:
    for chunk in chunks(log.portions()):
        yield chunk
        if progress is not None:
            progress(chunk.first + len(chunk.keys))


def _write_npy(path: Path, log: Log, rows: Iterator[Chunk]) -> int:
    slots = 0
    with path.open("wb") as file:
        file.write(npy_header(0, len(log.actions)))
        for chunk in rows:
            if not chunk.plain:
                raise InvalidConfig(
                    complaint(
                        path.name.removesuffix(".part"),
                        "cannot hold keys, offsets or partitions",
                        expected="a log without them, or .npz, .parquet, .ndjson",
                        got="a log with them",
                    )
                )
            file.write(np.ascontiguousarray(chunk.losses, dtype="<f4").data)
            slots += len(chunk.keys)
        file.seek(0)
        file.write(npy_header(slots, len(log.actions)))
    return slots


def npy_header(rows: int, columns: int) -> bytes:
    """The header of a float32 .npy, of one length whatever the shape."""
    told = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + told.ljust(117).encode() + b"\n"


def _write_npz(path: Path, log: Log, rows: Iterator[Chunk]) -> int:
    losses, keys, offsets, partitions = [], [], [], []
    for chunk in rows:
        losses.append(np.array(chunk.losses))
        keys += chunk.keys
        offsets.append(chunk.offsets)
        partitions.append(np.full(len(chunk.keys), chunk.partition, dtype=np.int64))
    arrays: dict[str, Any] = {"losses": np.concatenate(losses), "actions": list(log.actions)}
    named = {key for key in keys if key is not None}
    if named and len(set(keys)) > len(named):
        raise InvalidConfig(
            complaint(str(path), "null keys among others", expected="a .parquet", got="a .npz")
        )
    if named:
        width = max(len(key) for key in named)
        if any(key.endswith(b"\0") or not key for key in named):
            raise InvalidConfig(
                complaint(str(path), "keys that end in zeros", expected="a .parquet", got="a .npz")
            )
        arrays["keys"] = np.array(keys, dtype=f"S{width}")
    arrays |= {"offsets": np.concatenate(offsets), "partitions": np.concatenate(partitions)}
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return len(keys)


def _write_lines(path: Path, log: Log, rows: Iterator[Chunk]) -> int:
    named = log.actions != numbered_actions(len(log.actions))
    slots = 0
    with path.open("wb") as file:
        for chunk in rows:
            _write_events(file, chunk, log.actions if named else None, plain=chunk.plain)
            slots += len(chunk.keys)
    return slots


def _write_events(
    file: IO[bytes], chunk: Chunk, actions: tuple[str, ...] | None, *, plain: bool
) -> None:
    null = np.isnan(np.where(np.isfinite(chunk.losses), 0, np.nan).sum(axis=1)).tolist()
    offsets = chunk.offsets.tolist()
    for at, key in enumerate(chunk.keys):
        event: dict[str, Any] = {}
        if key is not None:
            event["key"] = _text(key)
        if not plain:
            event |= {"offset": offsets[at], "partition": chunk.partition}
        event["losses"] = None
        if not null[at]:
            numbers = short_decimals(chunk.losses[at]).tolist()
            event["losses"] = dict(zip(actions, numbers, strict=True)) if actions else numbers
        file.write(msgspec.json.encode(event) + b"\n")


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise InvalidConfig(
            complaint("convert", "a key that is no UTF-8", expected="a .parquet", got=".ndjson")
        ) from None


def _write_arrow(path: Path, log: Log, rows: Iterator[Chunk]) -> int:
    import pyarrow as pa
    import pyarrow.ipc

    schema = _schema(log)
    slots = 0
    with pa.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, schema) as writer:
        for chunk in rows:
            writer.write_batch(_record_batch(schema, chunk))
            slots += len(chunk.keys)
    return slots


def _write_parquet(path: Path, log: Log, rows: Iterator[Chunk]) -> int:
    import pyarrow.parquet as pq

    schema = _schema(log)
    slots = 0
    with pq.ParquetWriter(path, schema) as writer:
        for chunk in rows:
            writer.write_batch(_record_batch(schema, chunk))
            slots += len(chunk.keys)
    return slots


def _schema(log: Log) -> Any:
    import pyarrow as pa

    columns = [
        pa.field("key", pa.binary()),
        pa.field("partition", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("losses", pa.list_(pa.float32(), len(log.actions))),
    ]
    return pa.schema(columns, metadata={"streamdp.actions": json.dumps(list(log.actions))})


def _record_batch(schema: Any, chunk: Chunk) -> Any:
    import pyarrow as pa

    n, K = chunk.losses.shape
    losses = pa.FixedSizeListArray.from_arrays(pa.array(chunk.losses.reshape(-1)), K)
    partition = pa.array(np.full(n, chunk.partition, dtype=np.int64))
    keys = pa.array(chunk.keys, pa.binary())
    return pa.record_batch([keys, partition, pa.array(chunk.offsets), losses], schema=schema)


WRITERS: dict[str, Callable[[Path, Log, Iterator[Chunk]], int]] = {
    ".npy": _write_npy,
    ".npz": _write_npz,
    ".ndjson": _write_lines,
    ".jsonl": _write_lines,
    ".parquet": _write_parquet,
    ".arrow": _write_arrow,
    ".feather": _write_arrow,
}
