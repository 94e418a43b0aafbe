"""Files of feedback: NDJSON, CSV, Parquet or Arrow IPC, with columns as in Open Bandit Pipeline.

| column | holds |
|---|---|
| `action` | the shown action: a name, or its number from 0 |
| `reward` or `loss` | its result, from 0 to 1; exactly one of the two |
| `pscore` | the probability of the draw, if it was logged |
| `position` | the place on a slate; with several places, each learns apart |
| `key`, `offset`, `partition` | as in every log |
| a field's name | its level, in a log with contexts: text, or a number |
| `context` | instead: all levels, as an object or as the header has them |

Columns may have other names (`Names`). All others are ignored. A row that cannot be used is an
error that names the row. With `on_bad = "null"` it counts as it would live: an unknown action is no
arm, an unusable outcome is the loss 1/2. Numbers outside [0, 1] are clipped, and counted.

A log may be several files, and of object stores. Its parts (row groups, or as many lines) are read
by workers (`lab.workers`), who write them where they stand in the log's columns.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.events import NO_ARM, Key, numbered
from streamdp.core.evidence.contexts import OTHER, Contexts, level
from streamdp.core.grid import gains_of
from streamdp.lab.common.mapped import Arrays, held, shared
from streamdp.lab.logs import LINES, TABLES, ReadOptions, ending, files_of, need_pyarrow
from streamdp.lab.logs.lines import Lines, lines_of
from streamdp.lab.logs.log import OnBad, numbered_actions, wrong
from streamdp.lab.logs.shown import (
    Coded,
    Piece,
    Run,
    ShownLog,
    SlotCells,
    arms_of,
    lay,
    log_of,
    room_for,
    with_positions,
)
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.workers import IN_PROCESS, Workers

if TYPE_CHECKING:
    from streamdp.lab.logs.table import Rows

CSV = ".csv"

ACTION, PSCORE, POSITION, KEY = "action", "pscore", "position", "key"
CONTENTS = ("reward", "loss")
_ROWS = 1 << 14  # read at once, as lists

OFFSET, PARTITION = "offset", "partition"
COLUMNS = (ACTION, *CONTENTS, PSCORE, POSITION, KEY, OFFSET, PARTITION)

CONTEXT = "context"
_OF_FIELD = "context."  # what we call a field's column begins so: a field may be named `key`

Fields = Contexts | tuple[str, ...] | None
"""The fields of a log's contexts; of those that are only named, a log's own values are levels."""

Columns = Mapping[str, Any]
"""Of each column the values: a list, `Coded`, or an array of numbers."""

Names = Mapping[str, str]
"""What a file calls its columns, by our names; a column that is left out has our name."""


def holds_feedback(file: str, names: Names = {}) -> bool:  # noqa: B006 - never changed
    """Whether a file holds shown actions, by its columns or its first line."""
    kind = ending(file)
    if kind in LINES:
        return names.get(ACTION, ACTION) in _first_line(file)
    if kind in TABLES:
        columns = set(_arrow_names(file))
        contents = {names.get(name, name) for name in CONTENTS}
        return names.get(ACTION, ACTION) in columns and bool(columns & contents)
    return False


def open_shown(
    source: str,
    how: ReadOptions,
    *,
    names: Names = {},  # noqa: B006 - never changed
    fields: Fields = None,
    most: Fraction | None = None,
    watch: Watch = unwatched,
    workers: Workers = IN_PROCESS,
) -> ShownLog:
    """The log in files, which are read twice where they say actions, places or levels themselves.

    `most`: the largest reward that counts, where they are in a unit.

    A source is a path, an address of an object store, or a pattern of either.
    """
    called = {name: names.get(name, name) for name in COLUMNS}
    if fields is not None:
        called |= _called(fields, names)
    files = _Files.of(source, how, called, watch, workers)
    seen = files.seen(fields)
    content = seen.content(called)
    if most is not None and content == "loss":
        raise wrong(source, "holds losses", expected="rewards, with --most", got="losses")
    actions = seen.actions(how)
    contexts = None if fields is None else seen.declared(fields, called)
    read = partial(
        _pieces,
        seen=seen.bare(),
        actions=actions,
        content=content,
        most=most,
        contexts=contexts,
        several=len(seen.places) > 1,
    )
    near = workers.near is workers
    columns = room_for(files.slots, shared if near and workers.apart else held)
    return log_of(source, actions, columns, files.laid(columns, read, near=near), contexts)


def open_cells(
    source: str,
    how: ReadOptions,
    fields: Contexts | tuple[str, ...],
    names: Names,
    watch: Watch,
    workers: Workers = IN_PROCESS,
) -> tuple[SlotCells, tuple[str, ...]]:
    """The cell of each row of a log of losses, and the columns that say them."""
    if (kind := ending(source)) not in (*LINES, *TABLES):
        expected = ".ndjson, .jsonl, .parquet, .arrow, .feather or .csv: they have columns"
        raise wrong(source, "no contexts", expected=expected, got=kind or "no ending")
    called = _called(fields, names)
    files = _Files.of(source, how, called, watch, workers)
    seen = files.seen(fields)
    contexts = seen.declared(fields, called)
    cells = files.map(partial(_cells_of, seen=seen.bare(), contexts=contexts))
    return SlotCells(contexts, np.concatenate([*cells])), tuple(called.values())


T = TypeVar("T")
Part: TypeAlias = "Lines | Rows"
"""Rows that are read by themselves."""


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a log, and how they are read."""

    source: str
    parts: Sequence[Part]
    how: ReadOptions
    called: Names
    watch: Watch
    workers: Workers

    @classmethod
    def of(
        cls, source: str, how: ReadOptions, called: Names, watch: Watch, workers: Workers
    ) -> _Files:
        """Those that a path, an address or a pattern names."""
        parts: list[Part] = []
        for file in files_of(source):
            first = sum(part.slots for part in parts)
            if ending(file) in LINES:
                parts += lines_of(Path(file), first=first)
            else:
                from streamdp.lab.logs.table import rows_of

                parts += rows_of(file, first=first)
        if not parts:
            raise wrong(source, "empty", expected="at least one row", got="none")
        return cls(source, parts, how, called, watch, workers)

    def map(
        self, work: Callable[[Part, Iterable[_Table]], T], called: Names | None = None
    ) -> Iterator[T]:
        """What some work makes of the rows of each part, in the log's order."""
        tell, done = self.watch(f"reading {self.source}, rows", self.slots), 0
        named = self.called if called is None else called
        if not self.workers.apart:
            for part in self.parts:
                yield work(part, _told(_tables(part, named, self.how), tell))
            return
        on_part = partial(_worked, work=work, called=named, how=self.how)
        for part, found in zip(self.parts, self.workers.map(on_part, self.parts), strict=True):
            yield found
            done += part.slots
            tell(done)

    def laid(
        self, columns: Arrays, read: Callable[[_Table], list[Piece]], *, near: bool
    ) -> Iterator[Run]:
        """Lay the rows into columns, each part where it stands.

        Whoever reads a part writes it there, if it finds them; others send their rows.
        """
        work = partial(_laid, columns=columns if near else (), read=read)
        for part, (sent, runs) in zip(self.parts, self.map(work), strict=True):
            for column, own in zip(columns, sent, strict=False):  # nothing, or all
                column[part.first : part.first + part.slots] = own
            yield from runs

    @property
    def slots(self) -> int:
        """The number of rows."""
        return sum(part.slots for part in self.parts)

    def seen(self, fields: Fields) -> _Seen:
        """What the files say themselves."""
        named = _names_of(fields) if isinstance(fields, tuple) else []
        asked = {POSITION, *(_OF_FIELD + name for name in named)}
        asked |= {ACTION} if self.how.actions is None else set()
        seen, called = _Seen(self.source), self.called
        if not (lines := isinstance(self.parts[0], Lines)):
            for file in dict.fromkeys(part.file for part in self.parts):
                theirs = set(_arrow_names(file))
                seen.there |= {name for name, of in called.items() if of in theirs}
            called = {name: called[name] for name in seen.there & asked}
        if called:
            for said in self.map(partial(_said, asked=asked, lines=lines), called):
                seen.add(said)
        return seen


