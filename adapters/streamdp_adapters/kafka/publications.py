"""Reads published records: the committed ones of the actions and ledger topics, without a group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import ConsumerStoppedError
from aiokafka.structs import TopicPartition

from streamdp.ports import Key, Published, StreamTopics
from streamdp_adapters.kafka import client_errors
from streamdp_adapters.kafka.internals import lean
from streamdp_adapters.kafka.reading import transactions_ended
from streamdp_adapters.kafka.sending import learner_key
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.topics import administration, shapes_of

_BATCH = 2000
_WAIT_MS = 500
_PARTITIONS_SECONDS = 30.0
"""Seconds between two checks of a following reader for added partitions."""


class KafkaPublications:
    """Readers of streams' publications; each iterator has its own consumer."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumers: set[AIOKafkaConsumer] = set()

    def actions(self, stream: StreamTopics, *, follow: bool) -> AsyncIterator[Sequence[Published]]:
        """Every committed action record, from the oldest on."""
        return self._read(stream.actions, learner_key, follow=follow)

    def catalogue(
        self, stream: StreamTopics, *, follow: bool
    ) -> AsyncIterator[Sequence[Published]]:
        """The lists that compaction has left.

        A reading that ends waits for what is open at the call: a command that has returned may have
        written a list that cannot be read yet.
        """
        return self._read(stream.catalogue, _same, follow=follow, waits=True)

    def ledger(
        self, stream: StreamTopics, *, follow: bool, newest: int | None = None
    ) -> AsyncIterator[Sequence[Published]]:
        """Every committed ledger record, or the newest.

        A reading that ends waits for what is open at the call: a commit may be readable in other
        topics before it is here, and what was charged must not be missed.
        """
        return self._read(stream.ledger, _same, follow=follow, newest=newest, waits=True)

    async def ledgers(self, app: str) -> Sequence[StreamTopics]:
        """The ledgers of this application that this user may describe."""
        async with administration(self._settings) as client:
            names = await client.list_topics()
        parts = [name.split(".") for name in sorted(names)]
        return [
            StreamTopics(app, part[1], "")
            for part in parts
            if len(part) == 3 and (part[0], part[2]) == (app, "ledger")
        ]

    async def close(self) -> None:
        """Close everything; running iterators end."""
        consumers, self._consumers = list(self._consumers), set()
        await asyncio.gather(*map(client_errors.stop, consumers))

    async def _read(
        self,
        topic: str,
        key_of: Callable[[Key], Key],
        *,
        follow: bool,
        newest: int | None = None,
        waits: bool = False,
    ) -> AsyncIterator[Sequence[Published]]:
        """Batches up to the present end, an empty batch, and what comes after."""
        with client_errors.translated(f"topic {topic}"):
            consumer = self._settings.consumer(
                reset="earliest",  # compaction and retention may overtake a reader
                fetch_max_wait_ms=_WAIT_MS if follow else 20,
            )
            async with client_errors.started(consumer, self._settings):
                lean(consumer)
                self._consumers.add(consumer)
                try:
                    look = _Look(consumer, self._settings, topic, key_of, newest)
                    async for batch in look.batches(follow=follow, waits=waits):
                        yield batch
                except ConsumerStoppedError:
                    return  # closed in the meantime
                finally:
                    self._consumers.discard(consumer)


def _same(key: Key) -> Key:
    """The key of a topic that takes every key."""
    return key


class _Look:
    """One consumer of all partitions of a topic."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        settings: KafkaSettings,
        topic: str,
        key_of: Callable[[Key], Key],
        newest: int | None,
    ) -> None:
        self._consumer = consumer
        self._settings = settings
        self._topic = topic
        self._key_of = key_of
        self._newest = newest
        self._ends: dict[TopicPartition, int] = {}

    async def batches(self, *, follow: bool, waits: bool) -> AsyncIterator[list[Published]]:
        """The records that the topic holds now; to follow, an empty batch and new ones for ever."""
        await self._assign()
        if waits and not follow:
            places = list(self._ends)
            await transactions_ended(
                self._consumer, self._settings, places, where=f"topic {self._topic}"
            )
            self._ends = await self._consumer.end_offsets(places)
        while await self._is_behind():
            batch = await self._batch()
            if not follow:  # those that the topic held at the call
                ends = {place.partition: end for place, end in self._ends.items()}
                batch = [record for record in batch if record.offset < ends[record.partition]]
            if batch:
                yield batch
        if not follow:
            return
        yield []
        asked = time.monotonic()
        while True:
            if batch := await self._batch():
                yield batch
            if time.monotonic() - asked > _PARTITIONS_SECONDS:
                asked = time.monotonic()
                await self._assign()

    async def _batch(self) -> list[Published]:
        """New records, in the order of each partition."""
        batches = await self._consumer.getmany(timeout_ms=_WAIT_MS, max_records=_BATCH)
        return [
            Published(place.partition, record.offset, self._key_of(record.key), record.value)
            for place, records in batches.items()
            for record in records
            if record.value is not None
        ]

    async def _assign(self) -> None:
        """Read every partition that the topic has now, the known ones from their positions."""
        count, _ = (await shapes_of(self._settings, [self._topic]))[self._topic]
        places = {TopicPartition(self._topic, number) for number in range(count)}
        if places != self._ends.keys():
            at = {place: await self._consumer.position(place) for place in self._ends}
            self._consumer.assign(list(places))
            for place, position in at.items():
                self._consumer.seek(place, position)
            self._ends = await self._consumer.end_offsets(list(places))
            if self._newest is not None and not at:  # skip old records
                share = -(-self._newest // max(1, len(places)))
                for place, end in self._ends.items():  # the client corrects one before the oldest
                    self._consumer.seek(place, max(0, end - share))

    async def _is_behind(self) -> bool:
        """Whether a record that existed at the call is still to come."""
        for place, end in self._ends.items():
            if end > 0 and await self._consumer.position(place) < end:
                return True
        return False
