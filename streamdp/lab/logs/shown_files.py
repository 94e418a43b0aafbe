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
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamdp.core.events import NO_ARM, Key
from streamdp.core.evidence.contexts import OTHER, Contexts, level
from streamdp.core.grid import as_float32, centred_gains
from streamdp.lab.logs import ReadOptions, need_pyarrow
from streamdp.lab.logs.log import numbered_actions, wrong
from streamdp.lab.logs.shown import (
    Piece,
    ShownLog,
    SlotCells,
    arms_of,
    joined,
    with_positions,
)
from streamdp.lab.logs.stages import Watch, unwatched

LINES, CSV = (".ndjson", ".jsonl"), ".csv"

ACTION, PSCORE, POSITION, KEY = "action", "pscore", "position", "key"
CONTENTS = ("reward", "loss")
_ROWS = 1 << 16  # read between two looks at the progress

OFFSET, PARTITION = "offset", "partition"
COLUMNS = (ACTION, *CONTENTS, PSCORE, POSITION, KEY, OFFSET, PARTITION)

CONTEXT = "context"
_OF_FIELD = "context."  # what we call a field's column begins so: a field may be named `key`

Fields = Contexts | tuple[str, ...] | None
"""The fields of a log's contexts; of those that are only named, a log's own values are levels."""

Columns = Mapping[str, Sequence[Any]]

Names = Mapping[str, str]
"""What a file calls its columns, by our names; a column that is left out has our name."""


def holds_feedback(path: Path, names: Names = {}) -> bool:  # noqa: B006 - never changed
    """Whether a file holds shown actions, by its columns or its first line."""
    kind = path.suffix.lower()
    if kind in LINES:
        return names.get(ACTION, ACTION) in _first_line(path)
    if kind in (CSV, ".parquet", ".arrow", ".feather", ".ipc"):
        columns = set(_arrow_names(path))
        contents = {names.get(name, name) for name in CONTENTS}
        return names.get(ACTION, ACTION) in columns and bool(columns & contents)
    return False


def open_file(
    path: Path,
    how: ReadOptions,
    *,
    names: Names = {},  # noqa: B006 - never changed
    fields: Fields = None,
    watch: Watch = unwatched,
) -> ShownLog:
    """The log in a file."""
    called = {name: names.get(name, name) for name in COLUMNS}
    if fields is not None:
        called |= _called(fields, names)
    table = _read(path, how, called, watch)
    content = _content(str(path), table, called)
    row = "line" if path.suffix.lower() in LINES else "row"
    where = _Where(str(path), row, table.get("line"))
    actions = _actions(table[ACTION], how, where)
    contexts = None if fields is None else _declared(fields, table, called, where)
    return joined(
        str(path), actions, _pieces(table, actions, content, contexts, how, where), contexts
    )


def open_cells(
    path: Path, how: ReadOptions, fields: Contexts | tuple[str, ...], names: Names, watch: Watch
) -> tuple[SlotCells, tuple[str, ...]]:
    """The cell of each row of a file of losses, and the columns that say them."""
    if path.suffix.lower() not in (*LINES, ".parquet", ".arrow", ".feather", ".ipc"):
        expected = ".ndjson, .jsonl, .parquet, .arrow or .feather: they have columns"
        raise wrong(str(path), "no contexts", expected=expected, got=path.suffix or "no ending")
    called = _called(fields, names)
    table = _read(path, how, called, watch)
    contexts = _declared(fields, table, called, _Where(str(path), "row", None))
    rows = len(next(column for name, column in table.items() if name in called))
    return SlotCells(contexts, _cells(contexts, table, rows)), tuple(called.values())


def _called(fields: Contexts | tuple[str, ...], names: Names) -> dict[str, str]:
    """What a file calls the columns of contexts, by our names."""
    return {CONTEXT: CONTEXT, **{_OF_FIELD + of: names.get(of, of) for of in _names_of(fields)}}


def _read(path: Path, how: ReadOptions, called: Names, watch: Watch) -> Columns:
    if path.suffix.lower() in LINES:
        return _lines(path, how, called, watch)
    return _arrow_columns(path, called, watch)


@dataclass(frozen=True, slots=True)
class _Where:
    """The name of a row in messages."""

    file: str
    kind: str
    numbers: Sequence[int] | None  # the line numbers; None: count rows from 0

    def row(self, at: int) -> str:
        return f"{self.file}: {self.kind} {at if self.numbers is None else self.numbers[at]}"


