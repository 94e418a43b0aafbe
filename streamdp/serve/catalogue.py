"""Changes a stream's list for programs: adds actions, pauses, resumes or removes them.

    POST /v1/streams/{stream}/catalogue    {"pause": ["carousel"], "add": ["banner-2"]}

The token is one of its own: who may pause need not read anything, and who looks up may not pause.
Two changes at once lose nothing. An answer means that the change is written; readers obey it within
two seconds. Where none came in time, the change may still be written: asking again does no harm,
since what is paused stays paused, and what is there is not added again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Struct

from streamdp.client.http_wire import encode
from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp.ports import Administrator, closing
from streamdp.serve.asgi import JSON, Answered, Receive, Rejected, Scope, body_of, decoded
from streamdp.serve.knowledge import Knowledge
from streamdp.wire.published import decode_list
from streamdp.wire.revising import (
    Listed,
    next_list,
    with_added,
    with_paused,
    with_removed,
    with_resumed,
)

MOST_BODY = 1 << 20
_WITHIN_SECONDS = 10.0
_NO_STORE = (b"cache-control", b"no-store")
_EXPECTED = '{"add": ["a name"]}, or with pause, resume or remove in its place'


class AskedList(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a list."""

    add: list[str] = []
    pause: list[str] = []
    resume: list[str] = []
    remove: list[str] = []


class ListTold(Struct, frozen=True):
    """The list after a change."""

    stream: str
    actions: Sequence[str]
    paused: Sequence[str]
    removed: Sequence[str]
    list: int  # its ordinal


_asked = msgspec.json.Decoder(AskedList)


class CatalogueCalls:
    """Answers them."""

    def __init__(
        self, knowledge: Knowledge, administrator: Callable[[], Administrator], *, seconds: float
    ) -> None:
        """`seconds`: for a body."""
        self._about = {name.encode(): about for name, about in knowledge.about.items()}
        self._administrator = administrator
        self._seconds = seconds

    async def answer(self, scope: Scope, receive: Receive, stream: bytes) -> Answered:
        """Change the list, and say how it is now."""
        about = self._about.get(stream)
        if about is None:
            raise Rejected(404, "no stream of this name")
        if scope["method"] != "POST":
            raise Rejected(405, "a change of a list is a POST", (b"allow", b"POST"))
        body = await body_of(receive, most=MOST_BODY, seconds=self._seconds)
        asked = decoded(_asked.decode, body, _EXPECTED)
        steps = (
            (with_resumed, asked.resume),
            (with_added, asked.add),
            (with_paused, asked.pause),
            (with_removed, asked.remove),
        )
        if not any(names for _, names in steps):
            raise Rejected(400, f"body: names nothing; expected {_EXPECTED}")
        configured = about.configured

        def change(listed: Listed) -> Listed:
            for step, names in steps:
                listed = step(configured, names, listed) if names else listed
            return listed

        def revised(before: bytes | None) -> bytes:
            return next_list(before, configured, at=datetime.now(UTC), change=change)

        try:
            async with asyncio.timeout(_WITHIN_SECONDS), closing(self._administrator()) as tools:
                line = decode_list(await tools.revise(about.topics, revised))
        except InvalidConfig as error:
            raise Rejected(400, str(error)) from None
        except (TransportLost, TimeoutError):
            why = "the log does not answer; the change may still be written"
            raise Rejected(503, why, (b"retry-after", b"1")) from None
        removed = [] if line.removed is UNSET else line.removed
        paused = [name for name in line.paused if name not in removed]
        told = ListTold(about.name, line.actions, paused, removed, line.ordinal)
        return Answered(200, [JSON, _NO_STORE], encode(told))


def stream_of(scope: Scope) -> bytes | None:
    """The stream whose list a request is about; None if it is about something else."""
    parts: list[bytes] = scope["raw_path"].split(b"/")
    is_one = len(parts) == 5 and parts[1:3] == [b"v1", b"streams"] and parts[4] == b"catalogue"
    return parts[3] if is_one else None
