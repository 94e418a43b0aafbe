"""`streamdp serve` as an ordinary child process, for a first trial on one machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from streamdp.core.errors import refuse

if TYPE_CHECKING:
    from streamdp.service.config import Configuration
    from streamdp.service.event_log import EventLog
    from streamdp.service.life import Observe
    from streamdp.service.run import Observer, Running


def serve_as_child(configuration: Configuration, *, single_broker: bool) -> Observer:
    """A face that runs `streamdp serve` with the same configuration for as long as it lasts."""
    from streamdp.service.listeners import check_apart

    listen, operations = configuration.tables.http.listen, configuration.tables.operations
    with configuration.placed():
        if listen is None:
            refuse("http.listen", "missing", "host:port to serve at", "nothing")
        for name in ("listen", "operator_listen"):
            if (address := getattr(operations, name)) is not None:
                check_apart(listen, address, where=f"operations.{name}")

    def observer(running: Running) -> AbstractAsyncContextManager[Observe | None]:
        return _child(running, single_broker=single_broker)

    return observer


@asynccontextmanager
async def _child(running: Running, *, single_broker: bool) -> AsyncIterator[Observe | None]:
    from streamdp.serve.listener import bound

    listen = running.configuration.tables.http.listen
    assert listen is not None, "checked by `serve_as_child`"
    with bound(listen, where="http.listen"):  # a taken one ends the start, as of `serve` itself
        pass
    command = ["serve", "--ends-with-input", "--config", str(running.configuration.path)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streamdp", *command, *["--single-broker"][: single_broker],
        stdin=asyncio.subprocess.PIPE,  # it ends with this process, however that ends
    )  # fmt: skip
    watching = asyncio.get_running_loop().create_task(_ended(process, running.log))
    try:
        yield None
    finally:
        watching.cancel()
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _ended(process: asyncio.subprocess.Process, log: EventLog) -> None:
    """Log that it ended by itself; a supervisor would start it again, this does not."""
    code = await process.wait()
    log.error("serve_ended", exit_code=code)
