"""Asks the public listener's application without a network, and over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from streamdp.ports import Publications
from streamdp.service.about import About
from streamdp.service.http.app import PublicApp
from streamdp.service.http.asgi import Message
from streamdp.service.http.gate import Bucket, Gate
from streamdp.service.http.guard import Limits
from streamdp.service.http.knowledge import Bounds, Knowledge, Role
from streamdp.service.http.server import bound, serving
from streamdp.testing.free_ports import free_ports
from tests.support.publishing import Reader, Topic
from tests.support.showing import ABOUT


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


class Face:
    """The application over what was published, with a clock that counts."""

    def __init__(
        self,
        actions: Topic,
        ledger: Topic,
        *,
        about: About = ABOUT,
        more: Sequence[About] = (),
        role: Role = Role.SERVES,
        token: bytes | None = None,
        rate: float = 1e9,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._open(
            lambda: Reader(actions, ledger),
            [about, *more],
            role=role,
            token=token,
            rate=rate,
            clock=clock,
        )

    @classmethod
    def over(cls, publications: Callable[[], Publications], *, about: About, role: Role) -> Face:
        """Over a transport's own reader."""
        face = cls.__new__(cls)
        face._open(publications, [about], role=role, token=None, rate=1e9, clock=None)
        return face

    def _open(
        self,
        publications: Callable[[], Publications],
        about: Sequence[About],
        *,
        role: Role,
        token: bytes | None,
        rate: float,
        clock: Callable[[], float] | None,
    ) -> None:
        ticks = count()
        self.knowledge = Knowledge(
            about,
            publications,
            role=role,
            bounds=Bounds(),
            clock=clock or (lambda: float(next(ticks))),
            retries=(0.001,),
        )
        public = PublicApp(self.knowledge, most_series=5000, body_seconds=0.2)
        self.gate = Gate(
            public.answer,
            token=token,
            bucket=Bucket(rate, clock or (lambda: 0.0)),
            traffic=self.knowledge.traffic,
        )

    async def ask(
        self, target: str, *, method: str = "GET", body: bytes = b"", **headers: str
    ) -> Answer:
        """One request."""
        sent: list[Message] = []
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [
                (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
            ],
        }

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.gate(scope, receive, send)
        fields = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], fields, sent[1]["body"])


@asynccontextmanager
async def listening(face: Face, limits: Limits) -> AsyncIterator[tuple[str, int]]:
    """The same on a real socket."""
    with bound("127.0.0.1:0", where="test") as listener:
        host, port = listener.getsockname()
        async with serving(face.gate, listener, limits, traffic=face.knowledge.traffic):
            yield host, port


async def raw(address: tuple[str, int], request: bytes, *, seconds: float = 5.0) -> bytes:
    """Send bytes and read until the other side closes."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(request)
        async with asyncio.timeout(seconds):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def free_port() -> int:
    """A port that nobody listens on."""
    return free_ports(1)[0]
