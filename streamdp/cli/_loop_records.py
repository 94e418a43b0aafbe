"""Strictly reads requests and outcomes from JSON lines, for an assembly to join.

    {"key": "fr", "request": "r-1", "action": "coats", "pscore": 0.4, "person": "p-31"}
    {"key": "fr", "request": "r-1", "reward": 1}
    {"key": "fr", "request": "r-2", "action": "hats", "pscore": 0.5, "list": 3, "filter": "4bf5…"}

A line with a result (``reward``, ``item``, ``categories`` or ``truth``, by the assembly's mode) is
an outcome. Any other line is a request, with its mode's content: the ``action`` that was shown, or
``items`` or ``predictions`` by action. ``pscore`` and ``person`` are optional, and so are
``filter`` and ``list`` of the answer that was shown (without them a replay would take an action
that was drawn among fewer for one drawn among all), and ``"context": {"device": "phone"}`` for a
stream with contexts. The rules are those of `_events`:
nothing is repaired, and every error names file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple

from msgspec import UNSET, Meta, UnsetType

from streamdp.assembly.contents import Chosen, Lists, Predictions, Reward, Right, Said, Truth
from streamdp.assembly.public import FILTER_HEADER, LIST_HEADER, PROPENSITY_HEADER
from streamdp.cli._events import (
    Keyed,
    cell_of,
    check_action,
    context_of,
    json_lines,
    read,
    shape_of,
)
from streamdp.client.requests import Request, outcome_record, request_record
from streamdp.core.errors import InvalidConfig, refuse
from streamdp.wire.feedback import ACTION_HEADER, CONTEXT_HEADER
from streamdp.wire.json_format import request_content

if TYPE_CHECKING:
    from streamdp.client.writing import Record
    from streamdp.wire.feedback import Feedback

ASKS = {"rankers": ("items", Lists), "errors": ("predictions", Predictions)}
SAYS: dict[str, tuple[str, Callable[..., Said]]] = {
    "feedback": ("reward", Reward),
    "rankers": ("item", Chosen),
    "categories": ("categories", Right),
    "errors": ("truth", Truth),
}


class _Asked(Keyed, kw_only=True):
    """What a request of any mode may say."""

    request: str
    action: str | UnsetType = UNSET
    pscore: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET
    filter: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")] | UnsetType = UNSET
    list: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    person: str | UnsetType = UNSET


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
    says, said = SAYS[mode]
    most = None if feedback is None or feedback.most is None else feedback.largest
    if most is not None:
        said = partial(Reward, most=most)
    asks, content = ASKS.get(mode, (None, None))
    needed: list[tuple[str, Any]] = [("action", str)] if mode == "feedback" else []
    needed += [(asks, Any)] if asks else []
    either = {name: f"{name} (a request) or {says} (an outcome)" for name, _ in needed}
    request = shape_of(_Asked, *needed, *context_of(feedback))
    outcome = shape_of(Keyed, ("request", str), (says, Any))
    for where, row in json_lines(file, source):
        is_outcome = isinstance(row, dict) and says in row
        line: Any = read(where, row, outcome if is_outcome else request, either)
        try:
            of = Request(line.key_or(key), line.request)
            if is_outcome:
                yield Line(True, outcome_record(of, said(getattr(line, says))))
                continue
            asked = getattr(line, asks) if asks else None
            named = [*asked] if isinstance(asked, dict) else []
            named += [] if line.action is UNSET else [line.action]
            for name in named:
                check_action(where, name, actions)
            person = None if line.person is UNSET else line.person
            record = request_record(of, content=content(asked) if content else None, person=person)
            yield Line(False, _with_choice(where, record, line, actions, feedback))
        except InvalidConfig as error:
            if error.where.startswith(where):
                raise
            raise error.at(f"{where}: {error.where}") from None


def _with_choice(
    where: str, record: Record, line: Any, actions: Sequence[str], feedback: Feedback | None
) -> Record:
    """A request's record with what it says of the shown action: in headers, or as its content."""
    key, value, headers = record
    pscore = None if line.pscore is UNSET else line.pscore
    if line.list is not UNSET:
        headers = [*headers, (LIST_HEADER, b"%d" % line.list)]
    cell = 0 if feedback is None else cell_of(where, line, feedback)
    if feedback is not None and feedback.played == "value":
        if line.filter is not UNSET:
            expected = "no filter where contexts are private: exclusions are content"
            refuse(where, "would publish what was excluded", expected, "a filter")
        arm = feedback.arm(line.action, cell=cell)
        return key, request_content(feedback, arm, pscore), headers
    more: list[tuple[str, bytes | None]] = []
    if line.action is not UNSET:
        more.append((ACTION_HEADER, line.action.encode()))
    if feedback is not None and feedback.contexts is not None:
        named = feedback.contexts.header_of_cell(cell)
        more += [(CONTEXT_HEADER, named)] if named else []
    if pscore is not None:
        more.append((PROPENSITY_HEADER, repr(pscore).encode()))
    if line.filter is not UNSET:
        more.append((FILTER_HEADER, line.filter.encode()))
    return key, value, [*headers, *more]
