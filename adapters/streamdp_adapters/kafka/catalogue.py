"""Writes and reads a stream's list: read, changed and written by one writer at a time.

All writers have one transactional id. Whoever starts last fences the others, waits for the outcome
of what they have begun, and reads what they have written; so two commands at once lose nothing. One
that is fenced tries again, after a random pause. A writer that dies in between leaves a transaction
that readers wait for no longer than its timeout.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from aiokafka.structs import TopicPartition

from streamdp.core.errors import Fenced
from streamdp.ports import StreamTopics
from streamdp_adapters.kafka import client_errors, reading
from streamdp_adapters.kafka.internals import AbandonableProducer, lean
from streamdp_adapters.kafka.kept_consumer import KeptConsumer
from streamdp_adapters.kafka.sending import Outbox
from streamdp_adapters.kafka.settings import KafkaSettings

LIST_KEY = b"list"
"""The key of every record: compaction leaves the newest."""

TRANSACTION_TIMEOUT_MS = 5_000
_SECONDS = 30.0
_MOST_PAUSE_SECONDS = 0.5
_WAIT_MS = 20

Change = Callable[[bytes | None], bytes]


async def revise(settings: KafkaSettings, stream: StreamTopics, change: Change) -> bytes:
    """Replace the list by what `change` makes of it, and return that."""
    async with asyncio.timeout(_SECONDS):
        while True:
            try:
                with client_errors.translated(f"topic {stream.catalogue}"):
                    return await _try(settings, stream, change)
            except Fenced:
                await asyncio.sleep(random.uniform(0, _MOST_PAUSE_SECONDS))  # noqa: S311


async def _try(settings: KafkaSettings, stream: StreamTopics, change: Change) -> bytes:
    """Fence, read, and write; `ProducerFenced` if another has started since."""
    producer = AbandonableProducer(
        **settings.client(),
        transactional_id=f"{stream.app}.{stream.stream}.catalogue",
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    try:
        await client_errors.start(producer, settings)
        line = change(await _newest(settings, TopicPartition(stream.catalogue, 0)))
        await producer.begin_transaction()
        with Outbox(producer) as out:
            await out.put(stream.catalogue, 0, [(LIST_KEY, line)])
            await out.acknowledged()
        await producer.commit_transaction()
        return line
    finally:
        await client_errors.stop(producer)


class NewestLists:
    """The newest lists, for an owner that asks again and again: one question where nothing is new.

    What is open is not waited for: it is read once it is decided.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        new = partial(settings.consumer, fetch_max_wait_ms=_WAIT_MS)
        self._kept = KeptConsumer(settings, new, lean)
        self._known: dict[str, tuple[int, bytes | None]] = {}  # by topic: its end, and the list
        self.close = self._kept.close

    async def newest(self, stream: StreamTopics) -> bytes | None:
        """The last committed list, up to the topic's present end."""
        place, where = TopicPartition(stream.catalogue, 0), f"topic {stream.catalogue}"
        with client_errors.translated(where):
            async with self._kept.asking() as consumer:
                look = reading.PartitionReader(consumer, where)
                end, known = await look.end(place), self._known.get(place.topic, (0, None))
                if end != known[0]:
                    record = await look.newest(place, stop=end)
                    known = self._known[place.topic] = end, record.value if record else known[1]
                return known[1]


async def _newest(settings: KafkaSettings, place: TopicPartition) -> bytes | None:
    """The last list there is."""
    async with reading.reader(settings, (place.topic,), where=f"topic {place.topic}") as look:
        newest = await look.newest(place)
        return None if newest is None else newest.value
