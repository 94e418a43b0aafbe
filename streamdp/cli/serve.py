"""``streamdp serve``: answers from the published actions, without learning."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Annotated

import typer

from streamdp.cli.common import DEFAULT_CONFIG, Config, SingleBroker, load, opened, reaching
from streamdp.core.errors import refuse


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    ends_with_input: Annotated[
        bool, typer.Option(hidden=True, help="End where standard input ends: with the parent.")
    ] = False,
) -> None:
    """Serve look-ups, the status page and metrics over HTTP, without learning.

    Reads only what is published, so it needs no right on input or state. Run as many as you like.
    With `http.rank_and_reward` it also writes requests and outcomes.

    Example: streamdp serve --config streamdp.toml
    """
    from streamdp.serve.catalogue import CatalogueCalls
    from streamdp.serve.knowledge import Bounds, Knowledge
    from streamdp.serve.listener import Limits, bound
    from streamdp.serve.process import serve
    from streamdp.serve.ranking import Ranking
    from streamdp.service.listeners import (
        abouts_of,
        epochs_of_assemblies,
        loop_topics,
        serve_credentials,
    )
    from streamdp.service.process import log_of, run
    from streamdp.service.telemetry import exporter

    configuration = load(config)
    http = configuration.tables.http
    with configuration.placed():
        if http.listen is None:
            refuse("http.listen", "missing", "host:port to serve at", "nothing")
        credentials, topics = serve_credentials(configuration), loop_topics(configuration)
    exports = exporter()
    technology, log = opened(configuration, single_broker), log_of(configuration)
    limits = Limits(
        most_connections=http.most_connections,
        requests_per_second=http.requests_per_second,
        request_seconds=http.request_seconds,
    )

    async def work() -> None:
        knowledge = Knowledge(
            abouts_of(configuration),
            technology.publications,
            bounds=Bounds(http.most_keys, http.stale_after),
            assemblies=epochs_of_assemblies(configuration),
        )
        ranking = Ranking(
            knowledge,
            topics,
            technology.producer,
            seconds=http.request_seconds,
            within=http.write_seconds,
            undurable=http.rank_undurable,
            clock=time.perf_counter,
            private_contexts=http.private_contexts,
        )
        catalogue = CatalogueCalls(
            knowledge, technology.administrator, seconds=http.request_seconds
        )
        await serve(
            knowledge,
            listener,
            credentials=credentials,
            limits=limits,
            log=log,
            ranking=ranking if topics else None,
            catalogue=catalogue if http.catalogue_token_file else None,
            origins=frozenset(origin.encode() for origin in http.reward_origins),
            exporter=exports,
        )

    with reaching(), bound(http.listen, where="http.listen") as listener:
        if ends_with_input:
            threading.Thread(target=_end_with_input, daemon=True).start()
        run(work, log=log)


def _end_with_input() -> None:
    """End as by SIGTERM once nobody has the other end of standard input's pipe."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
