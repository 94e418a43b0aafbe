"""A shop on SQLite that has learned."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from streamdp.ports import Key
from streamdp.service.config import Configuration, Seeds
from streamdp.service.process import run
from streamdp.service.run import Running, run_service
from tests.support.services import Lines
from tests.support.streams import events

KEYS = (b"fr", b"de", b"it", None)


async def sent(configuration: Configuration, count: int, keys: Sequence[Key]) -> None:
    """Some events, one in twenty of them garbage."""
    producer = configuration.technology().producer()
    await producer.send("losses", events(count, keys=keys))
    await producer.close()


def learned(
    path: Path,
    *,
    keys: Sequence[Key] = KEYS,
    until: int = 400,
    seeds: Seeds = Seeds.REFUSED,
) -> None:
    """Run the service until everything is read, then drain it by a signal."""
    configuration = Configuration.load(path, {})
    asyncio.run(sent(configuration, 400, keys))
    served(configuration, until=until, seeds=seeds)


def served(configuration: Configuration, *, until: int, seeds: Seeds = Seeds.REFUSED) -> None:
    """Run the service until so many records are read, then drain it by a signal."""

    @asynccontextmanager
    async def stopping(running: Running) -> AsyncIterator[None]:
        async def stop() -> None:
            await running.joined.wait()
            parts = running.view.streams["home"].partitions
            while sum(part.position for part in parts.values()) < until:
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        task = asyncio.create_task(stop())
        yield None
        await task

    async def work() -> None:
        technology, log = configuration.technology(), Lines()
        ended = await run_service(
            configuration, technology=technology, log=log, observers=[stopping], seeds=seeds
        )
        assert ended is None

    run(work, log=Lines())
