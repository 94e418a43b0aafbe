"""Listens: uvicorn, by its documented options, on a socket of ours.

Beyond ``most_connections`` a request is answered 503 and its connection closed; between two
requests a connection is kept for `KEEP_ALIVE_SECONDS`; a head has at most `MOST_HEAD_BYTES`; a body
that comes slowly is refused (`asgi.body_of`). uvicorn has no time limit for a client that never
finishes its first head or never reads its answer: on an open network an ingress stands before this.
"""

from __future__ import annotations

import resource
import signal
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import uvicorn

from streamdp.core.errors import Occupied
from streamdp.serve.asgi import App
from streamdp.serve.credentials import Credentials

MOST_HEAD_BYTES = 16 << 10
KEEP_ALIVE_SECONDS = 30
_BACKLOG = 2048
_CLOSING_SECONDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a listener."""

    most_connections: int
    requests_per_second: float
    request_seconds: float  # for a body to come


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
        raise Occupied(
            where, "cannot listen", expected="a free address", got=f"{address}: {error}"
        ) from None


def server_of(app: App, *, credentials: Credentials, most_connections: int) -> uvicorn.Server:
    """uvicorn around an application. To end it, set its ``should_exit``."""
    context = credentials.tls()
    certified: dict[str, Any] = {}
    if context is not None:
        newest: ssl.SSLContext = context
        certified["ssl_context_factory"] = lambda _, __: newest
    return uvicorn.Server(
        uvicorn.Config(
            cast(Any, app),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            limit_concurrency=most_connections + 1,  # it refuses from this number on
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_CLOSING_SECONDS,
            h11_max_incomplete_event_size=MOST_HEAD_BYTES,
            **certified,
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
