"""Listens: uvicorn, by its documented options, on a socket of ours.

uvicorn has no time limit for a client that never finishes a head, a handshake or the reading of its
answer, and refuses everybody while there are many of those: `connections` does both.
"""

from __future__ import annotations

import resource
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import uvicorn

from streamdp.core.errors import Occupied
from streamdp.serve.asgi import App
from streamdp.serve.connections import Connection, Connections
from streamdp.serve.credentials import Credentials
from streamdp.serve.traffic import Traffic

_BACKLOG = 2048
_CLOSING_SECONDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a listener."""

    most_connections: int
    requests_per_second: float
    request_seconds: float  # for a head to come, or a body


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
            backlog=_BACKLOG,
        )
    except OSError as error:
        variable = f"STREAMDP__{where.upper().replace('.', '__')}"
        raise Occupied(
            where,
            "cannot listen",
            expected=f"a free address: each process of a machine needs its own, by {where} or the"
            f" variable {variable}",
            got=f"{address}: {error}",
        ) from None


def server_of(
    app: App, *, credentials: Credentials, limits: Limits, traffic: Traffic
) -> uvicorn.Server:
    """uvicorn around an application. To end it, set its ``should_exit``."""
    places = Connections(
        most=limits.most_connections, seconds=limits.request_seconds, traffic=traffic
    )
    connection = partial(Connection, places=places, tls=lambda: credentials.context)
    return uvicorn.Server(
        uvicorn.Config(
            cast(Any, places.around(app)),
            http=cast(Any, connection),
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=min(_BACKLOG, limits.most_connections),  # accepted at once, before any is cut
            timeout_graceful_shutdown=_CLOSING_SECONDS,
        )
    )


def end_on_signals(server: uvicorn.Server) -> None:
    """SIGTERM and SIGINT end a server that is to start in this thread.

    uvicorn handles both while it runs, and raises them again at its end, when these handlers find
    nothing left to do.
    """

    def end(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def allow_files() -> None:
    """Raise the soft limit of open files to the hard one: each connection is one.

    Nothing here uses ``select``, which is what low soft limits are for.
    """
    with suppress(OSError, ValueError):  # a sandbox may refuse it
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
