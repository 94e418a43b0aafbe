"""A TCP proxy in front of a Kafka broker that loses, delays and doubles requests by their kind.

    with proxied() as proxy:
        proxy.meddle = cut_every_tenth
        ...     # every client that asks `proxy.broker` goes through it

`meddle` sees each request of a transaction before the broker does, and decides its `Fate`. It may
wait, which holds the request and all behind it on that connection, and it may deliver a request
that was cut off earlier: that one reaches the broker late, on a connection of its own, as one does
that was held up in a network while its sender gave the connection up. Nothing reaches the broker
twice unless its sender sent it twice or its fate is `TWICE`.

The broker advertises the proxy's address. So does its own traffic (markers of transactions) pass
here; a `meddle` looks at `Request.client` to leave that alone.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from streamdp.testing.broker import Broker, own_broker
from streamdp.testing.free_ports import free_ports
from tests.support.lending import CALM


class Kind(IntEnum):
    """The requests of a transaction, by Kafka's codes."""

    PRODUCE = 0
    INIT_PRODUCER = 22
    ADD_PARTITIONS = 24
    ADD_OFFSETS = 25
    END = 26
    COMMIT_OFFSETS = 28


class Fate(Enum):
    """What becomes of a request."""

    PASS = "pass"
    CUT = "cut"  # it does not arrive, and its connection breaks
    MUTE = "mute"  # it arrives, and its connection breaks instead of an answer
    TWICE = "twice"  # it arrives twice in a row; one answer returns


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a transaction."""

    kind: Kind
    client: str
    transactional_id: str
    frame: bytes = field(repr=False)
    upstream: int = field(repr=False)  # the broker's port

    async def deliver(self) -> bytes:
        """Let it arrive now, on a connection of its own; the broker's answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            writer.write(self.frame)
            return await _frame(reader)
        finally:
            writer.close()


Meddle = Callable[[Request], Awaitable[Fate]]


async def pass_on(request: Request) -> Fate:
    """Let every request pass."""
    return Fate.PASS


class Proxy:
    """Passes requests and answers on, in a thread and an event loop of its own."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker = broker
        self.meddle: Meddle = pass_on
        self._port = port
        self._upstream = int(broker.bootstrap.rpartition(":")[2])
        self._errors: list[BaseException] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        serving = asyncio.start_server(self._begin, "127.0.0.1", self._port)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result(10)

    def stop(self) -> None:
        """Close everything."""

        async def close() -> None:
            self._server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        assert not self._errors, self._errors

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection, in a task that `stop` ends."""
        task = self._loop.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # also if it never began

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until an end of it is closed."""
        try:
            out_reader, out_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:  # the broker is down
            return
        expected: deque[Fate] = deque()  # of the requests that the broker has not answered yet
        halves = [
            asyncio.create_task(self._requests(reader, out_writer, expected)),
            asyncio.create_task(_answers(out_reader, writer, expected)),
        ]
        try:
            done, _ = await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            for half in done:
                error = half.exception()
                if error is not None and not isinstance(error, EOFError | OSError):
                    self._errors.append(error)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            out_writer.close()  # what was sent still arrives

    async def _requests(
        self, reader: asyncio.StreamReader, out: asyncio.StreamWriter, expected: deque[Fate]
    ) -> None:
        while True:
            frame = await _frame(reader)
            request = _parsed(frame, self._upstream)
            fate = Fate.PASS if request is None else await self.meddle(request)
            if fate is Fate.CUT:
                return
            expected.append(fate)
            out.write(frame * (2 if fate is Fate.TWICE else 1))
            await out.drain()


async def _answers(
    reader: asyncio.StreamReader, out: asyncio.StreamWriter, expected: deque[Fate]
) -> None:
    while True:
        answer = await _frame(reader)
        fate = expected.popleft()
        if fate is Fate.MUTE:
            return
        if fate is Fate.TWICE:
            await _frame(reader)
        out.write(answer)
        await out.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """One request or answer, with its size in front."""
    size = await reader.readexactly(4)
    return size + await reader.readexactly(struct.unpack(">i", size)[0])


def _parsed(frame: bytes, upstream: int) -> Request | None:
    """A request of a transaction; all have its id first, after the header."""
    kind, version = struct.unpack_from(">hh", frame, 4)
    if kind not in set(Kind) or (kind == Kind.ADD_PARTITIONS and version > 2):
        return None  # another kind, or a broker's question to itself
    client, at = _string(frame, 12)
    transactional_id, _ = _string(frame, at)
    if not transactional_id:
        return None
    return Request(Kind(kind), client, transactional_id, frame, upstream)


def _string(frame: bytes, at: int) -> tuple[str, int]:
    """A string that may be null, and the place behind it."""
    (size,) = struct.unpack_from(">h", frame, at)
    end = at + 2 + max(size, 0)
    return frame[at + 2 : end].decode("utf-8", "replace"), end


@contextmanager
def proxied() -> Iterator[Proxy]:
    """A broker of the caller's own, and the proxy that its clients pass through."""
    (port,) = free_ports(1)
    address = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with own_broker(settings={**CALM, **address}) as broker:
        proxy = Proxy(broker, port)
        proxy.start()
        try:
            yield proxy
        finally:
            proxy.stop()
