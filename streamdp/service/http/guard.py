"""Bounds what a connection may take: a protocol around uvicorn's that counts and watches.

Size of a request's head: h11's own bound, given to uvicorn. Number of connections: more than
`most_connections` are closed at once. Time: a head that does not come, and a request that is not
done (because its body drips in, or its answer is not taken), are cut off after `seconds`. One
sweep a second looks at all connections, so the hot path pays a comparison.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol, cast


class Cycle(Protocol):
    """One request being answered, as uvicorn keeps it."""

    response_complete: bool


class Inner(Protocol):
    """uvicorn's protocol, as far as it matters here."""

    cycle: Cycle | None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A client came."""
        ...

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        ...

    def eof_received(self) -> bool | None:
        """The client will send no more."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went."""
        ...

    def pause_writing(self) -> None:
        """The client takes too little."""
        ...

    def resume_writing(self) -> None:
        """The client takes again."""
        ...


@dataclass(slots=True)
class Watch:
    """All connections of a listener."""

    most_connections: int
    seconds: float
    guards: set[Guard] = field(default_factory=set)

    def sweep(self, now: float) -> None:
        """Cut off whoever is too slow."""
        for guard in [each for each in self.guards if each.is_late(now, self.seconds)]:
            guard.cut_off()


class Guard(asyncio.Protocol):
    """One connection."""

    __slots__ = ("_began_at", "_cycle", "_head_at", "_inner", "_loop", "_transport", "_watch")

    def __init__(self, inner: Inner, watch: Watch, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._watch = watch
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._head_at: float | None = None  # since when a head is awaited, if one is
        self._cycle: Cycle | None = None  # the latest request
        self._began_at = 0.0  # when that began

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it in, if there is room."""
        self._transport = taken = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self._head_at = self._loop.time()
        full = len(self._watch.guards) >= self._watch.most_connections
        self._watch.guards.add(self)
        self._inner.connection_made(taken)
        if full:
            taken.abort()

    def data_received(self, data: bytes) -> None:
        """Hand on, and note whether a head or a request has begun."""
        self._inner.data_received(data)
        cycle = self._inner.cycle
        if cycle is None or cycle.response_complete:
            if self._head_at is None:
                self._head_at = self._loop.time()
        elif cycle is not self._cycle:
            self._cycle, self._began_at, self._head_at = cycle, self._loop.time(), None

    def eof_received(self) -> bool | None:
        """Hand on."""
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._watch.guards.discard(self)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Hand on."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hand on."""
        self._inner.resume_writing()

    def is_late(self, now: float, seconds: float) -> bool:
        """Whether what has begun is not done in time; between requests nothing has begun."""
        if self._head_at is not None:
            return now - self._head_at > seconds
        cycle = self._cycle
        waits = cycle is not None and not cycle.response_complete
        return waits and now - self._began_at > seconds

    def cut_off(self) -> None:
        """End it without waiting."""
        if self._transport is not None:
            self._transport.abort()
