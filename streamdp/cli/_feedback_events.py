"""Strictly reads the feedback of a file: JSON lines or CSV, for streams that observe feedback.

An event is the shown action and its result: ``{"key": "fr", "action": "banner", "reward": 1}``,
with ``"context": {"device": "phone"}`` where the stream has contexts (``device=phone`` in CSV), or
the same names as columns of a CSV file; ``loss`` instead of ``reward`` if the stream is configured
so, never both. The rules are those of `_events`: nothing is repaired, and every error names file
and line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from streamdp.cli._events import KEYS, csv_rows, kind, lines, names, number, read_key, refuse
from streamdp.cli._printable import word

if TYPE_CHECKING:
    from streamdp.wire.feedback import Feedback


class ShownEvent(NamedTuple):
    """The action shown for one request, its result, and the line it was read from."""

    key: bytes | None
    arm: int
    number: float  # the loss or reward
    where: str


def shown_events(
    file: str, source: BinaryIO, *, feedback: Feedback, key: bytes | None
) -> Iterator[ShownEvent]:
    """The events of a file, by its name's ending; `key` is for events without one."""
    if file.endswith(".npy"):
        refuse(file, "holds no feedback", "JSON lines or CSV, with the actions' names", "an array")
    read = _from_csv if file.endswith(".csv") else _from_json
    for where, event in read(file, source, feedback):
        own = read_key(where, event) if any(name in event for name in KEYS) else key
        yield ShownEvent(own, _arm(where, event, feedback), _number(where, event, feedback), where)


def _from_json(
    file: str, source: BinaryIO, feedback: Feedback
) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, line in lines(file, source):
        if not line.strip():
            continue
        try:
            event = json.loads(line, parse_int=float)
        except (ValueError, RecursionError):
            refuse(where, "is not JSON", "an event a line", "text that is not JSON")
        if not isinstance(event, dict):
            refuse(where, "is not an event", f"action and {feedback.content}", kind(event))
        _check_names(where, list(event), feedback)
        yield where, event


def _from_csv(
    file: str, source: BinaryIO, feedback: Feedback
) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, row in csv_rows(file, source, partial(_check_names, feedback=feedback)):
        yield where, {**row, feedback.content: number(row[feedback.content])}


def _check_names(where: str, given: list[str], feedback: Feedback) -> None:
    """Refuse missing and unknown members of an event."""
    needed = ("action", feedback.content)
    for name in given:
        if name not in (*needed, *KEYS) and not (name == "context" and feedback.contexts):
            refuse(where, "unknown member", " or ".join((*needed, *KEYS)), word(name))
    for name in needed:
        if given.count(name) != 1:
            refuse(where, f"needs {name} once", " and ".join(needed), names(given) or "nothing")
    if all(name in given for name in KEYS):
        refuse(where, "has two keys", " or ".join(KEYS), "both")


def _arm(where: str, event: dict[str, Any], feedback: Feedback) -> int:
    """The index of the shown action."""
    action = event["action"]
    if not isinstance(action, str):
        refuse(f"{where}: action", "is not usable", "an action's name", kind(action))
    if action not in feedback.actions:
        refuse(where, "unknown action", names(feedback.actions), word(action))
    cell = cell_of(where, event, feedback)
    return cell * len(feedback.actions) + feedback.actions.index(action)


def cell_of(where: str, event: dict[str, Any], feedback: Feedback) -> int:
    """The cell of an event's context; the only one in a stream without fields."""
    if feedback.contexts is None:
        return 0
    context = event.get("context", {})
    if isinstance(context, str):  # a column of CSV, written like the header
        return feedback.contexts.cell_of_header(context.encode())
    if not isinstance(context, dict):
        refuse(f"{where}: context", "is not usable", "levels by their fields", kind(context))
    fields = [field.name for field in feedback.contexts.fields]
    for name in context:
        if name not in fields:
            refuse(f"{where}: context", "unknown field", names(fields), word(name))
    return feedback.contexts.cell(context)


def _number(where: str, event: dict[str, Any], feedback: Feedback) -> float:
    """The loss or reward, if it is a number in [0, 1]."""
    number = event[feedback.content]
    if type(number) is not float or not 0 <= number <= 1:
        got = "another number" if type(number) is float and number == number else kind(number)
        refuse(f"{where}: {feedback.content}", "cannot be sent", "a number in [0, 1]", got)
    return number
