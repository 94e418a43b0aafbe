"""The few pieces of ASGI that this package uses, and answers as values."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")

T = TypeVar("T")

encode = msgspec.json.Encoder().encode


class Rejected(Exception):
    """A request that is refused with a problem document (RFC 9457)."""

    def __init__(self, status: int, title: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(title)
        self.status, self.title, self.headers = status, title, headers

    def answer(self) -> Answered:
        """The refusal as an answer."""
        problem = {"type": "about:blank", "title": self.title, "status": self.status}
        return Answered(self.status, [PROBLEM, *self.headers], encode(problem))


def decoded(decode: Callable[[bytes], T], body: bytes, expected: str) -> T:
    """What a body says; msgspec's reasons name members, kinds and places, never values."""
    try:
        return decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        got = "text that is not UTF-8" if isinstance(error, UnicodeError) else str(error)[:200]
        raise Rejected(400, f"body: unreadable; expected {expected}, got: {got}") from None


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes

    async def send(self, scope: Scope, send: Send) -> None:
        """Send it; without its body if the request is HEAD."""
        headers = self.headers
        if self.status != 304:
            headers = [*headers, (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else self.body
        await send({"type": "http.response.body", "body": body})


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header with this (lower-case) name."""
    for known, value in scope["headers"]:
        if known == name:
            content: bytes = value
            return content
    return None


async def body_of(receive: Receive, *, most: int, seconds: float) -> bytes:
    """The whole body, if it is small enough and arrives in time."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Rejected(400, "the body ended early")
                part = message.get("body", b"")
                size += len(part)
                if size > most:
                    raise Rejected(413, f"more than {most} bytes", (b"connection", b"close"))
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Rejected(408, "the body arrived too slowly", (b"connection", b"close")) from None
