"""Asks the sources of formats: at the start, and by timer.

Nothing else asks one. When it is asked depends on the clock alone, so neither a question, a retry
nor a log line can depend on what a record contains. While a source is out of reach, what a
partition's state holds goes on; a partition that holds nothing waits (`wire.renewals`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from streamdp.service.event_log import EventLog
from streamdp.wire.renewals import RenewalSource, Renewing

R = TypeVar("R", bound=Renewing)


def up_to_date(format_: R) -> R:
    """A format with what its source knows now, for commands that write or read a topic.

    It is taken for all records, also for those that came before.
    """
    if format_.source is not None:
        asyncio.run(format_.source.fetch())
    return format_.renewed(0)


@asynccontextmanager
async def asking(sources: Sequence[RenewalSource], log: EventLog) -> AsyncIterator[None]:
    """Ask once, then by timer for as long as the block lasts. The first try may fail."""
    await asyncio.gather(*(source.turn(log) for source in sources))
    tasks = [asyncio.create_task(_again(of, log), name=f"source {of.subject}") for of in sources]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _again(source: RenewalSource, log: EventLog) -> None:
    while True:
        await asyncio.sleep(source.refresh)
        await source.turn(log)
