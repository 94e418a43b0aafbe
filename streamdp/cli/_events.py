"""Strictly reads the events of a file: JSON lines, CSV, or rows of a NumPy file.

1. Nothing is repaired: a value that the service would clip, null or ignore must be mended by its
   producer. (For a log, `streamdp replay` clips as the service does, and says how often.) Unknown
   members, columns and actions are refused: a mistyped name would lose its value.
2. Every error names file and line, and describes values by name and type; it never quotes a loss.
3. A key is text (``key``), or base64 (``key_base64``) if it is not UTF-8, as in published lines.
"""

from __future__ import annotations

import csv
import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn

from streamdp.cli._printable import word

if TYPE_CHECKING:
    from numpy.typing import NDArray

Actions = tuple[str, ...]

MEMBERS = ("losses", "key", "key_base64")
KEYS = MEMBERS[1:]
MOST_NAMES = 10  # in a message

_KINDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "a truth value",
    int: "a number",
    float: "a number",
}


class Event(NamedTuple):
    """One row of losses, the key that it is about, and its place in the file."""

    key: bytes | None
    losses: Sequence[float]
    where: str


def events(file: str, source: BinaryIO, *, actions: Actions, key: bytes | None) -> Iterator[Event]:
    """The events of a file, by its name's ending; `key` is for events without one."""
    if file.endswith(".npy"):
        return _from_numpy(file, source, actions, key)
    if file.endswith(".csv"):
        return _from_csv(file, source, actions, key)
    return _from_json(file, source, actions, key)


def refuse(where: str, what: str, expected: object, got: object) -> NoReturn:
    """Raise an error in the house's form."""
    from streamdp.core.errors import InvalidConfig

    raise InvalidConfig(where, what, expected=expected, got=got) from None


# -- JSON ----------------------------------------------------------------------------------------


def _from_json(file: str, source: BinaryIO, actions: Actions, key: bytes | None) -> Iterator[Event]:
    for where, line in lines(file, source):
        if line.strip():
            event = _members(where, line)
            own = read_key(where, event) if any(name in event for name in KEYS) else key
            yield Event(own, _losses(where, event["losses"], actions), where)


def _members(where: str, line: str) -> dict[str, Any]:
    """An event's members; a list alone is its losses."""
    try:
        event = json.loads(line, parse_int=float)  # an integer may be longer than any float
    except RecursionError:
        refuse(where, "is not an event", "losses, and maybe a key", "too many nested lists")
    except ValueError:
        refuse(where, "is not JSON", "an event a line", "text that is not JSON")
    if isinstance(event, list):
        return {"losses": event}
    if not isinstance(event, dict):
        refuse(where, "is not an event", "losses, and maybe a key", kind(event))
    for name in event:
        if name not in MEMBERS:
            refuse(where, "unknown member", " or ".join(MEMBERS), word(name))
    if "losses" not in event:
        refuse(where, "is not an event", "losses", "no losses")
    return event


def _losses(where: str, losses: object, actions: Actions) -> list[float]:
    """The losses of all actions in order; a missing one is ½, as in the service."""
    if isinstance(losses, dict):
        for name in losses.keys() - set(actions):
            refuse(where, "unknown action", names(actions), word(name))
        losses = [losses.get(action, 0.5) for action in actions]
    if not isinstance(losses, list):
        refuse(where, "losses are not usable", "a list, or an object by action", kind(losses))
    if len(losses) != len(actions):
        refuse(where, "wrong number of losses", f"{len(actions)}, one an action", len(losses))
    return _checked(where, losses, actions)


def read_key(where: str, event: dict[str, Any]) -> bytes | None:
    """An event's own key."""
    if all(name in event for name in KEYS):
        refuse(where, "has two keys", " or ".join(KEYS), "both")
    if "key_base64" in event:
        return _from_base64(where, event["key_base64"])
    own = event["key"]
    if not isinstance(own, str | None):
        refuse(f"{where}: key", "is not usable", "text or null", kind(own))
    try:
        return None if own is None else own.encode()
    except UnicodeEncodeError:
        refuse(f"{where}: key", "is not usable", "text in Unicode", "half a surrogate pair")