def _worked(
    part: Part, *, work: Callable[[Part, Iterable[_Table]], T], called: Names, how: ReadOptions
) -> T:
    """What some work makes of the rows of a part."""
    return work(part, _tables(part, called, how))


def _told(tables: Iterable[_Table], tell: Callable[[int], None]) -> Iterator[_Table]:
    for table in tables:
        yield table
        tell(table.rows.stop)


def _laid(
    part: Part,
    tables: Iterable[_Table],
    *,
    columns: Arrays,
    read: Callable[[_Table], list[Piece]],
) -> tuple[Arrays, list[Run]]:
    """Lay the rows of a part into columns of all rows, or else into its own, which are sent."""
    sent = () if columns else room_for(part.slots, np.zeros)
    own = sent or tuple(column[part.first : part.first + part.slots] for column in columns)
    return sent, lay(own, chain.from_iterable(map(read, tables)))


@dataclass(frozen=True, slots=True)
class _Table:
    """Some rows of a file."""

    file: str
    columns: Columns
    rows: range
    lines: Sequence[int] | None  # the line numbers; None: count rows from 0
    on_bad: OnBad

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, at: int) -> str:
        """The name of a row in messages."""
        named = f"row {self.rows[at]}" if self.lines is None else f"line {self.lines[at]}"
        return f"{self.file}: {named}"


