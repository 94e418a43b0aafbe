"""``streamdp run``: learn, until told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from streamdp.cli.common import (
    DEFAULT_CONFIG,
    Config,
    InsecureSeed,
    Prepared,
    SingleBroker,
    prepared,
    seeds,
)
from streamdp.cli.exit_codes import ExitCode, code_of, code_of_halt

if TYPE_CHECKING:
    from streamdp.service.config import Seeds
    from streamdp.service.worker import Log


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    insecure_seed: InsecureSeed = False,
) -> None:
    """Run the service: events in, private actions out.

    SIGTERM or SIGINT drains and ends; SIGHUP rereads the streams' modes. The log goes to standard
    error, one event a line. Many processes may share the work of a Kafka stream.

    Example: streamdp run --config streamdp.toml
    """
    from streamdp.service.run import log_of

    allowed = seeds(insecure_seed)
    ready = prepared(config, single_broker=single_broker, allowed=allowed)
    raise typer.Exit(_served(ready, log=log_of(ready.configuration), allowed=allowed))


def _served(ready: Prepared, *, log: Log, allowed: Seeds) -> ExitCode:
    """Run to the end; what ended it goes to the log, without anything from content."""
    import asyncio

    from streamdp.core.errors import StreamdpError
    from streamdp.service.run import TransportRefuses, run, run_service
    from streamdp.service.worker import where_raised

    async def serve() -> ExitCode:
        reason = await run_service(
            ready.configuration,
            technology=ready.technology,
            log=log,
            faces=ready.faces,
            seeds=allowed,
        )
        return code_of_halt(reason)

    try:
        return run(serve, log=log)
    except asyncio.CancelledError:
        return ExitCode.CUT_OFF
    except StreamdpError as error:
        code = ExitCode.TRANSPORT if isinstance(error, TransportRefuses) else code_of(error)
        log.error("failed", detail=str(error), exit_code=int(code))
        return code
    except Exception as error:
        kind = type(error).__name__
        log.error("failed", detail=kind, where=where_raised(error), exit_code=int(ExitCode.WRONG))
        return ExitCode.WRONG
