"""Parquet, Arrow IPC and CSV files: a column `losses` of lists, or one of numbers per action.

Columns with a fixed meaning: `losses` (lists of K numbers), `key` (text or bytes; null is the null
key), `offset` and `partition` (whole numbers), `ts` and `event_id` (ignored). Without `losses`,
every other column of numbers is an action, unless it has a field of contexts. The actions of a list
column are in the schema's metadata under `streamdp.actions`, a JSON list; otherwise they are
numbered.

A null list is an intended null loss, as is a row of nulls or NaN throughout. A list of another
length, or a row with some numbers missing or infinite, is an error, or with `on_bad = "null"` a
null loss. Finite losses outside [0, 1] are clipped as live, and counted. Files are read batch by
batch, by one thread: several processes are the way to more (`streamdp.lab.workers`). An IPC file is
mapped, and its pages are released after each batch. An object store's files are read in place.
pyarrow comes with the extra `replay`.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Key
from streamdp.lab.common.words import first_line
from streamdp.lab.logs import ReadOptions, ending
from streamdp.lab.logs.log import (
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

LOSSES, KEY, OFFSET, PARTITION = "losses", "key", "offset", "partition"
RESERVED = (LOSSES, KEY, OFFSET, PARTITION, "ts", "event_id")
METADATA = b"streamdp.actions"
CSV = ".csv"
_PART_BYTES = 1 << 25  # of a part of Parquet, before compression: row groups together
_PART_ROWS = 1 << 18  # of a part of either: equal values take few bytes
_PORTION_ROWS = 1 << 16
_PORTION_VALUES = 1 << 22


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows of a file that are read by themselves."""

    file: str  # a path, or an address such as s3://bucket/day.parquet
    units: range  # row groups of Parquet, rows of an IPC file; a CSV file is one unit
    first: int  # the number of its first row in the log
    slots: int
    before: int  # how many rows of the log are in other files before this one

    def batches(
        self, names: Sequence[str], *, portion: int, texts: Sequence[str] = ()
    ) -> Iterator[Any]:
        """Some columns, in batches; those in `texts` are no numbers, where a CSV file has any."""
        kind = ending(self.file)
        with readable(self.file, "corrupt", "readable data"):
            if kind == ".parquet":
                with pq.ParquetFile(_opened(self.file)) as file:
                    yield from file.iter_batches(
                        portion, row_groups=[*self.units], columns=names, use_threads=False
                    )
            elif kind == CSV:
                types = dict.fromkeys(texts, pa.string())
                kinds = pyarrow.csv.ConvertOptions(include_columns=names, column_types=types)
                once = pyarrow.csv.ReadOptions(use_threads=False)
                with pyarrow.csv.open_csv(
                    _opened(self.file), read_options=once, convert_options=kinds
                ) as reader:
                    yield from reader
            else:
                table, pages = _mapped(self.file)
                table = table.slice(self.units.start, len(self.units)).select(names)
                for batch in table.to_batches(max_chunksize=portion):
                    yield batch
                    pages.madvise(mmap.MADV_DONTNEED)


def rows_of(file: str, *, first: int = 0) -> Iterator[Rows]:
    """The rows of a file in parts, numbered from `first` on: row groups of some size."""
    kind, before = ending(file), first
    if kind == CSV:
        with (
            readable(file, "cannot be read", "a CSV file"),
            pyarrow.csv.open_csv(_opened(file)) as reader,
        ):
            count = sum(batch.num_rows for batch in reader)
        if count:
            yield Rows(file, range(1), first, count, before)
        return
    if kind != ".parquet":
        rows = schema_of(file)[1]
        for begin in range(0, rows, _PART_ROWS):
            units = range(begin, min(begin + _PART_ROWS, rows))
            yield Rows(file, units, first + begin, len(units), before)
        return
    with readable(file, "cannot be read", "a Parquet file"):
        with pq.ParquetFile(_opened(file)) as parquet:
            metadata = parquet.metadata
        begin = rows = size = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            rows, size = rows + group.num_rows, size + group.total_byte_size
            full = size >= _PART_BYTES or rows >= _PART_ROWS
            if rows and (full or number == metadata.num_row_groups - 1):
                yield Rows(file, range(begin, number + 1), first, rows, before)
                begin, first, rows, size = number + 1, first + rows, 0, 0


