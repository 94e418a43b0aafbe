"""Parquet and Arrow IPC files: a column `losses` of lists, or one column of numbers per action.

Columns with a fixed meaning: `losses` (lists of K numbers), `key` (text or bytes; null is the null
key), `offset` and `partition` (whole numbers), `ts` and `event_id` (ignored). Without `losses`,
every other column of numbers is an action, unless it has a field of contexts. The actions of a list
column are in the schema's metadata under `streamdp.actions`, a JSON list; otherwise they are
numbered.

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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streamdp.core.events import Key
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.log import (
    Columns,
    FileLog,
    Log,
    OnBad,
    Portion,
    check_spelling,
    first_line,
    from_zero,
    named_actions,
    numbered_actions,
    portions_of_numbers,
    wrong,
)

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
class _Table:
    """The rows of a file, by the meaning of its columns."""

    path: Path
    layout: _Layout
    on_bad: OnBad

    def portions(self) -> Iterator[Portion]:
        """The rows, batch by batch."""
        return portions_of_numbers(self._parts(), self.on_bad, where=str(self.path))

    def _parts(self) -> Iterator[tuple[NDArray[Any], Columns]]:
        names, first = [*self.layout.losses, *self.layout.beside], 0
        for batch in batches_of(self.path, names, portion=self.layout.portion):
            whole = (self._whole(batch, name, first) for name in (OFFSET, PARTITION))
            yield self._losses(batch, first), Columns(self._keys(batch), *whole)
            first += batch.num_rows

    def _losses(self, batch: Any, first: int) -> NDArray[Any]:
        if self.layout.lists:
            return self._lists(batch.column(LOSSES), first)
        table = np.empty((batch.num_rows, len(self.layout.actions)))
        for at, name in enumerate(self.layout.losses):
            table[:, at] = batch.column(name).to_numpy(zero_copy_only=False)
        return table

    def _lists(self, column: Any, first: int) -> NDArray[Any]:
        """The lists as rows; NaN throughout for a null, and for one of another length."""
        K = len(self.layout.actions)
        usable = column.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False) == K
        flat: NDArray[Any] = (
            column.filter(pa.array(usable)).flatten().to_numpy(zero_copy_only=False)
        )
        values = flat.reshape(-1, K)
        if len(values) == len(column):
            return values
        bad = np.flatnonzero(~usable & column.is_valid().to_numpy(zero_copy_only=False))
        if len(bad) and self.on_bad == "refuse":
            where = f"{self.path}: row {first + int(bad[0])}: {LOSSES}"
            raise wrong(where, "length", expected=K, got=len(column[int(bad[0])]))
        table = np.full((len(column), K), np.nan, dtype=np.result_type(values, np.float32))
        table[usable] = values
        return table

    def _keys(self, batch: Any) -> list[Key] | None:
        if KEY not in self.layout.beside:
            return None
        keys = batch.column(KEY).to_pylist()
        return [key if key is None or isinstance(key, bytes) else key.encode() for key in keys]

    def _whole(self, batch: Any, name: str, first: int) -> NDArray[np.int64] | None:
        if name not in self.layout.beside:
            return None
        where, column = f"{self.path}: {name}", batch.column(name)
        if column.null_count:
            raise wrong(where, "missing values", expected="numbers", got="nulls")
        return from_zero(column.to_numpy(zero_copy_only=False), where=where, first=first)


def open_file(path: Path, how: ReadOptions) -> Log:
    """The log in a Parquet or IPC file."""
    schema, rows = schema_of(path)
    if not rows:
        raise wrong(str(path), "empty", expected="at least one row", got="none")
    layout = _layout(schema, how, path=path)
    return FileLog(str(path), layout.actions, rows, _Table(path, layout, how.on_bad).portions)


def schema_of(path: Path) -> tuple[Any, int]:
    """The schema of a Parquet or IPC file, and its number of rows."""
    parquet = path.suffix.lower() == ".parquet"
    kind = "a Parquet file" if parquet else "an Arrow IPC file"
    with _readable(path, "cannot be read", kind):
        if parquet:
            with pq.ParquetFile(path) as file:
                return file.schema_arrow, file.metadata.num_rows
        table = _mapped(path)[0]
        return table.schema, table.num_rows


def batches_of(path: Path, names: list[str], *, portion: int) -> Iterator[Any]:
    """Some columns of a Parquet or IPC file, in batches."""
    with _readable(path, "corrupt", "readable data"):
        if path.suffix.lower() == ".parquet":
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(portion, columns=names)
        else:
            table, pages = _mapped(path)
            for batch in table.select(names).to_batches(max_chunksize=portion):
                yield batch
                pages.madvise(mmap.MADV_DONTNEED)


def batches_of_csv(path: Path, names: list[str], *, texts: Sequence[str]) -> Iterator[Any]:
    """Some columns of a CSV file with a header, in batches; the columns `texts` are no numbers."""
    types = dict.fromkeys(texts, pa.string())
    kinds = pyarrow.csv.ConvertOptions(include_columns=names, column_types=types)
    with (
        _readable(path, "cannot be read", "a CSV file"),
        pyarrow.csv.open_csv(path, convert_options=kinds) as reader,
    ):
        yield from reader


def _mapped(path: Path) -> tuple[Any, mmap.mmap]:
    """The table in an IPC file or stream, whose columns are views of the mapped pages."""
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    whole = pa.py_buffer(pages)
    try:
        return pyarrow.ipc.open_file(whole).read_all(), pages
    except pa.ArrowInvalid:
        return pyarrow.ipc.open_stream(whole).read_all(), pages


@contextmanager
def _readable(path: Path, what: str, expected: str) -> Iterator[None]:
    """Inside the block pyarrow reads a file; what it cannot read is an error in one line."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise wrong(str(path), what, expected=expected, got=first_line(error)) from None


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
    named = tuple(name for name in schema.names if name not in (*RESERVED, *how.beside))
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
    for batch in batches_of(path, [LOSSES], portion=1024):
        lengths = batch.column(LOSSES).value_lengths().drop_null()
        if len(lengths):
            length = int(lengths[0].as_py())
            break
    else:
        length = 0
    if length < 2:
        raise wrong(f"{path}: {LOSSES}", "too short", expected="2 or more numbers", got=length)
    return length