@dataclass(slots=True)
class _Seen:
    """What a file says itself: its columns, actions, places on a slate, and levels."""

    file: str
    there: set[str] = field(default_factory=set)  # columns, by our names
    shown: set[object] = field(default_factory=set)
    places: set[object] = field(default_factory=set)
    levels: dict[str, set[Any]] = field(default_factory=dict)

    def add(self, more: _Seen) -> None:
        """Add what other rows say."""
        self.there |= more.there
        self.shown |= more.shown
        self.places |= more.places
        for name, levels in more.levels.items():
            self.levels.setdefault(name, set()).update(levels)

    def bare(self) -> _Seen:
        """The columns alone."""
        return _Seen(self.file, self.there)

    def filled(self, table: _Table) -> _Table:
        """Rows with all columns that the file has."""
        nothing = [None] * len(table)
        return replace(
            table, columns={name: table.columns.get(name, nothing) for name in self.there}
        )

    def content(self, called: Names) -> str:
        """The column of outcomes; refused if there is not exactly one."""
        contents = [name for name in CONTENTS if name in self.there]
        if ACTION not in self.there or len(contents) != 1:
            action, reward, loss = (called[name] for name in (ACTION, *CONTENTS))
            expected = f"a column `{action}` and one of `{reward}` and `{loss}`, or --columns"
            got = ", ".join(of for name, of in called.items() if name in self.there)
            raise wrong(self.file, "no feedback", expected=expected, got=got or "none of these")
        return contents[0]

    def actions(self, how: ReadOptions) -> tuple[str, ...]:
        """The actions as given, or all that the file names: numbers up to the largest, or names."""
        if how.actions is not None:
            return how.actions
        named = {name for name in self.shown if isinstance(name, str)}
        numbers = {of for of in self.shown if isinstance(of, int) and not isinstance(of, bool)}
        if named and numbers:
            both = f"{min(named)!r} and {min(numbers)}"
            raise wrong(self.file, "action", expected="names or numbers", got=both)
        actions = tuple(sorted(named)) if named else numbered_actions(1 + max(numbers, default=-1))
        if len(actions) < 2:
            expected = "2 or more actions in the file, or --actions"
            raise wrong(self.file, "too few actions", expected=expected, got=len(actions))
        return actions

    def declared(self, fields: Contexts | tuple[str, ...], called: Names) -> Contexts:
        """The fields with their levels; refused if the file has no column for one."""
        named = _names_of(fields)
        missing = [name for name in named if _OF_FIELD + name not in self.there]
        if missing and (CONTEXT not in self.there or len(missing) < len(named)):
            expected = f"a column `{called[_OF_FIELD + missing[0]]}`, or --columns"
            what = f"no context field {missing[0]}"
            raise wrong(self.file, what, expected=expected, got="none")
        if isinstance(fields, Contexts):
            return fields
        if missing:
            expected = "fields with their levels, as JSON or in a configuration"
            raise wrong(self.file, "levels", expected=expected, got=f"a column `{CONTEXT}`")
        levels = {}
        for name in named:
            values = self.levels[_OF_FIELD + name]
            if any(isinstance(value, float) for value in values):
                expected = 'texts or whole numbers, or cuts: {"age": {"cuts": [18, 65]}}'
                raise wrong(self.file, f"context field {name}", expected=expected, got="fractions")
            levels[name] = sorted(of for of in values if isinstance(of, str) and of != OTHER)
        return Contexts.read(levels)


