"""The connections of a listener: uvicorn's, for clients that may be slow, silent or many.

1. A client that owes something has `request_seconds` for it, and at most an eighth more: handshake
   and head, the rest of a body that was answered early, the taking of an answer. The application
   bounds other bodies (`asgi.body_of`). Between two requests it has `KEEP_ALIVE_SECONDS`.
2. While more than `most_connections` requests are being answered, further ones are answered 503,
   but never probes and metrics. A client that owes something keeps nobody out: if every place is
   taken, a new connection gets that of the client that has owed for longest, or else of one that
   is between two requests.
3. A head or a trailer has at most `MOST_HEAD_BYTES`, and its lines end with CR LF: a proxy in front
   may take a lone LF otherwise than we would (RFC 9112, 2.2).
4. What is refused is counted by its reason, but nothing of a request that rewards: that there are
   rewards is secret.

h11 accepts a lone LF, and any head that comes at once. So it gets at most `MOST_HEAD_BYTES` at a
time, and bytes behind a whole request wait until that is answered.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from itertools import chain, takewhile
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from streamdp.serve.access import METRICS, PROBES, REWARDS
from streamdp.serve.asgi import App, Receive, Rejected, Scope, Send
from streamdp.serve.traffic import Refusal, Traffic

KEEP_ALIVE_SECONDS = 30
MOST_HEAD_BYTES = 16 << 10

MORE_PLACES = 16
"""Connections beyond `most_connections`: whoever comes then may be a probe."""

_ALWAYS = PROBES | {METRICS}
_READS = (h11.IDLE, h11.SEND_BODY)  # states in which a client's bytes are read
_BOUNDED = (h11.Request, h11.EndOfMessage)


class Turn(Enum):
    """Whom a connection waits for."""

    OURS = "a whole request is being answered"
    IDLE = "between two requests"
    BODY = "a body is coming, and the application bounds its time"
    OWED = "the client owes us something"


class Connections:
    """The connections of one listener, and what was refused."""

    def __init__(self, *, most: int, seconds: float, traffic: Traffic) -> None:
        self.most, self.seconds = most, seconds
        self._traffic = traffic
        self._open = set[Connection]()
        self._owed = dict[Connection, float]()  # since when: who has owed for longest is first
        self._idle = dict[Connection, float]()
        self._looks = False  # whether it will look for those that are late

    def around(self, app: App) -> App:
        """The application, which answers only probes while too many requests are answered."""

        def answer(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            working = len(self._open) - len(self._owed) - len(self._idle)
            if working <= self.most or scope["raw_path"] in _ALWAYS:
                return app(scope, receive, send)
            if not scope["raw_path"].endswith(REWARDS):
                self.count(Refusal.BUSY)
            told = (b"retry-after", b"1"), (b"connection", b"close")
            refused = Rejected(503, "too many requests are being answered", *told)
            return refused.answer().send(scope, send)

        return answer

    def count(self, reason: Refusal) -> None:
        """Count what was refused."""
        self._traffic.refused[reason] += 1

    def enter(self, new: Connection) -> None:
        """Give a place to a new connection."""
        if len(self._open) >= self.most + MORE_PLACES:
            last = next(chain(self._owed, self._idle), None)
            if last is None:
                new.cut(Refusal.BUSY)
                return
            last.cut(Refusal.CROWDED)
        self._open.add(new)
        if not self._looks:
            self._look(new.loop)

    def turns(self, connection: Connection, turn: Turn) -> None:
        """Note whom a connection waits for."""
        self._owed.pop(connection, None)
        self._idle.pop(connection, None)
        if turn is Turn.IDLE:
            self._idle[connection] = connection.loop.time()
        elif turn is not Turn.OURS:
            self._owed[connection] = connection.loop.time()

    def leave(self, connection: Connection) -> None:
        """Take a connection's place back."""
        self.turns(connection, Turn.OURS)
        self._open.discard(connection)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """End what is late, again and again while there are connections."""
        for connection in _until(self._owed, loop.time() - self.seconds):
            if connection.turn is Turn.OWED:
                connection.cut(Refusal.SLOW)
        for connection in _until(self._idle, loop.time() - KEEP_ALIVE_SECONDS):
            connection.timeout_keep_alive_handler()
        self._looks = bool(self._open)
        if self._looks:
            loop.call_later(self.seconds / 8, self._look, loop)


def _until(since: dict[Connection, float], when: float) -> list[Connection]:
    return list(takewhile(lambda connection: since[connection] <= when, since))


