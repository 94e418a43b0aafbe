"""Strictly reads the events of a file: JSON lines, CSV, or rows of a NumPy file.

1. Nothing is repaired: a value that the service would clip, null or ignore must be mended by its
   producer. (For a log, `replay losses` clips as the service does, and says how often.) Unknown
   members, columns and actions are refused: a mistyped name would lose its value.
2. Every error names file and line, and describes values by name and type; it never quotes a loss.
3. A key is text (``key``), or base64 (``key_base64``) if it is not UTF-8, as in published lines.
4. An event of a feedback stream is the shown action and its result: ``{"key": "fr", "action":
   "banner", "reward": 1}``, with ``"context": {"device": "phone"}`` where the stream has contexts
   (``device=phone`` in CSV); ``loss`` instead of ``reward`` if the stream is configured so. With
   ``most`` a reward is any number from 0, in the stream's unit; more than ``most`` counts as that.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple, TypeVar

from msgspec import (
    UNSET,
    DecodeError,
    Meta,
    Struct,
    UnsetType,
    ValidationError,
    convert,
    defstruct,
    json,
)
from msgspec.structs import fields

from streamdp.cli._printable import word
from streamdp.core.errors import refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamdp.wire.feedback import Feedback

S = TypeVar("S", bound="Keyed")

KEYS = ("key", "key_base64")
CONTEXT = str | dict[str, Any]
MOST_NAMES = 10  # in a message

_NUMBER = "a number in [0, 1]"
_Number = Annotated[float, Meta(ge=0, le=1)]
_Amount = Annotated[float, Meta(ge=0)]
_EXPECTED = {
    "key": "text or null",
    "key_base64": "text in base64",
    "losses": "a list, or an object by action",
    "action": "an action's name",
    "loss": _NUMBER,
    "reward": _NUMBER,
    "items": "lists by action",
    "predictions": "numbers by action",
    "context": "levels by their fields",
    "request": "the id that request and outcomes share",
    "pscore": "a number in (0, 1]",
    "person": "text",
    "filter": "16 digits of 0-9 and a-f, as the answer has them",
    "list": "a number from 1, as the answer has it",
}
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    type(None): "null",
}


class Keyed(Struct, kw_only=True, forbid_unknown_fields=True):
    """What every line may say: the key that it is about."""

    key: str | UnsetType | None = UNSET
    key_base64: bytes | UnsetType = UNSET

    def key_or(self, default: bytes | None) -> bytes | None:
        """The line's own key; only one that says none has the one by default."""
        if self.key_base64 is not UNSET:
            return self.key_base64
        if self.key is UNSET:
            return default
        return None if self.key is None else self.key.encode()


class _Losses(Keyed, kw_only=True):
    losses: list[Any] | dict[str, Any]


class Event(NamedTuple):
    """One row of losses, the key that it is about, and its place in the file."""

    key: bytes | None
    losses: Sequence[float]
    where: str


class ShownEvent(NamedTuple):
    """The action shown for one request, its result, and the line it was read from."""

    key: bytes | None
    arm: int
    number: float  # the loss or reward
    where: str


def events(
    file: str, source: BinaryIO, *, actions: Sequence[str], key: bytes | None
) -> Iterator[Event]:
    """The events of a file, by its name's ending; `key` is for events without one."""
    if file.endswith(".npy"):
        yield from _from_numpy(file, source, actions, key)
        return
    if file.endswith(".csv"):
        for where, row in _csv_rows(file, source, actions, KEYS):
            keys = {name: row[name] for name in KEYS if name in row and name not in actions}
            own = read(where, keys, Keyed).key_or(key)
            numbers = [_number(row[name]) for name in actions]
            yield Event(own, _checked(where, numbers, actions), where)
        return
    for where, line in json_lines(file, source):
        event = read(where, {"losses": line} if isinstance(line, list) else line, _Losses)
        losses = event.losses
        if isinstance(losses, dict):  # a missing one is ½, as in the service
            for name in losses.keys() - set(actions):
                refuse(where, "unknown action", names(actions), word(name))
            losses = [losses.get(action, 0.5) for action in actions]
        if len(losses) != len(actions):
            refuse(where, "wrong number of losses", f"{len(actions)}, one an action", len(losses))
        yield Event(event.key_or(key), _checked(where, losses, actions), where)


