"""The serving process: follows the public topics, and reads snapshots until the channel closes.

Started as ``python -m streamdp.service.http.child LISTENER CHANNEL`` by `process`, with two
inherited sockets. The first frame on the channel is its setup, every later one a snapshot; when the
channel ends, the process ends. So it never outlives the process that learns. It ignores signals: a
terminal's Ctrl-C means a drain, during which it still answers. (A session of its own would keep
such signals away too, but Linux shares processors out by session, so it would get too little.)
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from struct import Struct

from streamdp.service.http.app import PublicApp
from streamdp.service.http.checks import tls_of, token_of
from streamdp.service.http.door import fitted
from streamdp.service.http.gate import Bucket, Gate
from streamdp.service.http.guard import Limits
from streamdp.service.http.knowledge import Bounds, Knowledge
from streamdp.service.http.server import serving
from streamdp.service.http.setup import Setup
from streamdp.service.run import run
from streamdp.service.worker import EventLog

FRAME = Struct(">I")
"""The prefix of a frame: its length in bytes."""

RESERVED_PLACES = 16
"""Connections beyond `most_connections`, only for probes and metrics."""


def public(setup: Setup) -> tuple[Knowledge, Gate]:
    """The data and the gate of a listener with this setup."""
    http = setup.http
    knowledge = Knowledge(
        setup.about,
        setup.technology.publications,
        role=setup.role,
        bounds=Bounds(http.most_keys, http.stale_after),
        assemblies=setup.assemblies,
    )
    answers = PublicApp(knowledge, most_series=http.most_series, body_seconds=http.request_seconds)
    gate = Gate(
        answers.answer,
        token=token_of(http.token_file, where="http.token_file"),
        # Not the event loop's clock: uvloop's does not move while a request is answered.
        bucket=Bucket(http.requests_per_second, time.perf_counter),
        traffic=knowledge.traffic,
    )
    return knowledge, gate


async def serve(
    setup: Setup,
    listener: socket.socket,
    *,
    log: EventLog,
    until: Callable[[Knowledge], Awaitable[None]],
) -> None:
    """Serve until the channel or the server ends."""
    http = setup.http
    knowledge, gate = public(setup)
    limits = fitted(Limits(http.most_connections, http.request_seconds, RESERVED_PLACES))
    if limits.most_connections < http.most_connections:
        log.warning(
            "connections_bounded", most=limits.most_connections, wanted=http.most_connections
        )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(knowledge.following())
        await stack.enter_async_context(
            serving(
                gate,
                listener,
                limits,
                traffic=knowledge.traffic,
                tls=tls_of(http.certificate_file, http.key_file),
            )
        )
        await until(knowledge)


async def frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame; None once the channel has ended."""
    try:
        (size,) = FRAME.unpack(await reader.readexactly(FRAME.size))
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def _work(
    reader: asyncio.StreamReader, setup: Setup, listener: socket.socket, log: EventLog
) -> None:
    async def hear(knowledge: Knowledge) -> None:
        while (snapshot := await frame(reader)) is not None:
            knowledge.hear(snapshot)

    await serve(setup, listener, log=log, until=hear)


async def _begin(listener: socket.socket, channel: socket.socket, log: EventLog) -> None:
    reader, writer = await asyncio.open_connection(sock=channel)
    try:
        first = await frame(reader)
        if first is not None:
            await _work(reader, pickle.loads(first), listener, log)  # noqa: S301  # our parent's own
    finally:
        writer.close()


def main() -> None:
    """The process."""
    from streamdp.service.logs import set_up

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    listener, channel = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    log = set_up(level="warning", style="auto")
    run(lambda: _begin(listener, channel, log), log=log)


if __name__ == "__main__":
    main()
