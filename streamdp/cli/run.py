"""``streamdp run``: learns until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from streamdp.cli._served import served
from streamdp.cli.common import (
    DEFAULT_CONFIG,
    Config,
    InsecureSeed,
    SingleBroker,
    prepared,
    seeds,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    insecure_seed: InsecureSeed = False,
    with_assemblies: Annotated[
        bool,
        typer.Option(
            "--with-assemblies",
            help="Also assemble, in this process: embedded files allow only one process.",
        ),
    ] = False,
    with_serve: Annotated[
        bool,
        typer.Option(
            "--with-serve",
            help="Also run `streamdp serve` as a child process: for a trial on one machine.",
        ),
    ] = False,
) -> None:
    """Run the service: events in, private actions out.

    SIGTERM or SIGINT drains and ends. The log goes to standard error, one event a line. Many
    processes may share the work of a Kafka stream. Probes and metrics are at `operations.listen`;
    look-ups and the status page are `streamdp serve`'s.

    Example: streamdp run --config streamdp.toml
    """
    from dataclasses import replace

    from streamdp.service.run import Duties

    allowed = seeds(insecure_seed)
    ready = prepared(config, single_broker=single_broker, allowed=allowed)
    if with_serve:
        from streamdp.cli._serving import serve_as_child

        serve_child = serve_as_child(ready.configuration, single_broker=single_broker)
        ready = replace(ready, observers=[*ready.observers, serve_child])
    work = Duties.BOTH if with_assemblies else Duties.LEARN
    raise typer.Exit(served(ready, work=work, allowed=allowed))
