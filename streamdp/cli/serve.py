"""``streamdp serve``: answers from the published actions, without learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from streamdp.cli.common import DEFAULT_CONFIG, Config, SingleBroker, load, opened, reaching

if TYPE_CHECKING:
    from streamdp.ports import Technology
    from streamdp.service.config import Configuration
    from streamdp.service.http.knowledge import Knowledge
    from streamdp.service.worker import EventLog


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(config: Config = DEFAULT_CONFIG, single_broker: SingleBroker = False) -> None:
    """Serve look-ups, metrics and the status page over HTTP, without learning.

    Reads only what is published, so it needs no right on input or state. Run as many as you like;
    `streamdp run` serves too, if its configuration sets `http.listen`.

    Example: streamdp serve --config streamdp.toml
    """
    from streamdp.core.errors import InvalidConfig, complaint
    from streamdp.service.http.checks import check_public
    from streamdp.service.run import log_of, run

    configuration = load(config)
    if configuration.tables.http.listen is None:
        raise InvalidConfig(
            complaint(
                f"{config}: http.listen", "missing", expected="host:port to serve at", got="nothing"
            )
        )
    check_public(configuration)
    technology, log = opened(configuration, single_broker), log_of(configuration)
    with reaching():
        run(lambda: _serve(configuration, technology, log), log=log)


async def _serve(configuration: Configuration, technology: Technology, log: EventLog) -> None:
    """Serve until a signal."""
    import asyncio
    import signal

    from streamdp.service.http import child
    from streamdp.service.http.knowledge import Role
    from streamdp.service.http.server import bound
    from streamdp.service.http.setup import Setup

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def signalled(knowledge: Knowledge) -> None:
        await stop.wait()

    listen = configuration.tables.http.listen
    assert listen is not None
    with bound(listen, where="http.listen") as listener:
        host, port = listener.getsockname()[:2]
        log.info("http_listening", address=f"{host}:{port}")
        setup = Setup.of(configuration, technology, Role.SERVES)
        await child.serve(setup, listener, log=log, until=signalled)