def shown_events(
    file: str, source: BinaryIO, *, feedback: Feedback, key: bytes | None
) -> Iterator[ShownEvent]:
    """The feedback of a file, by its name's ending; `key` is for events without one."""
    if file.endswith(".npy"):
        refuse(file, "holds no feedback", "JSON lines or CSV, with the actions' names", "an array")
    number, context = feedback.content, context_of(feedback)
    of_number, usable = _Number, _EXPECTED
    if feedback.most is not None:
        of_number, usable = _Amount, {**_EXPECTED, number: "a number from 0"}
    shape = shape_of(Keyed, ("action", str), (number, of_number), *context)
    rows: Iterable[tuple[str, Any]] = json_lines(file, source)
    if file.endswith(".csv"):
        columns = [*KEYS, *(name for name, *_ in context)]
        table = _csv_rows(file, source, ("action", number), columns)
        rows = ((where, {**row, number: _number(row[number])}) for where, row in table)
    for where, row in rows:
        event: Any = read(where, row, shape, usable, usable)
        check_action(where, event.action, feedback.actions)
        arm = feedback.arm(event.action, cell_of(where, event, feedback))
        counts = min(getattr(event, number), feedback.largest)  # more counts as the largest
        yield ShownEvent(event.key_or(key), arm, counts, where)


# -- what all files share ------------------------------------------------------------------------


def json_lines(file: str, source: BinaryIO) -> Iterator[tuple[str, Any]]:
    """The value of each line that is not empty, and its place."""
    for where, line in _lines(file, source):
        if line.strip():
            try:
                value = json.decode(line)
            except RecursionError:
                refuse(where, "is not JSON", "an event a line", "too many nested lists")
            except DecodeError as error:
                got = str(error).removeprefix("JSON is malformed: ")
                refuse(where, "is not JSON", "an event a line", got)
            yield where, value


def shape_of(base: type[Keyed], *members: Any) -> Any:
    """A struct of a line with these members beside those of another."""
    return defstruct("Line", members, bases=(base,), kw_only=True)


def read(
    where: str,
    row: object,
    shape: type[S],
    expected: Mapping[str, str] = _EXPECTED,
    usable: Mapping[str, str] = _EXPECTED,
) -> S:
    """A line's members as a struct; what is wrong with them is said without quoting a value.

    `expected`: what to say of a missing member; `usable`: of one that cannot be used.
    """
    try:
        line = convert(row, shape)
    except ValidationError:
        _explain(where, row, shape, expected, usable)
        raise
    if line.key is not UNSET and line.key_base64 is not UNSET:
        refuse(where, "has two keys", " or ".join(KEYS), "both")
    return line


def _explain(
    where: str,
    row: object,
    shape: type[Struct],
    expected: Mapping[str, str],
    usable: Mapping[str, str],
) -> None:
    known = {field.name: field for field in fields(shape)}
    needed = [name for name, field in known.items() if field.required]
    if not isinstance(row, dict):
        refuse(where, "is not an event", f"an object with {' and '.join(needed)}", kind(row))
    for name in row:
        if name not in known:
            refuse(where, "unknown member", " or ".join(known), word(name))
    for name in needed:
        if name not in row:
            refuse(where, f"needs {name}", expected.get(name) or _EXPECTED[name], "nothing")
    for name, value in row.items():
        try:
            convert(value, known[name].type)
        except ValidationError:
            refuse(f"{where}: {name}", "is not usable", usable[name], kind(value, usable[name]))


def context_of(feedback: Feedback | None) -> list[tuple[str, Any, Any]]:
    """The member for a context, where a stream has contexts."""
    there = feedback is not None and feedback.contexts is not None
    return [("context", CONTEXT, UNSET)] if there else []


def cell_of(where: str, event: Any, feedback: Feedback) -> int:
    """The cell of an event's context; the only one in a stream without fields."""
    if feedback.contexts is None:
        return 0
    context = {} if event.context is UNSET else event.context
    if isinstance(context, str):  # a column of CSV, written like the header
        return feedback.contexts.cell_of_header(context.encode())
    known = [field.name for field in feedback.contexts.fields]
    for name in context:
        if name not in known:
            refuse(f"{where}: context", "unknown field", names(known), word(name))
    return feedback.contexts.cell(context)


