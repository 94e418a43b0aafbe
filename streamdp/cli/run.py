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
) -> None:
    """Run the service: events in, private actions out.

    SIGTERM or SIGINT drains and ends; SIGHUP rereads the streams' modes. The log goes to standard
    error, one event a line. Many processes may share the work of a Kafka stream.

    Example: streamdp run --config streamdp.toml
    """
    from streamdp.service.run import Work

    allowed = seeds(insecure_seed)
    ready = prepared(config, single_broker=single_broker, allowed=allowed)
    work = Work.BOTH if with_assemblies else Work.LEARN
    raise typer.Exit(served(ready, work=work, allowed=allowed))