def _content(where: str, table: Columns, called: Names) -> str:
    contents = [name for name in CONTENTS if name in table]
    if ACTION not in table or len(contents) != 1:
        action, reward, loss = (called[name] for name in (ACTION, *CONTENTS))
        expected = f"a column `{action}` and one of `{reward}` and `{loss}`, or --columns"
        got = ", ".join(called[name] for name in table if name in called) or "none of these"
        raise wrong(where, "no feedback", expected=expected, got=got)
    return contents[0]


def _actions(shown: Sequence[Any], how: ReadOptions, where: _Where) -> tuple[str, ...]:
    """The actions as given, or all that the file names: numbers up to the largest, or names."""
    if how.actions is not None:
        return how.actions
    named = {name for name in shown if isinstance(name, str)}
    numbers = {arm for arm in shown if isinstance(arm, int) and not isinstance(arm, bool)}
    if named and numbers:
        both = f"{min(named)!r} and {min(numbers)}"
        raise wrong(where.file, "action", expected="names or numbers", got=both)
    actions = tuple(sorted(named)) if named else numbered_actions(1 + max(numbers, default=-1))
    if len(actions) < 2:
        expected = "2 or more actions in the file, or --actions"
        raise wrong(where.file, "too few actions", expected=expected, got=len(actions))
    return actions


def _names_of(fields: Contexts | tuple[str, ...]) -> list[str]:
    return list(fields) if isinstance(fields, tuple) else [field.name for field in fields.fields]


def _declared(
    fields: Contexts | tuple[str, ...], table: Columns, called: Names, where: _Where
) -> Contexts:
    """The fields with their levels; refused if the file has no column for one."""
    named = _names_of(fields)
    missing = [name for name in named if _OF_FIELD + name not in table]
    if missing and (CONTEXT not in table or len(missing) < len(named)):
        expected = f"a column `{called[_OF_FIELD + missing[0]]}`, or --columns"
        raise wrong(where.file, f"no context field {missing[0]}", expected=expected, got="none")
    if isinstance(fields, Contexts):
        return fields
    if missing:
        expected = "fields with their levels, as JSON or in a configuration"
        raise wrong(where.file, "levels", expected=expected, got=f"a column `{CONTEXT}`")
    levels = {}
    for name in named:
        values = {level(value) for value in table[_OF_FIELD + name]}
        if any(isinstance(value, float) for value in values):
            expected = 'texts or whole numbers, or cuts: {"age": {"cuts": [18, 65]}}'
            raise wrong(where.file, f"context field {name}", expected=expected, got="fractions")
        levels[name] = sorted(of for of in values if isinstance(of, str) and of != OTHER)
    return Contexts.read(levels)


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
    table: Columns,
    actions: tuple[str, ...],
    content: str,
    contexts: Contexts | None,
    how: ReadOptions,
    where: _Where,
) -> Iterator[Piece]:
    """The rows, one piece for each run of rows of one partition."""
    n = len(table[ACTION])
    played = arms_of(actions, table[ACTION])
    outcome = _numbers(table[content])
    propensity = _numbers(table[PSCORE]) if PSCORE in table else np.full(n, np.nan)
    if how.on_bad == "refuse":
        _check(played, outcome, propensity if PSCORE in table else None, content, where)
    if contexts is not None:
        cells = _cells(contexts, table, n)
        played = np.where(played == NO_ARM, NO_ARM, cells * len(actions) + played).astype(np.int32)
    propensity[~((propensity > 0) & (propensity <= 1))] = np.nan
    outside = np.isfinite(outcome) & ((outcome < 0) | (outcome > 1))
    narrow = as_float32(outcome.reshape(-1, 1), actions=1)[:, 0]
    gain = centred_gains(narrow) if content == "loss" else -centred_gains(narrow)
    positions = table.get(POSITION) or [None] * n
    _check_kind(positions, (int, type(None)), POSITION, where)
    keys = with_positions(_keys(table, n, where), positions)
    offsets = _whole(table, OFFSET, where)
    partitions = _whole(table, PARTITION, where)
    offsets = np.arange(n) if offsets is None else offsets
    partitions = np.zeros(n, dtype=np.int64) if partitions is None else partitions
    starts = np.flatnonzero(np.diff(partitions, prepend=-1)).tolist()
    for begin, end in zip(starts, [*starts[1:], n], strict=True):
        part = slice(begin, end)
        yield Piece(
            int(partitions[begin]),
            keys[part],
            offsets[part],
            played[part],
            gain[part],
            propensity[part],
            int(outside[part].sum()),
        )


