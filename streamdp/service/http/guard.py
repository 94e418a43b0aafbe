"""Bounds what connections may take: their number, their time and the size of a request's head.

Number: `most_connections` have a place, from the moment they are accepted, TLS handshake included.
A few places beyond them are *reserved*: a connection there may ask for one probe or the metrics,
then it is closed. So a full listener still answers whoever decides whether to restart it. When the
reserved places are taken too, the newest connection takes the oldest's place: a probe asks at once,
so only a connection that holds a place without asking loses it.

Size: h11's own bound on a head, given to uvicorn. Time: a head that does not come, and a request
that is not done (because its body drips in, or its answer is not read), are cut off after
`request_seconds`, in a reserved place after a second. One sweep a second looks at all connections,
so the hot path pays one comparison.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol, cast

from streamdp.service.traffic import Refusal, Traffic

RESERVED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a listener's connections."""

    most_connections: int
    request_seconds: float
    reserved: int = 0  # further places, for probes and metrics only


class Place(Enum):
    """What a connection may ask for."""

    ORDINARY = auto()
    RESERVED = auto()  # one probe or the metrics


class Cycle(Protocol):
    """One request and its answer, as uvicorn keeps them."""

    response_complete: bool


class Inner(Protocol):
    """The part of uvicorn's protocol that is used here."""

    cycle: Cycle | None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A client connected."""
        ...

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        ...

    def eof_received(self) -> bool | None:
        """The client will send no more."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        ...

    def pause_writing(self) -> None:
        """The write buffer is full."""
        ...

    def resume_writing(self) -> None:
        """The write buffer has room again."""
        ...


@dataclass(slots=True)
class Watch:
    """Watches all connections of a listener."""

    limits: Limits
    traffic: Traffic
    ordinary: set[Guard] = field(default_factory=set)
    reserved: dict[Guard, None] = field(default_factory=dict)  # the oldest first

    def __post_init__(self) -> None:
        """Report how many connections there may be."""
        self.traffic.most = self.limits.most_connections

    def place(self) -> Place | None:
        """The kind of place for the next connection; None if there is no room."""
        if len(self.ordinary) < self.limits.most_connections:
            return Place.ORDINARY
        if len(self.reserved) >= self.limits.reserved:
            self.traffic.refused[Refusal.FULL] += 1
            if not self.reserved:
                return None
            next(iter(self.reserved)).cut_off()
        return Place.RESERVED

    def add(self, guard: Guard) -> None:
        """Count a connection, from its acceptance on."""
        if guard.place is Place.ORDINARY:
            self.ordinary.add(guard)
        else:
            self.reserved[guard] = None
        self._count()

    def forget(self, guard: Guard) -> None:
        """Stop counting a connection; its place is free."""
        self.ordinary.discard(guard)
        self.reserved.pop(guard, None)
        self._count()

    def sweep(self, now: float) -> None:
        """Close connections that are too slow."""
        for guard in [guard for guard in self.all() if guard.is_late(now)]:
            self.traffic.refused[Refusal.SLOW] += 1
            guard.cut_off()

    def all(self) -> list[Guard]:
        """Every connection."""
        return [*self.ordinary, *self.reserved]

    def _count(self) -> None:
        self.traffic.open = len(self.ordinary) + len(self.reserved)


class Guard(asyncio.Protocol):
    """One connection, from its acceptance on."""

    __slots__ = (
        "_began_at", "_cycle", "_head_at", "_inner", "_loop", "_transport", "_watch", "beginning",
        "place",
    )  # fmt: skip

    def __init__(
        self, inner: Inner, watch: Watch, loop: asyncio.AbstractEventLoop, *, place: Place
    ) -> None:
        self.place = place
        self.beginning: asyncio.Task[None] | None = None  # the handshake
        self._inner = inner
        self._watch = watch
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._head_at: float | None = None  # since when the next head is awaited, if it is
        self._cycle: Cycle | None = None  # the newest request
        self._began_at = 0.0  # when that request began
        watch.add(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established, TLS included."""
        self._transport = taken = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._head_at = self._loop.time()
        self._inner.connection_made(taken)

    def data_received(self, data: bytes) -> None:
        """Pass data on, and note whether a head or a request has begun."""
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
        self._watch.forget(self)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Hand on."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hand on."""
        self._inner.resume_writing()

    def is_late(self, now: float) -> bool:
        """Whether a head or a request takes too long; nothing runs between two requests."""
        ordinary = self.place is Place.ORDINARY
        seconds = self._watch.limits.request_seconds
        if self._head_at is not None:
            return now - self._head_at > (seconds if ordinary else min(seconds, RESERVED_SECONDS))
        cycle = self._cycle
        waits = cycle is not None and not cycle.response_complete
        return waits and now - self._began_at > seconds

    def cut_off(self) -> None:
        """Close the connection at once, and free its place."""
        self._watch.forget(self)
        if self._transport is not None:
            self._transport.abort()
        elif self.beginning is not None:
            self.beginning.cancel()