def check_action(where: str, action: str, actions: Collection[str]) -> None:
    """Refuse an action that the stream does not have."""
    if action not in actions:
        refuse(where, "unknown action", names(actions), word(action))


def kind(value: object, expected: str = "") -> str:
    """The kind of a value in a file where something else was expected, without quoting it."""
    named = "NaN" if value != value else _KINDS[type(value)]
    return "another number" if named == "a number" and expected.startswith(named) else named


def names(given: Iterable[str]) -> str:
    """The first of some names."""
    first = list(given)
    return ", ".join([*map(word, first[:MOST_NAMES]), *(["…"] if len(first) > MOST_NAMES else [])])


def _lines(file: str, source: BinaryIO) -> Iterator[tuple[str, str]]:
    """Each line of a text, and its place."""
    for number, line in enumerate(source, 1):
        where = f"{file} line {number}"
        try:
            yield where, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            refuse(where, "is not text", "UTF-8", "other bytes")


def _checked(where: str, losses: list[Any], actions: Sequence[str]) -> list[float]:
    """The losses, each of which must be a number in [0, 1]."""
    for action, loss in zip(actions, losses, strict=True):
        if type(loss) not in (int, float) or not 0 <= loss <= 1:
            got = kind(loss, _NUMBER)
            refuse(f"{where}: loss of {word(action)}", "cannot be sent", _NUMBER, got)
    return losses


# -- CSV -----------------------------------------------------------------------------------------


def _csv_rows(
    file: str, source: BinaryIO, needed: Sequence[str], others: Sequence[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows that are not empty by their columns, and the line on which each ends."""
    table = csv.reader((line for _, line in _lines(file, source)), strict=True)
    where, header = f"{file} line 1", list[str]()
    while True:
        try:
            row = next(table, None)
        except csv.Error as error:
            refuse(f"{file} line {table.line_num}", "is not CSV", "fields and commas", error)
        if not header:
            header = row or []
            _check_header(where, header, needed, others)
        elif row:
            where = f"{file} line {table.line_num}"
            if len(row) != len(header):
                refuse(where, "wrong number of fields", len(header), len(row))
            yield where, dict(zip(header, row, strict=True))
        if row is None:
            return


def _check_header(
    where: str, header: list[str], needed: Sequence[str], others: Sequence[str]
) -> None:
    missing = [name for name in needed if name not in header]
    if missing:
        got = names(header) or "nothing"
        refuse(where, f"lacks columns: {names(missing)}", names(needed), got)
    for at, name in enumerate(header):
        if name not in needed and name not in others:
            refuse(where, "unknown column", f"{names(needed)}, or {names(others)}", word(name))
        if name in header[:at]:
            refuse(where, "a column appears twice", "distinct columns", word(name))
    if all(name in header and name not in needed for name in KEYS):
        refuse(where, "has two keys", " or ".join(KEYS), "both")


def _number(field: str) -> object:
    """The number in a field, or its text if it is not a number."""
    try:
        return float(field)
    except ValueError:
        return field


# -- NumPy ---------------------------------------------------------------------------------------


def _from_numpy(
    file: str, source: BinaryIO, actions: Sequence[str], key: bytes | None
) -> Iterator[Event]:
    table = _table(file, source)
    if table.ndim != 2:
        refuse(file, "is not a table", "rows of losses", f"{table.ndim} dimensions")
    if table.dtype.kind not in "fiub":
        refuse(file, "is not a table of losses", "numbers", f"dtype {table.dtype.name}")
    if table.shape[1] != len(actions):
        refuse(file, "wrong number of columns", f"{len(actions)}, one an action", table.shape[1])
    good = ((table >= 0) & (table <= 1)).all(axis=1)
    if not good.all():
        at = int(good.argmin())
        _checked(f"{file}[{at}]", table[at].astype(float).tolist(), actions)
    for at, row in enumerate(table):
        yield Event(key, row, f"{file}[{at}]")


def _table(file: str, source: BinaryIO) -> NDArray[Any]:
    from tokenize import TokenError

    from numpy.lib.format import read_array

    try:
        return read_array(source, allow_pickle=False)
    except MemoryError:
        refuse(file, "is not readable", "an array of rows", "an array larger than the memory")
    except (ValueError, EOFError, TypeError, SyntaxError, TokenError, OverflowError):
        refuse(file, "is not a NumPy file", "an array of rows", "another format")
