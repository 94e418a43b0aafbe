"""The process behind `streamdp serve`: follows what was published and answers for it."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from streamdp.serve.access import Bucket, Gate, RewardAccess
from streamdp.serve.app import PublicApp
from streamdp.serve.asgi import App
from streamdp.serve.catalogue import CatalogueCalls
from streamdp.serve.credentials import Credentials
from streamdp.serve.knowledge import Knowledge
from streamdp.serve.listener import Limits, allow_files, end_on_signals, server_of
from streamdp.serve.ranking import Ranking
from streamdp.wire.renewals import NoticeLog

if TYPE_CHECKING:
    from streamdp.serve.otlp import Telemetry


def gate_of(
    knowledge: Knowledge,
    *,
    credentials: Credentials,
    limits: Limits,
    ranking: Ranking | None = None,
    catalogue: CatalogueCalls | None = None,
    origins: frozenset[bytes] = frozenset(),
) -> Gate:
    """The whole application."""
    public = PublicApp(
        knowledge, credentials,
        body_seconds=limits.request_seconds, ranking=ranking, catalogue=catalogue,
    )  # fmt: skip
    return Gate(
        public.answer,
        token=lambda: credentials.token,
        # Not the event loop's clock: uvloop's does not move while a request is answered.
        bucket=Bucket(limits.requests_per_second, time.perf_counter),
        traffic=knowledge.traffic,
        rewards=RewardAccess(lambda: credentials.publishable, origins),
        catalogue=lambda: credentials.catalogue,
    )


async def serve(
    knowledge: Knowledge,
    listener: socket.socket,
    *,
    credentials: Credentials,
    limits: Limits,
    log: NoticeLog,
    ranking: Ranking | None = None,
    catalogue: CatalogueCalls | None = None,
    origins: frozenset[bytes] = frozenset(),
    exporter: type[Telemetry] | None = None,
) -> None:
    """Serve until a signal; finish requests that have begun."""
    allow_files()
    app: App = gate_of(
        knowledge,
        credentials=credentials,
        limits=limits,
        ranking=ranking,
        catalogue=catalogue,
        origins=origins,
    )
    telemetry = None
    if exporter is not None:
        telemetry = exporter(application=knowledge.application)
        app = telemetry.around(app)
    server = server_of(app, credentials=credentials, limits=limits, traffic=knowledge.traffic)
    end_on_signals(server)
    host, port = listener.getsockname()[:2]
    log.info("http_listening", address=f"{host}:{port}")
    watching = asyncio.get_running_loop().create_task(credentials.watch(log))
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(knowledge.following())
            if ranking is not None:
                await stack.enter_async_context(ranking.writing())
            if telemetry is not None:
                await stack.enter_async_context(telemetry.sending())
            await server.serve(sockets=[listener])
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
