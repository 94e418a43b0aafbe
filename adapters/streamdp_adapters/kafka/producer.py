"""Writes input: an idempotent producer, batches filled by hand, each record exactly once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from streamdp.ports import Key, Value, check_bytes
from streamdp_adapters.kafka import troubles
from streamdp_adapters.kafka.sending import BATCH_BYTES, Outbox
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.topics import (
    administration,
    describe_shapes,
    no_such_partition,
    no_such_topic,
)

SEND_SECONDS = 60.0
"""How long a call of `send` may go without an acknowledgement."""


class KafkaProducer:
    """Writes input records; connects at the first `send`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._partitions: dict[str, int] = {}

    async def send(
        self,
        topic: str,
        records: Sequence[tuple[Key, Value]],
        *,
        partition: int | None = None,
    ) -> None:
        """Append records in this order, each exactly once; returns when they are durable.

        Without a partition, a key's records go where every Kafka client of the standard
        partitioner sends them, and those of the null key of one call to any one partition.
        """
        check_bytes(topic, records)
        with troubles.translated(f"topic {topic}"):
            count = await self._count(topic)
            if partition is not None and not 0 <= partition < count:
                raise no_such_partition(topic, partition, count=count)
            out = Outbox(await self._connected())
            shares = _shares(records, count) if partition is None else {partition: records}
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await asyncio.gather(*(out.put(topic, n, own) for n, own in shares.items()))
                    await out.settle()
            finally:
                out.drop()

    async def close(self) -> None:
        """Give everything up, within a bounded time."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await troubles.stop(producer)

    async def _connected(self) -> AIOKafkaProducer:
        """The producer itself."""
        if self._producer is None:
            producer = AIOKafkaProducer(
                **self._settings.client(), enable_idempotence=True, max_batch_size=BATCH_BYTES
            )
            await troubles.start(producer, self._settings)
            self._producer = producer
        return self._producer

    async def _count(self, topic: str) -> int:
        """How many partitions a topic has."""
        if topic not in self._partitions:
            async with administration(self._settings) as client:
                there = await describe_shapes(client, [topic])
            if topic not in there:
                raise no_such_topic(topic)
            self._partitions[topic] = there[topic][0]
        return self._partitions[topic]


def _shares(records: Sequence[tuple[Key, Value]], count: int) -> dict[int, list[tuple[Key, Value]]]:
    """Records by partition, in their order."""
    homes: dict[Key, int] = {None: random.randrange(count)}  # noqa: S311  # any partition will do
    shares: dict[int, list[tuple[Key, Value]]] = {}
    for key, value in records:
        home = homes.get(key)
        if home is None:
            assert key is not None
            home = homes[key] = (murmur2(key) & 0x7FFFFFFF) % count
        shares.setdefault(home, []).append((key, value))
    return shares
