"""Strictly reads requests and outcomes from JSON lines, for an assembly to join.

    {"key": "fr", "request": "r-1", "action": "coats", "pscore": 0.4, "person": "p-31"}
    {"key": "fr", "request": "r-1", "reward": 1}

A line with a result (``reward``, ``item``, ``categories`` or ``truth``, by the assembly's mode) is
an outcome. Any other line is a request, with its mode's content: the ``action`` that was shown, or
``items`` or ``predictions`` by action. ``pscore`` and ``person`` are optional, and so is
``"context": {"device": "phone"}`` for a stream with contexts. The rules are those of `_events`:
nothing is repaired, and every error names file and line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from streamdp.cli._events import KEYS, kind, lines, names, read_key, refuse
from streamdp.cli._feedback_events import cell_of
from streamdp.cli._printable import word

if TYPE_CHECKING:
    from streamdp.assembly.contents import Asked, Said
    from streamdp.client.requests import Request
    from streamdp.client.writing import Record
    from streamdp.wire.feedback import Feedback

ASKS = {"feedback": "action", "rankers": "items", "categories": None, "errors": "predictions"}
SAYS = {"feedback": "reward", "rankers": "item", "categories": "categories", "errors": "truth"}
_BESIDE = ("pscore", "person")  # optional in a request of any mode, like an action


class Line(NamedTuple):
    """A record, and whether it is an outcome."""

    outcome: bool
    record: Record


def loop_records(
    file: str,
    source: BinaryIO,
    *,
    mode: str,
    actions: Sequence[str],
    key: bytes | None,
    feedback: Feedback | None = None,
) -> Iterator[Line]:
    """The records of a file; `key` is for lines without one."""
    from streamdp.client.requests import Request
    from streamdp.core.errors import InvalidConfig

    for where, text in lines(file, source):
        if not text.strip():
            continue
        members = _members(where, text, mode, feedback)
        own = read_key(where, members) if any(name in members for name in KEYS) else key
        try:
            of = Request(own, _text(where, members, "request"))
            if SAYS[mode] in members:
                yield Line(True, _outcome(of, members[SAYS[mode]], mode))
            else:
                yield Line(False, _request(where, of, members, mode, actions, feedback))
        except InvalidConfig as error:
            if str(error).startswith(where):
                raise
            raise InvalidConfig(f"{where}: {error}") from None


def _members(where: str, text: str, mode: str, feedback: Feedback | None) -> dict[str, Any]:
    """A line's members, all of them known."""
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        refuse(where, "is not JSON", "a request or an outcome a line", "text that is not JSON")
    if not isinstance(members, dict):
        refuse(where, "is not a record", "an object with key and request", kind(members))
    asks, says = ASKS[mode], SAYS[mode]
    common = ("request", *KEYS)
    fields = ["context"] if feedback is not None and feedback.contexts is not None else []
    allowed = (
        [*common, says]
        if says in members
        else [*common, "action", *fields, *_BESIDE, *filter(None, [asks])]
    )
    for name in members:
        if name not in allowed:
            refuse(where, "unknown member", names(dict.fromkeys(allowed)), word(name))
    if says not in members and asks is not None and asks not in members:
        refuse(where, f"needs {asks} (a request) or {says} (an outcome)", "one", "none")
    return members


def _outcome(of: Request, value: Any, mode: str) -> Record:
    from streamdp.assembly.contents import Chosen, Reward, Right, Truth
    from streamdp.client.requests import outcome_record

    kinds: dict[str, type[Said]] = {
        "feedback": Reward, "rankers": Chosen, "categories": Right, "errors": Truth,
    }  # fmt: skip
    return outcome_record(of, kinds[mode](value))


def _request(
    where: str,
    of: Request,
    members: dict[str, Any],
    mode: str,
    actions: Sequence[str],
    feedback: Feedback | None,
) -> Record:
    from streamdp.assembly.public import PROPENSITY_HEADER
    from streamdp.client.requests import request_record
    from streamdp.wire.feedback import ACTION_HEADER, CONTEXT_HEADER
    from streamdp.wire.json_format import request_content

    content = _asked(where, members, mode, actions)
    person = _text(where, members, "person") if "person" in members else None
    key, value, headers = request_record(of, content=content, person=person)
    if "action" in members:
        _check_known(where, [_text(where, members, "action")], actions)
    pscore = _probability(where, members)
    cell = 0 if feedback is None else cell_of(where, members, feedback)
    if feedback is not None and feedback.played == "value":
        arm = cell * len(actions) + list(actions).index(members["action"])
        return key, request_content(feedback, arm, pscore), headers
    more: list[tuple[str, bytes | None]] = []
    if "action" in members:
        more.append((ACTION_HEADER, members["action"].encode()))
    if feedback is not None and feedback.contexts is not None:
        named = feedback.contexts.header_of_cell(cell)
        more += [(CONTEXT_HEADER, named)] if named else []
    if pscore is not None:
        more.append((PROPENSITY_HEADER, repr(pscore).encode()))
    return key, value, [*headers, *more]


def _probability(where: str, members: dict[str, Any]) -> float | None:
    if "pscore" not in members:
        return None
    pscore = members["pscore"]
    if isinstance(pscore, bool) or not isinstance(pscore, int | float) or not 0 < pscore <= 1:
        refuse(f"{where}: pscore", "no probability", "a number in (0, 1]", "another number")
    return float(pscore)


def _asked(where: str, members: dict[str, Any], mode: str, actions: Sequence[str]) -> Asked | None:
    from streamdp.assembly.contents import Lists, Predictions

    asks = ASKS[mode]
    if asks in (None, "action"):
        return None
    given = members[asks]
    _check_known(where, given if isinstance(given, dict) else [], actions)
    return Lists(given) if asks == "items" else Predictions(given)


def _check_known(where: str, given: Any, actions: Sequence[str]) -> None:
    for action in given:
        if action not in actions:
            refuse(where, "unknown action", names(actions), word(action))


def _text(where: str, members: dict[str, Any], name: str) -> str:
    if name not in members:
        refuse(where, f"needs {name}", "the id that request and outcomes share", "no id")
    value = members[name]
    if not isinstance(value, str):
        refuse(f"{where}: {name}", "is not usable", "text", kind(value))
    return value
