"""Files of feedback: NDJSON, Parquet or Arrow IPC, with the columns of Open Bandit Pipeline.

| column | holds |
|---|---|
| `action` | the shown action: a name, or its number from 0 |
| `reward` or `loss` | its result, from 0 to 1; exactly one of the two |
| `pscore` | the probability of the draw, if it was logged |
| `position` | the place on a slate; with several places, each learns apart |
| `key`, `offset`, `partition` | as in every log |

Other columns are ignored. A row that cannot be used is an error that names the row. With `on_bad =
"null"` it counts as it would live: an unknown action is no arm, an unusable outcome is the loss
1/2. Numbers outside [0, 1] are clipped, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamdp.core.events import NO_ARM, Key
from streamdp.core.grid import as_float32, centred_gains
from streamdp.lab.offpolicy.log import Piece, ShownLog, arms_of, joined, with_positions
from streamdp.lab.replay.log import numbered_actions, wrong
from streamdp.lab.replay.sources import ReadOptions, need_pyarrow

ACTION, PSCORE, POSITION, KEY = "action", "pscore", "position", "key"
CONTENTS = ("reward", "loss")

Columns = Mapping[str, Sequence[Any]]


def holds_feedback(path: Path) -> bool:
    """Whether a file holds shown actions, by its columns or its first line."""
    if path.suffix.lower() in (".ndjson", ".jsonl"):
        return ACTION in _first_line(path)
    if path.suffix.lower() in (".parquet", ".arrow", ".feather", ".ipc"):
        names = set(_arrow_names(path))
        return ACTION in names and bool(names & set(CONTENTS))
    return False


def open_file(path: Path, how: ReadOptions, *, pscore: str = PSCORE) -> ShownLog:
    """The log in a file; `pscore` names the column of propensities."""
    lines = path.suffix.lower() in (".ndjson", ".jsonl")
    table = _lines(path, how, pscore) if lines else _arrow_columns(path, pscore)
    content = _content(str(path), table)
    where = _Where(str(path), "line" if lines else "row", table.get("line"))
    actions = _actions(table[ACTION], how, where)
    return joined(str(path), actions, _pieces(table, actions, content, pscore, how, where))


@dataclass(frozen=True, slots=True)
class _Where:
    """The name of a row in messages."""

    file: str
    kind: str
    numbers: Sequence[int] | None  # the line numbers; None: count rows from 0

    def row(self, at: int) -> str:
        return f"{self.file}: {self.kind} {at if self.numbers is None else self.numbers[at]}"


def _content(where: str, table: Columns) -> str:
    contents = [name for name in CONTENTS if name in table]
    if ACTION not in table or len(contents) != 1:
        expected = "a column `action` and one of `reward` and `loss`"
        raise wrong(where, "no feedback", expected=expected, got=", ".join(table) or "nothing")
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


def _pieces(
    table: Columns,
    actions: tuple[str, ...],
    content: str,
    pscore: str,
    how: ReadOptions,
    where: _Where,
) -> Iterator[Piece]:
    """The rows, one piece for each run of rows of one partition."""
    n = len(table[ACTION])
    played = arms_of(actions, table[ACTION])
    outcome = _numbers(table[content])
    propensity = _numbers(table[pscore]) if pscore in table else np.full(n, np.nan)
    if how.on_bad == "refuse":
        _check(played, outcome, propensity if pscore in table else None, content, where)
    propensity[~((propensity > 0) & (propensity <= 1))] = np.nan
    outside = np.isfinite(outcome) & ((outcome < 0) | (outcome > 1))
    narrow = as_float32(outcome.reshape(-1, 1), actions=1)[:, 0]
    gain = centred_gains(narrow) if content == "loss" else -centred_gains(narrow)
    keys = with_positions(_keys(table, n), table.get(POSITION) or [None] * n)
    offsets = _whole(table, "offset", where)
    partitions = _whole(table, "partition", where)
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


def _keys(table: Columns, n: int) -> Sequence[Key]:
    if KEY not in table:
        return [None] * n
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


def _lines(path: Path, how: ReadOptions, pscore: str) -> Columns:
    """The members of all lines as columns; a column that no line has is left out."""
    wanted = (ACTION, *CONTENTS, pscore, POSITION, KEY, "offset", "partition")
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    numbers: list[int] = []
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text.isspace():
                continue
            event = _event(text)
            if event is None and how.on_bad == "refuse":
                where = f"{path}: line {number}"
                raise wrong(where, "is not an event", expected="a JSON object", got="other text")
            numbers.append(number)
            for name in wanted:
                columns[name].append((event or {}).get(name))
    for name in (KEY, POSITION):
        kinds = (str, type(None)) if name == KEY else (int, type(None))
        _check_kind(columns[name], kinds, name, numbers, path)
    kept = {name: column for name, column in columns.items() if any(v is not None for v in column)}
    return {**kept, "line": numbers}


def _event(text: bytes) -> dict[str, Any] | None:
    try:
        event = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return event if isinstance(event, dict) else None


def _check_kind(
    values: Sequence[Any], kinds: tuple[type, ...], name: str, numbers: Sequence[int], path: Path
) -> None:
    for at, value in enumerate(values):
        if not isinstance(value, kinds):
            expected = "text or null" if str in kinds else "a whole number"
            where = f"{path}: line {numbers[at]}"
            raise wrong(where, name, expected=expected, got=type(value).__name__)


# -- Parquet and Arrow ---------------------------------------------------------------------------

_ROWS = 1 << 16


def _arrow_names(path: Path) -> list[str]:
    need_pyarrow(str(path))
    from streamdp.lab.replay.sources.arrow_files import schema_of

    names: list[str] = schema_of(path)[0].names
    return names


def _arrow_columns(path: Path, pscore: str) -> Columns:
    """The columns that the file has, numbers as arrays."""
    wanted = (ACTION, *CONTENTS, pscore, POSITION, KEY, "offset", "partition")
    names = [name for name in _arrow_names(path) if name in wanted]
    from streamdp.lab.replay.sources.arrow_files import batches_of

    columns: dict[str, list[Any]] = {name: [] for name in names}
    for batch in batches_of(path, names, portion=_ROWS):
        for name in names:
            columns[name] += batch.column(name).to_pylist()
    return columns
