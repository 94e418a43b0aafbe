"""Follows a published topic for ever, from its oldest record, and reconnects after errors.

The listener gets four callbacks, in the thread of the event loop: `began` (at the oldest record,
also after reconnecting), `heard` with records, `current` at the end of the topic, and `lost` with
the reason. It may get a record twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from streamdp.core.errors import StreamdpError, TransportLost
from streamdp.ports import Publications, Published

RETRIES = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before a lost source is tried again; the last one repeats."""

AGAIN_SECONDS = 15.0
"""How long a task may take to end: longer than any reader takes to close."""

Read = Callable[[Publications], AsyncIterator[Sequence[Published]]]
"""Which of a reader's topics to follow."""

_logger = logging.getLogger("streamdp.client")


class Hearer(Protocol):
    """The listener: four callbacks."""

    def began(self) -> None:
        """Reading begins at the oldest record."""
        ...

    def heard(self, batch: Sequence[Published]) -> None:
        """These records were read."""
        ...

    def current(self) -> None:
        """The end of the topic was reached."""
        ...

    def lost(self, error: Exception) -> None:
        """The source was lost; it will be opened again."""
        ...


async def follow(
    publications: Callable[[], Publications],
    read: Read,
    hearer: Hearer,
    *,
    name: str,
    retries: Sequence[float] = RETRIES,
) -> None:
    """Follow until cancelled."""
    attempt = 0
    while True:
        try:
            async with _opened(publications) as source:
                hearer.began()
                async for batch in read(source):
                    if not batch:
                        attempt = 0
                        hearer.current()
                    hearer.heard(batch)
                    await asyncio.sleep(0)  # lets other tasks run during a long topic
            raise TransportLost(
                name, "the reader ended", expected="a reader that goes on", got="its end"
            )
        except StreamdpError as error:
            hearer.lost(error)
        except Exception as error:
            _logger.exception("following %s failed", name)
            hearer.lost(error)
        await asyncio.sleep(retries[min(attempt, len(retries) - 1)])
        attempt += 1


@asynccontextmanager
async def _opened(publications: Callable[[], Publications]) -> AsyncIterator[Publications]:
    """A reader of its own, closed behind the block: one that cannot be closed stops nothing."""
    source = publications()
    try:
        yield source
    finally:
        try:
            await source.close()
        except StreamdpError:
            pass
        except Exception:  # raised here, it would take the place of a cancellation
            _logger.exception("closing a reader failed")


class Followers:
    """Tasks that follow topics until they are stopped."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, following: Coroutine[None, None, None], *, name: str) -> None:
        """Start to follow, in a task."""
        self._tasks.append(asyncio.get_running_loop().create_task(following, name=name))

    async def stop(self) -> None:
        """Stop all tasks; one that goes on although it was cancelled is cancelled again."""
        going = set(self._tasks)
        while going:
            for task in going:
                task.cancel()
            _, going = await asyncio.wait(going, timeout=AGAIN_SECONDS)
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
