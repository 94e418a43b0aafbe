"""Listens: uvicorn's HTTP protocol on our own socket, with a guard around every connection.

uvicorn's own server object is not used: it takes over the process's signals, and here two listeners
live beside other work. A `Door` accepts connections and bounds them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from email.utils import formatdate
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from streamdp.core.errors import Occupied, complaint
from streamdp.service.http.asgi import App
from streamdp.service.http.door import Door
from streamdp.service.http.gate import RESERVED
from streamdp.service.http.guard import Guard, Inner, Limits, Place, Watch
from streamdp.service.traffic import Traffic

MOST_HEAD_BYTES = 16 << 10
KEEP_ALIVE_SECONDS = 30
_CLOSING_SECONDS = 2.0


def bound(address: str, *, where: str) -> socket.socket:
    """A socket that listens on an address that the configuration found well-formed.

    `Occupied` if it cannot: another process listens there, there is no such interface, no answer
    for the host's name or no free file yet, or the right to a low port is missing. A machine that
    is still booting cures most of these, and nothing here can tell which.
    """
    host, _, port = address.rpartition(":")
    try:
        return socket.create_server(
            (host.strip("[]"), int(port)),
            family=socket.AF_INET6 if host.startswith("[") else socket.AF_INET,
            backlog=2048,
        )
    except OSError as error:
        raise Occupied(
            complaint(where, "cannot listen", expected="a free address", got=f"{address}: {error}")
        ) from None


@asynccontextmanager
async def serving(
    app: App,
    listener: socket.socket,
    limits: Limits,
    *,
    traffic: Traffic,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve on a socket for as long as the block lasts; then finish requests that have begun."""
    loop = asyncio.get_running_loop()
    config = http_of(app)
    state, watch = ServerState(), Watch(limits, traffic)

    def guarded(place: Place) -> Guard:
        place_state = {RESERVED: place is Place.RESERVED}
        made = cast(Any, config.http_protocol_class)(config, state, place_state, loop)
        return Guard(cast(Inner, made), watch, loop, place=place)

    door = Door(listener, watch, guarded, tls=tls)
    door.open()
    ticking = loop.create_task(_tick(state, watch))
    try:
        yield
    finally:
        ticking.cancel()
        await door.shut()
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=_CLOSING_SECONDS)
        for guard in watch.all():
            guard.cut_off()
        with suppress(asyncio.CancelledError):
            await ticking


def http_of(app: App) -> uvicorn.Config:
    """uvicorn's HTTP around an application, without its server, logs and WebSockets."""
    config = uvicorn.Config(
        cast(Any, app),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
    )
    config.load()
    return config


async def _tick(state: ServerState, watch: Watch) -> None:
    """Once a second: refresh the Date header, and close slow connections."""
    loop = asyncio.get_running_loop()
    while True:
        state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        watch.sweep(loop.time())
        await asyncio.sleep(1)