def _called(fields: Contexts | tuple[str, ...], names: Names) -> dict[str, str]:
    """What a file calls the columns of contexts, by our names."""
    return {CONTEXT: CONTEXT, **{_OF_FIELD + of: names.get(of, of) for of in _names_of(fields)}}


def _said(part: Part, tables: Iterable[_Table], *, asked: set[str], lines: bool) -> _Seen:
    """What some rows say of actions, places and levels."""
    seen = _Seen(part.file)
    for table in tables:
        for name, column in table.columns.items():
            seen.there.add(name)
            if name == POSITION:
                _check_kind(column, (int, type(None)), POSITION, table)
                seen.places.update(column)
            elif name == ACTION and name in asked:
                named = column.values if isinstance(column, Coded) else column
                seen.shown.update(shown for shown in named if isinstance(shown, str | int))
            elif name in asked:
                seen.levels.setdefault(name, set()).update(map(level, column))
        if lines and POSITION not in table.columns:
            seen.places.add(None)
    return seen


def _tables(part: Part, called: Names, how: ReadOptions) -> Iterator[_Table]:
    """The rows of a part, some thousands at a time."""
    return (
        _lines(part, how, called) if isinstance(part, Lines) else _arrow_columns(part, how, called)
    )


def _cells_of(
    part: Part, tables: Iterable[_Table], *, seen: _Seen, contexts: Contexts
) -> NDArray[np.int64]:
    cells = (_cells(contexts, seen.filled(table).columns, len(table)) for table in tables)
    return np.concatenate([np.zeros(0, np.int64), *cells])


def _names_of(fields: Contexts | tuple[str, ...]) -> list[str]:
    return list(fields) if isinstance(fields, tuple) else [field.name for field in fields.fields]


def _cells(contexts: Contexts, table: Columns, n: int) -> NDArray[np.int64]:
    """The cell of each row, as live: what is not listed is `other`."""
    columns = [_OF_FIELD + field.name for field in contexts.fields]
    if columns[0] not in table:
        return np.fromiter((_cell(contexts, row) for row in table[CONTEXT]), np.int64, n)
    return np.array(contexts.cells_of([table[name] for name in columns]), dtype=np.int64)


def _cell(contexts: Contexts, written: object) -> int:
    if isinstance(written, Mapping):
        return contexts.cell({str(name): level(of) for name, of in written.items()})
    return contexts.cell_of_header(written.encode() if isinstance(written, str) else None)