def _from_base64(where: str, own: object) -> bytes:
    where = f"{where}: key_base64"
    if not isinstance(own, str):
        refuse(where, "is not usable", "text in base64", kind(own))
    try:
        return b64decode(own, validate=True)
    except ValueError:
        refuse(where, "is not usable", "text in base64", "text that is not base64")


# -- CSV -----------------------------------------------------------------------------------------


def _from_csv(file: str, source: BinaryIO, actions: Actions, key: bytes | None) -> Iterator[Event]:
    for where, row in csv_rows(file, source, partial(_check_header, actions=actions)):
        column = next((name for name in KEYS if name in row and name not in actions), None)
        own = key if column is None else read_key(where, {column: row[column]})
        yield Event(own, _checked(where, [number(row[name]) for name in actions], actions), where)


def csv_rows(
    file: str, source: BinaryIO, check: Callable[[str, list[str]], None]
) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows that are not empty by their columns, and where each ends; `check` the header."""
    table = _fields(file, csv.reader((line for _, line in lines(file, source)), strict=True))
    where, header = next(table, (f"{file} line 1", []))
    check(f"{file} line 1", header)
    for where, fields in table:
        if len(fields) != len(header):
            refuse(where, "wrong number of fields", len(header), len(fields))
        yield where, dict(zip(header, fields, strict=True))


def _fields(file: str, reader: Any) -> Iterator[tuple[str, list[str]]]:
    """The rows that are not empty, and the line on which each ends."""
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            refuse(f"{file} line {reader.line_num}", "is not CSV", "fields and commas", error)
        if row is None:
            return
        if row:
            yield f"{file} line {reader.line_num}", row


def _check_header(where: str, header: list[str], *, actions: Actions) -> None:
    missing = [action for action in actions if action not in header]
    if missing:
        got = names(header) or "nothing"
        refuse(where, f"lacks columns: {names(missing)}", names(actions), got)
    for at, name in enumerate(header):
        if name not in actions and name not in KEYS:
            refuse(where, "unknown column", "the actions, and key or key_base64", word(name))
        if name in header[:at]:
            refuse(where, "a column appears twice", "distinct columns", word(name))
    if all(name in header and name not in actions for name in KEYS):
        refuse(where, "has two keys", " or ".join(KEYS), "both")


def number(field: str) -> object:
    """The number in a field, or its text if it is not a number."""
    try:
        return float(field)
    except ValueError:
        return field


# -- NumPy ---------------------------------------------------------------------------------------


def _from_numpy(
    file: str, source: BinaryIO, actions: Actions, key: bytes | None
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


# -- parts ---------------------------------------------------------------------------------------


def lines(file: str, source: BinaryIO) -> Iterator[tuple[str, str]]:
    """Each line of a text, and its place."""
    for number, line in enumerate(source, 1):
        where = f"{file} line {number}"
        try:
            yield where, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            refuse(where, "is not text", "UTF-8", "other bytes")


def _checked(where: str, losses: list[Any], actions: Actions) -> list[float]:
    """The losses, each of which must be a number in [0, 1]."""
    for action, loss in zip(actions, losses, strict=True):
        if type(loss) is not float or not 0 <= loss <= 1:
            got = "another number" if type(loss) is float and loss == loss else kind(loss)
            refuse(f"{where}: loss of {word(action)}", "cannot be sent", "a number in [0, 1]", got)
    return losses


def kind(value: object) -> str:
    """The kind of a value in a file, without quoting it."""
    if value is None:
        return "null"
    return "NaN" if value != value else _KINDS[type(value)]


def names(given: Iterable[str]) -> str:
    """The first of some names."""
    first = list(given)
    return ", ".join([*map(word, first[:MOST_NAMES]), *(["…"] if len(first) > MOST_NAMES else [])])
