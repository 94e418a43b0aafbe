"""Follows a published topic for ever: from the oldest record, again after what may pass.

Whoever hears is told four things, in the thread of the event loop: that reading begins (at the
oldest record, also when it begins again), what was read, that the end was reached, and that the
source was lost and why. What is heard twice must not matter to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from streamdp.core.errors import StreamdpError, TransportLost, complaint
from streamdp.ports import Publications, Published

RETRIES = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds until a lost source is tried again; the last one repeats."""

Read = Callable[[Publications], AsyncIterator[Sequence[Published]]]
"""Which of a reader's topics to follow."""

_logger = logging.getLogger("streamdp.client")


class Hearer(Protocol):
    """Who is told."""

    def began(self) -> None:
        """Records come from the oldest on."""
        ...

    def heard(self, batch: Sequence[Published]) -> None:
        """These were read."""
        ...

    def current(self) -> None:
        """Everything that was there has been read."""
        ...

    def lost(self, error: Exception) -> None:
        """The source is gone; it is tried again."""
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
        source = publications()
        try:
            hearer.began()
            async for batch in read(source):
                if not batch:
                    attempt = 0
                    hearer.current()
                hearer.heard(batch)
                await asyncio.sleep(0)  # a long topic must not keep others waiting
            raise TransportLost(
                complaint(name, "the reader ended", expected="a reader that goes on", got="its end")
            )
        except StreamdpError as error:
            hearer.lost(error)
        except Exception as error:
            _logger.exception("following %s failed", name)
            hearer.lost(error)
        finally:
            with suppress(StreamdpError):
                await source.close()
        await asyncio.sleep(retries[min(attempt, len(retries) - 1)])
        attempt += 1