def _check(
    played: NDArray[np.int32],
    outcome: NDArray[np.float64],
    propensity: NDArray[np.float64] | None,
    content: str,
    where: _Where,
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


def _numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """The values as floats; NaN for anything but a number."""
    plain = [v if isinstance(v, int | float) and not isinstance(v, bool) else None for v in values]
    return np.array([np.nan if value is None else value for value in plain], dtype=np.float64)


def _keys(table: Columns, n: int, where: _Where) -> Sequence[Key]:
    if KEY not in table:
        return [None] * n
    _check_kind(table[KEY], (str, bytes, type(None)), KEY, where)
    return [key.encode() if isinstance(key, str) else key for key in table[KEY]]


def _whole(table: Columns, name: str, where: _Where) -> NDArray[np.int64] | None:
    if name not in table:
        return None
    values = np.array(table[name])
    if values.dtype.kind not in "iu":
        raise wrong(
            f"{where.file}: {name}", "type", expected="a whole number in each", got=values.dtype
        )
    below = np.flatnonzero(values < 0)
    if len(below):
        at = int(below[0])
        raise wrong(where.row(at), name, expected="0 or more", got=int(values[at]))
    return values.astype(np.int64)


# -- JSON lines ----------------------------------------------------------------------------------


def _first_line(path: Path) -> Mapping[str, object]:
    with path.open("rb") as file:
        for text in file:
            if not text.isspace():
                try:
                    event = msgspec.json.decode(text)
                except (msgspec.MsgspecError, UnicodeError):
                    return {}
                return event if isinstance(event, dict) else {}
    return {}


def _lines(path: Path, how: ReadOptions, called: Names, watch: Watch) -> Columns:
    """The members of all lines as columns; a column that no line has is left out."""
    columns: dict[str, list[Any]] = {name: [] for name in called}
    numbers: list[int] = []
    tell = watch(f"reading {path}, bytes", path.stat().st_size)
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if number % _ROWS == 0:
                tell(file.tell())
            if text.isspace():
                continue
            event = _event(text)
            if event is None and how.on_bad == "refuse":
                where = f"{path}: line {number}"
                raise wrong(where, "is not an event", expected="a JSON object", got="other text")
            numbers.append(number)
            for name, column in columns.items():
                column.append((event or {}).get(called[name]))
    kept = {name: column for name, column in columns.items() if any(v is not None for v in column)}
    return {**kept, "line": numbers}


def _event(text: bytes) -> dict[str, Any] | None:
    try:
        event = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return event if isinstance(event, dict) else None


def _check_kind(values: Sequence[Any], kinds: tuple[type, ...], name: str, where: _Where) -> None:
    for at, value in enumerate(values):
        if not isinstance(value, kinds):
            expected = "text or null" if str in kinds else "a whole number"
            raise wrong(where.row(at), name, expected=expected, got=type(value).__name__)


# -- CSV, Parquet and Arrow ----------------------------------------------------------------------


def _arrow_names(path: Path) -> list[str]:
    need_pyarrow(str(path))
    from streamdp.lab.logs.table import schema_of

    if path.suffix.lower() == CSV:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            return next(csv.reader(file), [])
    names: list[str] = schema_of(str(path))[0].names
    return names


def _arrow_columns(path: Path, called: Names, watch: Watch) -> Columns:
    """The columns that the file has, by our names."""
    from streamdp.lab.logs.table import rows_of

    there = _arrow_names(path)
    named = {name: theirs for name, theirs in called.items() if theirs in there}
    columns: dict[str, list[Any]] = {name: [] for name in named}
    texts = [theirs for name, theirs in called.items() if name == KEY or CONTEXT in name]
    parts = [*rows_of(str(path))]
    tell, done = watch(f"reading {path}, rows", sum(part.slots for part in parts)), 0
    names = list(named.values())
    batches = (batch for part in parts for batch in part.batches(names, portion=_ROWS, texts=texts))
    for batch in batches:
        for name, theirs in named.items():
            columns[name] += batch.column(theirs).to_pylist()
        done += batch.num_rows
        tell(done)
    if path.suffix.lower() == CSV:  # one text makes texts of a whole column
        for name in {*CONTENTS, PSCORE} & columns.keys():
            columns[name] = [_number_in(value) for value in columns[name]]
    return columns


def _number_in(value: Any) -> Any:
    """The number that a text holds, or the text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
