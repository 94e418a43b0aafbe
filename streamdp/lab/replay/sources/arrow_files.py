"""Parquet and Arrow IPC files: a column `losses` of lists, or one column of numbers per action.

Columns with a fixed meaning: `losses` (lists of K numbers), `key` (text or bytes; null is the null
key), `offset` and `partition` (whole numbers), `ts` and `event_id` (ignored). Without `losses`,
every other column of numbers is an action. The actions of a list column are in the schema's
metadata under `streamdp.actions`, a JSON list; otherwise they are numbered.

A null list is an intended null loss, as is a row of nulls or NaN throughout. A list of another
length, or a row with some numbers missing or infinite, is an error, or with `on_bad = "null"` a
null loss. Finite losses outside [0, 1] are clipped as live, and counted. Files are read batch by
batch; an IPC file is mapped, and its pages are released after each batch. pyarrow comes with the
extra `replay`.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streamdp.core.events import Key
from streamdp.lab.replay.clipping import narrowed
from streamdp.lab.replay.log import (
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

LOSSES, KEY, OFFSET, PARTITION = "losses", "key", "offset", "partition"
RESERVED = (LOSSES, KEY, OFFSET, PARTITION, "ts", "event_id")
METADATA = b"streamdp.actions"
_PORTION_ROWS = 1 << 16
_PORTION_VALUES = 1 << 22


@dataclass(frozen=True, slots=True)
class _Layout:
    """The meaning of the columns."""

    actions: tuple[str, ...]
    losses: tuple[str, ...]  # `losses`, or one for each action
    beside: tuple[str, ...]  # those of key, offset and partition that exist

    @property
    def lists(self) -> bool:
        return self.losses == (LOSSES,)

    @property
    def portion(self) -> int:
        """Rows in a portion."""
        return max(1, min(_PORTION_ROWS, _PORTION_VALUES // len(self.actions)))


@dataclass(frozen=True, slots=True)
class ArrowLog:
    """A Parquet or IPC file."""

    path: Path
    actions: tuple[str, ...]
    slots: int
    layout: _Layout
    on_bad: OnBad

    @property
    def name(self) -> str:
        """The file's name."""
        return str(self.path)

    def identity(self) -> str:
        """Path, size and time of change."""
        return file_identity(self.path, actions=self.actions)

    def portions(self, start: Position = START) -> Iterator[Portion]:
        """The rows from a position on, batch by batch."""
        row, wanted = 0, start.get("row", 0)
        for batch in self._batches():
            stop = row + batch.num_rows
            if stop > wanted:
                skip = max(0, wanted - row)
                yield from self._portion(batch.slice(skip), first=row + skip)
            row = stop

    def _batches(self) -> Iterator[Any]:
        names = [*self.layout.losses, *self.layout.beside]
        return batches_of(self.path, names, portion=self.layout.portion)

    def _portion(self, batch: Any, *, first: int) -> Iterator[Portion]:
        losses, clipped = self._losses(batch, first)
        columns = Columns(
            self._keys(batch),
            self._whole(batch, OFFSET, first),
            self._whole(batch, PARTITION, first),
        )
        after = {"row": first + batch.num_rows}
        yield from portions_of(losses, columns, first=first, after=after, clipped=clipped)

    def _losses(self, batch: Any, first: int) -> tuple[NDArray[np.float32], int]:
        """The rows, and how many of them were clipped."""
        K = len(self.actions)
        if self.layout.lists:
            return self._lists(batch.column(LOSSES), first)
        table = np.empty((batch.num_rows, K))
        for at, name in enumerate(self.layout.losses):
            table[:, at] = batch.column(name).to_numpy(zero_copy_only=False)
        check_usable(table, self.on_bad, where=self.name, rows=range(first, first + len(table)))
        return narrowed(table, actions=K)

    def _lists(self, column: Any, first: int) -> tuple[NDArray[np.float32], int]:
        K = len(self.actions)
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):
            good = np.asarray(lengths == K)
        if not good.all():
            null = column.is_null().to_numpy(zero_copy_only=False)
            bad = np.flatnonzero(~good & ~null)
            if len(bad) and self.on_bad == "refuse":
                where = f"{self.name}: row {first + int(bad[0])}: {LOSSES}"
                raise wrong(where, "length", expected=K, got=int(lengths[bad[0]]))
            table = np.full((len(column), K), np.nan, dtype=np.float32)
            clipped = 0
            if good.any():
                rows = first + np.flatnonzero(good)
                table[good], clipped = self._values(column.filter(pa.array(good)), rows)
            return table, clipped
        return self._values(column, range(first, first + len(column)))

    def _values(
        self, column: Any, rows: Sequence[int] | NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], int]:
        """The lists of a column, all of K numbers, and how many of them were clipped."""
        values = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, len(self.actions))
        check_usable(values, self.on_bad, where=self.name, rows=rows)
        if values.dtype == np.float32:
            return cast("NDArray[np.float32]", values), 0
        return narrowed(values, actions=len(self.actions))

    def _keys(self, batch: Any) -> list[Key] | None:
        if KEY not in self.layout.beside:
            return None
        keys = batch.column(KEY).to_pylist()
        return [key if key is None or isinstance(key, bytes) else key.encode() for key in keys]

    def _whole(self, batch: Any, name: str, first: int) -> NDArray[np.int64] | None:
        if name not in self.layout.beside:
            return None
        column = batch.column(name)
        if column.null_count:
            raise wrong(f"{self.name}: {name}", "missing values", expected="numbers", got="nulls")
        numbers = column.to_numpy(zero_copy_only=False)
        return from_zero(numbers, where=f"{self.name}: {name}", first=first)


