"""Accepts connections on a listening socket: each gets a place or is closed at once.

The event loop's own server is not used: it accepts without limit, so a flood would take every file
that this process may open, and it does not report connections whose TLS handshake hangs. Here a
connection has a place before its handshake begins, is closed immediately if there is none, and
loses it if the handshake takes longer than `HANDSHAKE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.service.http.guard import Guard, Limits, Place, Watch
from streamdp.service.traffic import Refusal

HANDSHAKE_SECONDS = 3.0
"""A handshake takes two round trips and some milliseconds of processor time."""

SPARE_FILES = 256
"""Files that a process opens beside connections: brokers' sockets, logs, the embedded log."""

LIMITS = Path("/proc/self/limits")

_AT_ONCE = 32
"""Connections that are accepted before other tasks get a turn."""

_PAUSE_SECONDS = 0.5
"""Seconds before accepting again after the system had no file or memory for a connection."""


def fitted(limits: Limits) -> Limits:
    """The limits, with no more connections than this process may have open files.

    The soft limit is raised as far as the hard one allows; nothing here uses ``select``, which is
    what low soft limits are for.
    """
    soft, hard = _allowed_files()
    wanted = limits.most_connections + limits.reserved + SPARE_FILES
    if _less(soft, wanted):
        raised = hard if _less(hard, wanted) else wanted
        with suppress(OSError):  # a sandbox may refuse to change limits
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if not _less(soft, wanted):
        return limits
    most = soft - limits.reserved - SPARE_FILES
    if most < 1:
        raise InvalidConfig(
            complaint(
                "http.listen",
                "the limit of open files is too low to serve",
                expected=f"a limit above {limits.reserved + SPARE_FILES} (ulimit -n, LimitNOFILE)",
                got=soft,
            )
        )
    return replace(limits, most_connections=most)


def _allowed_files() -> tuple[int, int]:
    """How many files this process may open now, and how far that may be raised."""
    try:
        return resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:  # a sandbox may forbid the call, which can also change limits
        (line,) = re.findall(r"Max open files +(\S+) +(\S+)", LIMITS.read_text())
        soft, hard = (resource.RLIM_INFINITY if it == "unlimited" else int(it) for it in line)
        return soft, hard


def _less(limit: int, wanted: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < wanted


class Door:
    """Accepts connections until it is shut."""

    def __init__(
        self,
        listener: socket.socket,
        watch: Watch,
        make: Callable[[Place], Guard],
        *,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._listener = listener
        self._watch = watch
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begin to accept."""
        self._listener.setblocking(False)
        self._paused = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def shut(self) -> None:
        """Stop accepting, and close sockets that are not connections yet."""
        self._loop.remove_reader(self._listener.fileno())
        if self._paused is not None:
            self._paused.cancel()
        for task in list(self._beginning):
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _accept(self) -> None:
        """Accept some of the waiting connections."""
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file or no memory: an immediate retry would loop
                self._loop.remove_reader(self._listener.fileno())
                self._paused = self._loop.call_later(_PAUSE_SECONDS, self.open)
                return
            self._let_in(connection)

    def _let_in(self, connection: socket.socket) -> None:
        place = self._watch.place()
        if place is None:
            connection.close()
            return
        connection.setblocking(False)
        guard = self._make(place)
        guard.beginning = task = self._loop.create_task(self._begin(guard, connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, guard: Guard, connection: socket.socket) -> None:
        """Turn a socket into a connection, with TLS if configured."""
        seconds = None if self._tls is None else HANDSHAKE_SECONDS
        try:
            await self._loop.connect_accepted_socket(
                lambda: guard, connection, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError:  # includes TLS errors and a timeout of the handshake
            self._watch.traffic.refused[Refusal.HANDSHAKE] += 1
            self._watch.forget(guard)
            with suppress(OSError):
                connection.close()
        except asyncio.CancelledError:
            self._watch.forget(guard)
            with suppress(OSError):
                connection.close()
            raise