def schema_of(file: str) -> tuple[Any, int]:
    """The schema of a file of columns, and its number of rows; 0 for CSV, which does not say it."""
    kind = ending(file)
    described = {".parquet": "a Parquet file", CSV: "a CSV file"}.get(kind, "an Arrow IPC file")
    with readable(file, "cannot be read", described):
        if kind == ".parquet":
            with pq.ParquetFile(_opened(file)) as parquet:
                return parquet.schema_arrow, parquet.metadata.num_rows
        if kind == CSV:
            with pyarrow.csv.open_csv(_opened(file)) as reader:
                return reader.schema, 0
        table = _mapped(file)[0]
        return table.schema, table.num_rows


def numbers_of(column: Any) -> NDArray[Any]:
    """The numbers of a column, NaN for null.

    Not by `to_numpy`: it imports pandas where that is installed, in each process 60 MB.
    """
    if column.null_count:
        column = column if pa.types.is_floating(column.type) else column.cast("float64")
        column = column.fill_null(float("nan"))
    array: NDArray[Any] = np.from_dlpack(column)
    return array


def _opened(file: str) -> Any:
    """A file of this machine or of an object store, open for reading."""
    if "://" not in file:
        return pa.OSFile(file)
    system, path = _stored(file)
    return system.open_input_file(path)


def _stored(address: str) -> tuple[Any, str]:
    """The object store of an address, and the path in it."""
    with readable(address, "cannot be read", "an object store that this pyarrow knows"):
        system, path = fs.FileSystem.from_uri(address)
    return system, path


def matching(address: str) -> list[str]:
    """The files of an object store that a pattern with `*` or `?` names, in order."""
    base = re.split(r"[*?]", address, maxsplit=1)[0].rpartition("/")[0]
    with readable(address, "cannot be read", "an address of an object store"):
        system, folder = _stored(base)
        found = system.get_file_info(fs.FileSelector(folder, recursive=True))
        names = (info.path[len(folder) :] for info in found if info.is_file)
        wanted = address[len(base) :]
        return sorted(base + name for name in names if fnmatchcase(name, wanted))