def open_file(path: Path, how: ReadOptions) -> Log:
    """The log in a Parquet or IPC file."""
    where = str(path)
    schema, rows = schema_of(path)
    if not rows:
        raise wrong(where, "empty", expected="at least one row", got="none")
    layout = _layout(schema, how, path=path)
    return ArrowLog(path, layout.actions, rows, layout, how.on_bad)


def schema_of(path: Path) -> tuple[Any, int]:
    """The schema of a Parquet or IPC file, and its number of rows."""
    where = str(path)
    try:
        if path.suffix.lower() == ".parquet":
            with pq.ParquetFile(path) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        else:
            with pa.memory_map(where) as mapped:
                reader = _ipc_reader(mapped)
                schema, rows = reader.schema, _count(reader)
    except (pa.ArrowException, OSError) as error:
        kind = "a Parquet file" if path.suffix.lower() == ".parquet" else "an Arrow IPC file"
        raise wrong(where, "cannot be read", expected=kind, got=_line(error)) from None
    return schema, rows


def batches_of(path: Path, names: list[str], *, portion: int) -> Iterator[Any]:
    """Some columns of a Parquet or IPC file, in batches."""
    try:
        if path.suffix.lower() == ".parquet":
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(portion, columns=names)
        else:
            yield from _mapped_batches(path, names, portion)
    except (pa.ArrowException, OSError) as error:
        raise wrong(str(path), "corrupt", expected="readable data", got=_line(error)) from None


def batches_of_csv(path: Path, names: list[str], *, text: str) -> Iterator[Any]:
    """Some columns of a CSV file with a header, in batches; the column `text` is never a number."""
    from pyarrow.csv import ConvertOptions, open_csv

    kinds = ConvertOptions(include_columns=names, column_types={text: pa.string()})
    try:
        with open_csv(path, convert_options=kinds) as reader:
            yield from reader
    except (pa.ArrowException, OSError) as error:
        raise wrong(str(path), "cannot be read", expected="a CSV file", got=_line(error)) from None


