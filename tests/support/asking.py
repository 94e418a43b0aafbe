"""Asks the public listener's application without a network, and over a real socket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from queue import Queue
from typing import Any

from streamdp.ports import Publications
from streamdp.serve.about import About
from streamdp.serve.access import PROBES, Bucket, Gate
from streamdp.serve.app import PublicApp
from streamdp.serve.asgi import App, Message
from streamdp.serve.credentials import Credentials, Files
from streamdp.serve.knowledge import Bounds, Knowledge
from streamdp.serve.listener import Limits, bound, server_of
from streamdp.serve.metrics import MetricsPage
from streamdp.serve.traffic import Traffic
from streamdp.service.metrics import ProcessMetrics, ServiceFacts
from streamdp.service.operations import LatestStatus, Operations
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


class Observer:
    """The application over what was published, with a clock that counts."""

    def __init__(
        self,
        actions: Topic,
        ledger: Topic,
        *,
        lists: Topic | None = None,
        about: About = ABOUT,
        more: Sequence[About] = (),
        token: bytes | None = None,
        rate: float = 1e9,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._open(
            lambda: Reader(actions, ledger, of_lists=lists or Topic()),
            [about, *more],
            token=token,
            rate=rate,
            clock=clock,
        )

    @classmethod
    def over(cls, publications: Callable[[], Publications], *, about: About) -> Observer:
        """Over a transport's own reader."""
        observer = cls.__new__(cls)
        observer._open(publications, [about], token=None, rate=1e9, clock=None)
        return observer

    def _open(
        self,
        publications: Callable[[], Publications],
        about: Sequence[About],
        *,
        token: bytes | None,
        rate: float,
        clock: Callable[[], float] | None,
    ) -> None:
        ticks = count()
        self.knowledge = Knowledge(
            about,
            publications,
            bounds=Bounds(),
            clock=clock or (lambda: float(next(ticks))),
            retries=(0.001,),
        )
        public = PublicApp(self.knowledge, Credentials(Files("http")), body_seconds=0.2)
        self.gate = Gate(
            public.answer,
            token=lambda: token,
            bucket=Bucket(rate, clock or (lambda: 0.0)),
            traffic=self.knowledge.traffic,
        )

    async def ask(
        self, target: str, *, method: str = "GET", body: bytes = b"", **headers: str
    ) -> Answer:
        """One request."""
        return await asked(self.gate, target, method=method, body=body, **headers)


class Process:
    """The operations listener's application over snapshots."""

    def __init__(self, latest: LatestStatus, about: About, *, token: bytes | None = None) -> None:
        facts = ServiceFacts([about], None)
        families = ProcessMetrics(
            lambda: replace(facts, process=latest.process), most_series=5000
        ).families
        self.gate = Gate(
            Operations(latest, MetricsPage(families, application=about.topics.app)).answer,
            token=lambda: token,
            bucket=Bucket(1e9, lambda: 0.0),
            traffic=Traffic(),
            open_paths=PROBES,
        )

    async def ask(self, target: str, *, method: str = "GET", **headers: str) -> Answer:
        """One request."""
        return await asked(self.gate, target, method=method, body=b"", **headers)


async def asked(
    gate: App, target: str, *, method: str = "GET", body: bytes = b"", **headers: str
) -> Answer:
    """One request."""
    sent: list[Message] = []
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "client": ("127.0.0.1", 1),
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ],
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        sent.append(message)

    await gate(scope, receive, send)
    fields = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], fields, sent[1]["body"])


NO_FILES = Credentials(Files("http"))
LIMITS = Limits(most_connections=100, requests_per_second=1e9, request_seconds=30)


@asynccontextmanager
async def listening(
    observer: Observer, limits: Limits = LIMITS, credentials: Credentials = NO_FILES
) -> AsyncIterator[tuple[str, int]]:
    """The same on a real socket."""
    with bound("127.0.0.1:0", where="test") as listener:
        host, port = listener.getsockname()
        server = server_of(
            observer.gate,
            credentials=credentials,
            limits=limits,
            traffic=observer.knowledge.traffic,
        )
        serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
        try:
            yield host, port
        finally:
            server.should_exit = True
            await serving


@contextmanager
def shown(make: Callable[[], Observer]) -> Iterator[str]:
    """The address of the same in a thread of its own, for a browser; it has read everything."""
    address, stop = Queue[str](), threading.Event()

    async def serve() -> None:
        observer = make()
        async with observer.knowledge.following(), listening(observer) as (host, port):
            await observer.knowledge.cache.ready()
            address.put(f"http://{host}:{port}/")
            while not stop.is_set():
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield address.get(timeout=60)
    finally:
        stop.set()
        thread.join()


async def raw(address: tuple[str, int], request: bytes, *, seconds: float = 60.0) -> bytes:
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