def _pieces(
    rows: _Table,
    *,
    seen: _Seen,
    actions: tuple[str, ...],
    content: str,
    most: Fraction | None,
    contexts: Contexts | None,
    several: bool,
) -> list[Piece]:
    """Rows of a file, one piece for each run of rows of one partition."""
    rows = seen.filled(rows)
    n, table = len(rows), rows.columns
    played = arms_of(actions, table[ACTION])
    outcome = _numbers(table[content])
    propensity = _numbers(table[PSCORE]) if PSCORE in table else np.full(n, np.nan)
    if rows.on_bad == "refuse":
        _check(played, outcome, propensity if PSCORE in table else None, content, rows)
    if contexts is not None:
        cells = _cells(contexts, table, n)
        played = np.where(played == NO_ARM, NO_ARM, cells * len(actions) + played).astype(np.int32)
    propensity[~((propensity > 0) & (propensity <= 1))] = np.nan
    largest = 1.0 if most is None else float(most)
    outside = np.isfinite(outcome) & ((outcome < 0) | (outcome > largest))
    gain = gains_of(outcome, content, largest)
    keys = _keys(rows)
    if several:
        keys = with_positions(keys, table.get(POSITION) or [None] * n)
    offsets, partitions = _whole(rows, OFFSET), _whole(rows, PARTITION)
    offsets = np.arange(rows.rows.start, rows.rows.stop) if offsets is None else offsets
    partitions = np.zeros(n, dtype=np.int64) if partitions is None else partitions
    starts = np.flatnonzero(np.diff(partitions, prepend=-1)).tolist()
    parts = [slice(*ends) for ends in zip(starts, [*starts[1:], n], strict=True)]
    return [
        Piece(
            int(partitions[part.start]),
            *_distinct(keys, part),
            offsets[part],
            played[part],
            gain[part].astype(np.int32),
            propensity[part],
            int(outside[part].sum()),
        )
        for part in parts
    ]


def _distinct(keys: Sequence[Key], part: slice) -> tuple[Sequence[Key], Ints]:
    """The keys of some rows, each once as they first occur, and which of them a row has."""
    if isinstance(keys, Coded) and part == slice(0, len(keys)):
        return keys.values, keys.which
    return numbered(keys[part])


def _check(
    played: NDArray[np.int32],
    outcome: NDArray[np.float64],
    propensity: NDArray[np.float64] | None,
    content: str,
    where: _Table,
) -> None:
    """Refuse the first row that cannot be used."""
    bad = [
        (np.flatnonzero(played == NO_ARM), ACTION, "one of the actions"),
        (np.flatnonzero(~np.isfinite(outcome)), content, "a number"),
    ]
    if propensity is not None:
        good = (propensity > 0) & (propensity <= 1)
        bad.append((np.flatnonzero(~good), PSCORE, "a probability above 0, at most 1"))
    for rows, name, expected in bad:
        if len(rows):
            raise wrong(where.row(int(rows[0])), name, expected=expected, got="another value")


def _numbers(values: Any) -> NDArray[np.float64]:
    """The values as floats; NaN for anything but a number."""
    if isinstance(values, np.ndarray):
        return values.astype(np.float64)
    plain = [v if isinstance(v, int | float) and not isinstance(v, bool) else None for v in values]
    return np.array([np.nan if value is None else value for value in plain], dtype=np.float64)


def _keys(rows: _Table) -> Sequence[Key]:
    if KEY not in rows.columns:
        return [None] * len(rows)
    keys = rows.columns[KEY]
    if isinstance(keys, Coded):
        return Coded([key.encode() if isinstance(key, str) else key for key in keys.values],
                     keys.which)  # fmt: skip
    _check_kind(keys, (str, bytes, type(None)), KEY, rows)
    return [key.encode() if isinstance(key, str) else key for key in keys]


def _whole(rows: _Table, name: str) -> NDArray[np.int64] | None:
    if name not in rows.columns:
        return None
    values = np.array(rows.columns[name])
    if values.dtype.kind not in "iu":
        raise wrong(
            f"{rows.file}: {name}", "type", expected="a whole number in each", got=values.dtype
        )
    below = np.flatnonzero(values < 0)
    if len(below):
        at = int(below[0])
        raise wrong(rows.row(at), name, expected="0 or more", got=int(values[at]))
    return values.astype(np.int64)


