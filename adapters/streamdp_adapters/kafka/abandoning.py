"""Ends clients that will not stop: their stop hangs while the broker is down, or in a race.

The client library (version 0.14) has nothing for this, so these functions reach into its parts:
the tasks of a part are found by whose methods they run, and cancelled again and again, because a
cancelled one goes on to wait for those it had started. Then the connections are closed. What was
queued is dropped: the outcome of whatever was under way is unknown anyway.
"""

from __future__ import annotations

import asyncio
from itertools import chain

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import AIOKafkaClient

_SECONDS = 2.0
_TIMES = 10


async def abandon_producer(producer: AIOKafkaProducer) -> None:
    """End a producer, leaving no task and no connection."""
    producer._closed = True
    await _cancel_tasks_of(producer._sender)
    queued = chain.from_iterable(producer._message_accumulator._batches.values())
    ends: list[asyncio.Future[None] | None] = [batch._drain_waiter for batch in queued]
    ends.append(producer._txn_manager.wait_for_transaction_end())
    for end in ends:
        if end is not None and end.done() and not end.cancelled():
            end.exception()  # nobody waits for it any more
    await _close(producer.client)


async def abandon_consumer(consumer: AIOKafkaConsumer) -> None:
    """End a consumer, leaving no task and no connection; the group misses it later."""
    consumer._closed = True
    await _cancel_tasks_of(consumer._fetcher, consumer._coordinator)
    await _close(consumer._client)


async def _cancel_tasks_of(*owners: object) -> None:
    """Cancel until nothing of these objects runs."""
    for _ in range(_TIMES):
        tasks = [
            task
            for task in asyncio.all_tasks()
            if any(_owner_of(task) is owner for owner in owners if owner is not None)
        ]
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_SECONDS / _TIMES)


def _owner_of(task: asyncio.Task[object]) -> object:
    """The object whose method a task runs."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    return None if frame is None else frame.f_locals.get("self")


async def _close(client: AIOKafkaClient) -> None:
    """Close connections, within a bounded time."""
    closing = asyncio.ensure_future(client.close())
    await asyncio.wait([closing], timeout=_SECONDS)
    if not closing.done():
        closing.cancel()
