"""``streamdp assemble``: makes the inputs of streams from requests and outcomes, until stopped."""

from __future__ import annotations

import typer

from streamdp.cli._served import served
from streamdp.cli.common import DEFAULT_CONFIG, Config, SingleBroker, prepared, seeds
from streamdp.core.errors import refuse


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("assemble")(assemble)


def assemble(config: Config = DEFAULT_CONFIG, single_broker: SingleBroker = False) -> None:
    """Join requests and outcomes into events, for every assembly of the configuration.

    Each request becomes exactly one event, in the order of requests. SIGTERM or SIGINT ends it;
    what is open is read again at the next start. Many processes may share the work on Kafka.
    Without a broker one process has the files: there use `streamdp run --with-assemblies`.

    Example: streamdp assemble --config streamdp.toml
    """
    from streamdp.service.run import Duties

    allowed = seeds(True)  # it draws nothing, so a stream's seed is harmless here
    ready = prepared(config, single_broker=single_broker, allowed=allowed)
    if not ready.configuration.tables.assemblies:
        expected = "at least one table [assemblies.NAME]"
        refuse(f"{config}: assemblies", "missing", expected, "none")
    raise typer.Exit(served(ready, work=Duties.ASSEMBLE, allowed=allowed))
