"""Writes input: an idempotent producer with hand-filled batches sends each record exactly once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from streamdp.core.errors import TransportLost, Unreached
from streamdp.ports import Headers, Key, Value, check_bytes
from streamdp_adapters.kafka import client_errors
from streamdp_adapters.kafka.internals import AbandonableProducer
from streamdp_adapters.kafka.partitioners import PARTITIONERS, Partitioner
from streamdp_adapters.kafka.sending import BATCH_BYTES, Outbox
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.topics import (
    no_such_partition,
    shapes_of,
)

SEND_SECONDS = 60.0
"""Seconds that a call of `send` may go without an acknowledgement."""


class KafkaProducer:
    """Writes input records; connects at the first `send`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: AbandonableProducer | None = None
        self._partitions: dict[str, int] = {}

    async def send(
        self,
        topic: str,
        records: Sequence[tuple[Key, Value]],
        *,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> None:
        """Append records in this order, each exactly once; returns when they are durable.

        Without a partition, the configured partitioner places a key's records; records of the null
        key in one call go to any one partition.
        """
        check_bytes(topic, records, headers)
        count = await self._reached(topic)
        with client_errors.translated(f"topic {topic}"):
            if partition is not None and not 0 <= partition < count:
                raise no_such_partition(topic, partition, count=count)
            producer = await self._connected()
            by = PARTITIONERS[self._settings.partitioner]
            homes = _homes(records, count, by) if partition is None else [partition] * len(records)
            with Outbox(producer) as out:
                async with asyncio.timeout(SEND_SECONDS):
                    shares = _shares(homes, records, headers).items()
                    await asyncio.gather(*(out.put(topic, n, *own) for n, own in shares))
                    await out.acknowledged()

    async def close(self) -> None:
        """Close everything within a bounded time."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await client_errors.stop(producer)

    async def _reached(self, topic: str) -> int:
        """The topic's number of partitions, from a cluster that answers; nothing is sent yet."""
        try:
            with client_errors.translated(f"topic {topic}"):
                count = await self._count(topic)
                await self._connected()
        except TransportLost as error:
            raise Unreached(str(error)) from error
        return count

    async def _connected(self) -> AbandonableProducer:
        """The producer, connected."""
        if self._producer is None:
            producer = AbandonableProducer(
                **self._settings.client(), enable_idempotence=True, max_batch_size=BATCH_BYTES
            )
            await client_errors.start(producer, self._settings)
            self._producer = producer
        return self._producer

    async def _count(self, topic: str) -> int:
        """The topic's number of partitions."""
        if topic not in self._partitions:
            self._partitions[topic] = (await shapes_of(self._settings, [topic]))[topic][0]
        return self._partitions[topic]


def _homes(records: Sequence[tuple[Key, Value]], count: int, by: Partitioner) -> list[int]:
    """The partition of each record, by its key."""
    homes: dict[Key, int] = {None: random.randrange(count)}  # noqa: S311  # any partition will do
    for key, _ in records:
        if key not in homes:
            assert key is not None
            homes[key] = by(key, count)
    return [homes[key] for key, _ in records]


Share = tuple[list[tuple[Key, Value]], list[Headers] | None]
"""Records of one partition, and their headers if there are any."""


def _shares(
    homes: Sequence[int],
    records: Sequence[tuple[Key, Value]],
    headers: Sequence[Headers] | None,
) -> dict[int, Share]:
    """Records by partition, in their order."""
    shares: dict[int, Share] = {}
    for at, home in enumerate(homes):
        share = shares.setdefault(home, ([], None if headers is None else []))
        share[0].append(records[at])
        if share[1] is not None and headers is not None:
            share[1].append(headers[at])
    return shares
