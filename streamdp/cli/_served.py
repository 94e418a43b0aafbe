"""What `run` and `assemble` share: run a process of the service to its end.

The error that ends the process is logged as the event ``failed``. If the log is JSON only because
standard error is piped (``log.format = "auto"``), the cause of a failed start is also a plain line,
because people read it. ``log.format = "json"`` is JSON alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streamdp.cli.common import Prepared, complain
from streamdp.cli.exit_codes import ExitCode, code_of, code_of_halt
from streamdp.core.errors import StreamdpError

if TYPE_CHECKING:
    from streamdp.service.config import Seeds
    from streamdp.service.event_log import EventLog
    from streamdp.service.run import Duties, Running


def served(ready: Prepared, *, work: Duties, allowed: Seeds) -> ExitCode:
    """Run to the end; log the error that ended it, without anything from content."""
    import asyncio
    import signal

    from streamdp.service.event_log import where_raised
    from streamdp.service.process import log_of, piped_by_default, run
    from streamdp.service.run import TransportRefuses, run_service

    log: EventLog = log_of(ready.configuration)
    piped = piped_by_default(ready.configuration)
    if piped:
        log = PrintingLog(log)
    begun: list[Running] = []

    @asynccontextmanager
    async def begins(running: Running) -> AsyncIterator[None]:
        """Notice the process like a face; show nothing."""
        begun.append(running)
        yield

    async def serve() -> ExitCode:
        try:
            reason = await run_service(
                ready.configuration,
                technology=ready.technology,
                log=log,
                observers=[begins, *ready.observers],
                seeds=allowed,
                work=work,
            )
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, _too_late)
        return code_of_halt(reason)

    try:
        return run(serve, log=log)
    except asyncio.CancelledError:
        return ExitCode.CUT_OFF
    except StreamdpError as error:
        code = ExitCode.TRANSPORT if isinstance(error, TransportRefuses) else code_of(error)
        if piped and not any(running.joined.is_set() for running in begun):  # a failed start
            complain(error)
        log.error("failed", detail=str(error), exit_code=int(code))
        return code
    except Exception as error:
        kind = type(error).__name__
        log.error("failed", detail=kind, where=where_raised(error), exit_code=int(ExitCode.WRONG))
        return ExitCode.WRONG


def _too_late(*_: object) -> None:
    """Change nothing: the work has ended, and the exit code says how."""


class PrintingLog:
    """A log that also prints a failed start or a halt as a plain line.

    If standard error is piped and nobody asked for JSON, a person may read it.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._last_refusal = ""  # of the transport, which is tried again and again

    def info(self, event: str, **fields: object) -> object:
        """Log normal operation."""
        return self._log.info(event, **fields)

    def warning(self, event: str, **fields: object) -> object:
        """Log trouble that passes by itself; print once what a start waits for."""
        detail = str(fields.get("detail"))
        if event == "join_lost" and detail != self._last_refusal:
            self._last_refusal = detail
            complain(f"waiting for the transport: {detail}")
        return self._log.warning(event, **fields)

    def error(self, event: str, **fields: object) -> object:
        """Log trouble that somebody must act on."""
        if event == "partition_halted":
            where, why = f"partition {fields.get('partition')}", str(fields.get("detail"))
            why = why.removeprefix(f"{where}: ")
            complain(f"{where} is halted ({fields.get('reason')}): {why}")
        return self._log.error(event, **fields)