def _layout(schema: Any, how: ReadOptions, *, path: Path) -> _Layout:
    where = str(path)
    check_spelling(schema.names, (KEY, OFFSET, PARTITION), where=where)
    beside = tuple(name for name in (KEY, OFFSET, PARTITION) if name in schema.names)
    for name in beside:
        kind = schema.field(name).type
        good = pa.types.is_integer(kind)
        if name == KEY:
            good = any(
                fits(kind)
                for fits in (
                    pa.types.is_string,
                    pa.types.is_large_string,
                    pa.types.is_binary,
                    pa.types.is_large_binary,
                )
            )
        if not good:
            expected = "text or bytes" if name == KEY else "whole numbers"
            raise wrong(f"{where}: {name}", "wrong type", expected=expected, got=kind)
    if LOSSES in schema.names:
        return _Layout(_list_actions(schema, how, path=path), (LOSSES,), beside)
    named = tuple(name for name in schema.names if name not in RESERVED)
    for name in named:
        kind = schema.field(name).type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            expected = "numbers, since there is no column `losses`"
            raise wrong(f"{where}: column {name}", "wrong type", expected=expected, got=kind)
    if len(named) < 2:
        expected = "a column `losses` or one of numbers for each action"
        raise wrong(where, "missing columns", expected=expected, got=schema.names)
    return _Layout(named_actions(how.actions, named, where=where), named, beside)


def _list_actions(schema: Any, how: ReadOptions, *, path: Path) -> tuple[str, ...]:
    """The actions of a list column: from metadata, or numbered by the first row's length."""
    where = f"{path}: {LOSSES}"
    kind = schema.field(LOSSES).type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_list(kind) for is_list in lists):
        raise wrong(where, "wrong type", expected="lists of numbers", got=kind)
    if not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        raise wrong(where, "wrong type", expected="lists of numbers", got=kind)
    metadata = (schema.metadata or {}).get(METADATA)
    if metadata is not None:
        actions = tuple(str(name) for name in json.loads(metadata))
    elif pa.types.is_fixed_size_list(kind):
        actions = numbered_actions(kind.list_size)
    elif how.actions is not None:
        return how.actions
    else:
        actions = numbered_actions(_first_length(path))
    return named_actions(how.actions, actions, where=where)


def _first_length(path: Path) -> int:
    """The length of the first row that has losses."""
    names = [LOSSES]
    if path.suffix.lower() == ".parquet":
        with pq.ParquetFile(path) as file:
            length = _length_in(file.iter_batches(1024, columns=names))
    else:
        length = _length_in(_mapped_batches(path, names, 1024))
    if length < 2:
        raise wrong(f"{path}: {LOSSES}", "too short", expected="2 or more numbers", got=length)
    return length


def _length_in(batches: Iterator[Any]) -> int:
    for batch in batches:
        lengths = batch.column(LOSSES).value_lengths().drop_null()
        if len(lengths):
            return int(lengths[0].as_py())
    return 0


def _ipc_reader(source: Any) -> Any:
    try:
        return pyarrow.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return pyarrow.ipc.open_stream(source)


def _count(reader: Any) -> int:
    if hasattr(reader, "num_record_batches"):
        batches = (reader.get_batch(at) for at in range(reader.num_record_batches))
        return sum(batch.num_rows for batch in batches)
    return sum(batch.num_rows for batch in reader)


def _mapped_batches(path: Path, names: list[str], portion: int) -> Iterator[Any]:
    """The batches of an IPC file, without copies; pages are released after each."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = _ipc_reader(pa.BufferReader(pa.py_buffer(mapped)))
    if hasattr(reader, "num_record_batches"):
        batches = (reader.get_batch(at) for at in range(reader.num_record_batches))
    else:
        batches = iter(reader)
    for batch in batches:
        chosen = batch.select(names)
        for begin in range(0, batch.num_rows, portion):
            yield chosen.slice(begin, portion)
        mapped.madvise(mmap.MADV_DONTNEED)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