class Connection(H11Protocol):
    """One connection: uvicorn's protocol on top of ours."""

    conn: _Strict

    def __init__(
        self, *, places: Connections, tls: Callable[[], ssl.SSLContext | None], **of_uvicorn: Any
    ) -> None:
        super().__init__(**of_uvicorn)
        self.conn = _Strict(h11.SERVER, MOST_HEAD_BYTES)
        self._places, self._tls = places, tls
        self._unread = b""
        self.turn = Turn.OURS
        self._begun = self._gone = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, and begin with TLS if the listener has it."""
        self._socket = transport
        self._places.enter(self)
        context = self._tls()
        if context is None:
            self._begin(transport)
        elif not self._gone:
            self._securing = self.loop.create_task(self._secure(context))
        self._settle()

    def _begin(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._begun = True

    async def _secure(self, context: ssl.SSLContext) -> None:
        """Shake hands; what the client sends meanwhile waits."""
        self.loop.call_soon(self._hand_on)  # TLS reads nothing itself before that
        secured = None
        with suppress(OSError):  # no TLS, or not ours: the client knows by TLS's own alert
            secured = await self.loop.start_tls(self._socket, self, context, server_side=True)
        if secured is None or self._gone:
            self._leave()
            return
        self._begin(secured)
        self._feed()

    def _hand_on(self) -> None:
        """Give TLS what came before it: uvloop reads as soon as there is a connection."""
        tls = cast(asyncio.BufferedProtocol, self._socket.get_protocol())
        while self._unread:
            piece, self._unread = self._unread[:MOST_HEAD_BYTES], self._unread[MOST_HEAD_BYTES:]
            memoryview(tls.get_buffer(len(piece)))[: len(piece)] = piece
            tls.buffer_updated(len(piece))

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._leave()
        if self._begun:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Hand on what may be read now."""
        self._unread += data
        if self._begun:
            self._feed()

    def on_response_complete(self) -> None:
        """Go on with what came behind the request; uvicorn would set a timer here."""
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.conn.our_state is self.conn.their_state is h11.DONE:
                self.conn.start_next_cycle()
                self.conn.empty = not self.conn.trailing_data[0]
                if not self.conn.empty:
                    self.handle_events()
                elif not self._unread:
                    self._note(Turn.IDLE)  # as most requests end
                    return
        self._feed()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection between two requests; a client that takes no answer is cut later."""
        super().timeout_keep_alive_handler()
        self._settle()

    def pause_writing(self) -> None:
        """The client takes its answer slowly."""
        super().pause_writing()
        self._settle()

    def resume_writing(self) -> None:
        """The client has taken enough of it."""
        super().resume_writing()
        self._settle()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP; in the middle of an answer there is nothing to say."""
        self._count(Refusal.UNREADABLE)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def cut(self, reason: Refusal) -> None:
        """End it at once, whatever the client has not taken yet."""
        self._count(reason)
        self._leave()
        self._socket.abort()

    def _feed(self) -> None:
        """Hand bytes to h11, a head's worth at a time, up to the end of a request."""
        while self._unread and not self.transport.is_closing():
            if self.conn.their_state not in _READS:
                self.flow.pause_reading()  # until it is answered
                break
            piece, self._unread = self._unread[:MOST_HEAD_BYTES], self._unread[MOST_HEAD_BYTES:]
            self.conn.receive_data(piece)
            self.handle_events()
        self._settle()

    def _settle(self) -> None:
        """See whom it waits for."""
        self._note(self._turn())

    def _note(self, turn: Turn) -> None:
        if turn is not self.turn and not self._gone:
            self.turn = turn
            self._places.turns(self, turn)

    def _turn(self) -> Turn:
        if not self._begun or self.transport.is_closing():
            return Turn.OWED
        fresh = cast(object, self.cycle) is None
        done = fresh or self.cycle.response_complete
        if self.conn.their_state is h11.SEND_BODY:
            return Turn.OWED if done else Turn.BODY
        if not done:
            return Turn.OWED if self.flow.write_paused else Turn.OURS
        return Turn.OWED if fresh or self.conn.trailing_data[0] else Turn.IDLE

    def _count(self, reason: Refusal) -> None:
        begun = self.conn.their_state is not h11.IDLE and cast(object, self.scope) is not None
        if not (begun and self.scope["raw_path"].endswith(REWARDS)):
            self._places.count(reason)

    def _leave(self) -> None:
        self._gone = True
        self._places.leave(self)


class _Strict(h11.Connection):
    """h11 without its leniency about the ends of lines, and with the exact size of a head."""

    empty = True  # whether its buffer is known to be
    _plain = True  # whether no head or trailer in it can break the rules

    def receive_data(self, data: bytes) -> None:
        """Take at most a head's worth of bytes."""
        self._plain = self.empty and data.count(b"\n") == data.count(b"\r\n")
        self.empty = False
        super().receive_data(data)

    def next_event(self) -> Any:
        """The next event; a head or a trailer that breaks the rules is refused."""
        if self._plain:
            return super().next_event()
        before = self.trailing_data[0]
        event = super().next_event()
        if isinstance(event, _BOUNDED):
            read = before[: len(before) - len(self.trailing_data[0])]
            if len(read) > MOST_HEAD_BYTES:
                raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
            if read.count(b"\n") != read.count(b"\r\n"):
                raise h11.RemoteProtocolError("a line ends without CR")
        return event