@dataclass(frozen=True, slots=True)
class _Layout:
    """The meaning of the columns."""

    actions: tuple[str, ...]
    losses: tuple[str, ...]  # `losses`, or one for each action
    beside: tuple[str, ...]  # those of key, offset and partition that exist

    def __str__(self) -> str:
        """The columns beside actions, and the first actions."""
        columns = ", ".join([*(self.losses if self.lists else ()), *self.beside])
        return f"{columns or 'none'}; {len(self.actions)} actions {', '.join(self.actions[:20])}"

    @property
    def lists(self) -> bool:
        return self.losses == (LOSSES,)

    @property
    def portion(self) -> int:
        """Rows in a portion."""
        return max(1, min(_PORTION_ROWS, _PORTION_VALUES // len(self.actions)))


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows with losses."""

    rows: Rows
    layout: _Layout
    on_bad: OnBad

    @property
    def path(self) -> str:
        return self.rows.file

    def portions(self) -> Iterator[Portion]:
        """The rows, batch by batch."""
        first, before = self.rows.first, self.rows.before
        return portions_of_numbers(
            self._parts(), self.on_bad, where=self.path, first=first, before=before
        )

    def keyed(self) -> Iterator[Portion]:
        """The rows without losses: only the columns beside them are read."""
        first, portion = self.rows.first, self.layout.portion
        if self.layout.beside or ending(self.path) == CSV:
            names = self.layout.beside or self.layout.losses[:1]
            for batch, at in self._batches(names):
                begin = self.rows.before + at
                rows = range(begin, begin + batch.num_rows)
                yield from portions_of({}, self._beside(batch, at), rows)
        else:
            end = first + self.rows.slots
            for at in range(first, end, portion):
                yield from portions_of({}, Columns(), range(at, min(at + portion, end)))

    def _batches(self, names: Sequence[str]) -> Iterator[tuple[Any, int]]:
        """Some columns, and the number of each batch's first row in the file."""
        at = self.rows.first - self.rows.before
        texts = [name for name in (KEY,) if name in names]
        for batch in self.rows.batches(names, portion=self.layout.portion, texts=texts):
            yield batch, at
            at += batch.num_rows

    def _parts(self) -> Iterator[tuple[NDArray[Any], Columns]]:
        for batch, first in self._batches([*self.layout.losses, *self.layout.beside]):
            yield self._losses(batch, first), self._beside(batch, first)

    def _beside(self, batch: Any, first: int) -> Columns:
        whole = (self._whole(batch, name, first) for name in (OFFSET, PARTITION))
        return Columns(self._keys(batch), *whole)

    def _losses(self, batch: Any, first: int) -> NDArray[Any]:
        if self.layout.lists:
            return self._lists(batch.column(LOSSES), first)
        table = np.empty((batch.num_rows, len(self.layout.actions)))
        for at, name in enumerate(self.layout.losses):
            table[:, at] = numbers_of(batch.column(name))
        return table

    def _lists(self, column: Any, first: int) -> NDArray[Any]:
        """The lists as rows; NaN throughout for a null, and for one of another length."""
        from pyarrow.compute import equal

        K = len(self.layout.actions)
        lengths = numbers_of(column.value_lengths().fill_null(-1))
        usable = lengths == K
        values = numbers_of(column.filter(equal(column.value_lengths(), K)).flatten())
        values = values.reshape(-1, K)
        if len(values) == len(column):
            return values
        bad = np.flatnonzero(~usable & (lengths >= 0))
        if len(bad) and self.on_bad == "refuse":
            where = f"{self.path}: row {first + int(bad[0])}: {LOSSES}"
            raise wrong(where, "length", expected=K, got=len(column[int(bad[0])]))
        table = np.full((len(column), K), np.nan, dtype=np.result_type(values, np.float32))
        table[usable] = values
        return table

    def _keys(self, batch: Any) -> tuple[Sequence[Key], Ints] | None:
        if KEY not in self.layout.beside:
            return None
        encoded = batch.column(KEY).dictionary_encode(null_encoding="encode")
        keys = [of.encode() if isinstance(of, str) else of for of in encoded.dictionary.to_pylist()]
        return keys, numbers_of(encoded.indices).astype(np.int64)

    def _whole(self, batch: Any, name: str, first: int) -> NDArray[np.int64] | None:
        if name not in self.layout.beside:
            return None
        where, column = f"{self.path}: {name}", batch.column(name)
        if column.null_count:
            raise wrong(where, "missing values", expected="numbers", got="nulls")
        return from_zero(numbers_of(column), where=where, first=first)


def open_files(files: Sequence[str], how: ReadOptions, *, name: str) -> Log:
    """The log in files of columns, one behind the other."""
    layouts: list[_Layout] = []
    parts: list[Rows] = []
    for file in files:
        schema, _ = schema_of(file)
        rows = [*rows_of(file, first=sum(part.slots for part in parts))]
        if not rows:
            raise wrong(file, "empty", expected="at least one row", got="none")
        parts += rows
        layouts.append(_layout(schema, how, rows[0]))
        if layouts[-1] != layouts[0]:
            expected = f"the columns and actions of {files[0]}: {layouts[0]}"
            raise wrong(file, "another log", expected=expected, got=layouts[-1])
    read = tuple(_Part(rows, layouts[0], how.on_bad) for rows in parts)
    return FileLog(name, layouts[0].actions, sum(part.slots for part in parts), read)


def _mapped(path: str) -> tuple[Any, mmap.mmap]:
    """The table in an IPC file or stream, whose columns are views of the mapped pages."""
    with Path(path).open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    whole = pa.py_buffer(pages)
    try:
        return pyarrow.ipc.open_file(whole).read_all(), pages
    except pa.ArrowInvalid:
        return pyarrow.ipc.open_stream(whole).read_all(), pages


@contextmanager
def readable(path: str, what: str, expected: str) -> Iterator[None]:
    """Inside the block pyarrow reads a file; what it cannot read is an error in one line."""
    try:
        yield
    except InvalidConfig:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise wrong(path, what, expected=expected, got=first_line(error)) from None


def _layout(schema: Any, how: ReadOptions, rows: Rows) -> _Layout:
    where = rows.file
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
        return _Layout(_list_actions(schema, how, rows), (LOSSES,), beside)
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


def _list_actions(schema: Any, how: ReadOptions, rows: Rows) -> tuple[str, ...]:
    """The actions of a list column: from metadata, or numbered by the first row's length."""
    where = f"{rows.file}: {LOSSES}"
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
        actions = numbered_actions(_first_length(rows))
    return named_actions(how.actions, actions, where=where)


def _first_length(rows: Rows) -> int:
    """The length of the first row that has losses."""
    for batch in rows.batches([LOSSES], portion=1024):
        lengths = batch.column(LOSSES).value_lengths().drop_null()
        if len(lengths):
            length = int(lengths[0].as_py())
            break
    else:
        length = 0
    if length < 2:
        raise wrong(f"{rows.file}: {LOSSES}", "too short", expected="2 or more numbers", got=length)
    return length