# -- JSON lines ----------------------------------------------------------------------------------


def _first_line(path: str) -> Mapping[str, object]:
    with Path(path).open("rb") as file:
        for text in file:
            if not text.isspace():
                try:
                    event = msgspec.json.decode(text)
                except (msgspec.MsgspecError, UnicodeError):
                    return {}
                return event if isinstance(event, dict) else {}
    return {}


def _lines(part: Lines, how: ReadOptions, called: Names) -> Iterator[_Table]:
    """The members of lines as columns; a column that none of some lines has is left out there."""
    for texts, numbers, rows in part.read():
        events = [_event(text) for text in texts]
        if None in events and how.on_bad == "refuse":
            where = f"{part.file}: line {numbers[events.index(None)]}"
            raise wrong(where, "is not an event", expected="a JSON object", got="other text")
        columns = {
            name: [None if event is None else event.get(of) for event in events]
            for name, of in called.items()
        }
        kept = {
            name: column
            for name, column in columns.items()
            if any(value is not None for value in column)
        }
        yield _Table(part.file, kept, rows, numbers, how.on_bad)


def _event(text: bytes) -> dict[str, Any] | None:
    try:
        event = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return event if isinstance(event, dict) else None


def _check_kind(values: Sequence[Any], kinds: tuple[type, ...], name: str, where: _Table) -> None:
    for at, value in enumerate(values):
        if not isinstance(value, kinds):
            expected = "text or null" if str in kinds else "a whole number"
            raise wrong(where.row(at), name, expected=expected, got=type(value).__name__)


# -- CSV, Parquet and Arrow ----------------------------------------------------------------------


def _arrow_names(file: str) -> list[str]:
    need_pyarrow(file)
    from streamdp.lab.logs.table import schema_of

    if ending(file) == CSV:
        with Path(file).open(newline="", encoding="utf-8", errors="replace") as text:
            return next(csv.reader(text), [])
    names: list[str] = schema_of(file)[0].names
    return names


def _arrow_columns(part: Rows, how: ReadOptions, called: Names) -> Iterator[_Table]:
    """The columns that the file has, by our names."""
    there, done = _arrow_names(part.file), part.first
    named = {name: theirs for name, theirs in called.items() if theirs in there}
    texts = [theirs for name, theirs in called.items() if name == KEY or CONTEXT in name]
    for batch in part.batches([*named.values()], portion=_ROWS, texts=texts):
        columns = {name: _column(name, batch.column(theirs)) for name, theirs in named.items()}
        if ending(part.file) == CSV:  # one text makes texts of a whole column
            for name in {
                name for name in (*CONTENTS, PSCORE) if isinstance(columns.get(name), list)
            }:
                columns[name] = [_number_in(value) for value in columns[name]]
        rows = range(done, done + batch.num_rows)
        yield _Table(part.file, columns, rows, None, how.on_bad)
        done = rows.stop


def _column(name: str, column: Any) -> Any:
    """The values of a column; in arrays where its type is a usual one."""
    from pyarrow import types

    from streamdp.lab.logs.table import numbers_of

    kind = column.type
    if name in (*CONTENTS, PSCORE) and (types.is_integer(kind) or types.is_floating(kind)):
        return numbers_of(column)
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if (name == KEY and any(of(kind) for of in texts)) or (
        name == ACTION and (types.is_integer(kind) or any(of(kind) for of in texts))
    ):
        coded = column.dictionary_encode(null_encoding="encode")
        return Coded(coded.dictionary.to_pylist(), numbers_of(coded.indices).astype(np.int64))
    return column.to_pylist()


def _number_in(value: Any) -> Any:
    """The number that a text holds, or the text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
