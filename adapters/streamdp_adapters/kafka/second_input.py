"""The second input of a stream, read on demand by a consumer of its own.

- It does not take part in the group: partition p goes with partition p of the first input. So each
  partition that is worked on has a consumer here, with a manual assignment, which goes on fetching
  between two reads: records are at hand when they are asked for.
- Only committed records are read, but the place to stop is asked under `read_uncommitted`: a record
  whose transaction is open counts as existing, and reading up to it waits for the transaction's
  end. Otherwise the result would depend on the time of the read.
- A record that cannot be decoded is left out, and so is a batch in a codec that is not installed,
  and so is what retention has deleted: whether there is such a record is content, so nothing may
  depend on it.
- After an error or an interrupted read the next read seeks.
- The length of this input may reveal content, so no message contains an offset of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import OffsetOutOfRangeError
from aiokafka.structs import TopicPartition

from streamdp.core.errors import beyond
from streamdp.ports import Partition, Records, StreamTopics
from streamdp_adapters.kafka import client_errors, reading
from streamdp_adapters.kafka.internals import lean
from streamdp_adapters.kafka.kept_consumer import KeptConsumer
from streamdp_adapters.kafka.settings import KafkaSettings


class InputEnds:
    """Where inputs end, and where they reach a time; records of open transactions included."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._kept = KeptConsumer(
            settings, partial(settings.consumer, isolation="read_uncommitted")
        )
        self.close = self._kept.close

    async def stop(self, place: TopicPartition, start: int, *, timestamp: int) -> int | None:
        """The first record from `start` on that is not older, else the end; None before `start`.

        If no record is that young, the end is asked afterwards: all older records are before it.
        """
        async with self._kept.asking() as consumer:
            first = (await consumer.offsets_for_times({place: timestamp}))[place]
        if first is not None and first.offset >= start:
            return int(first.offset)
        end = await self.end(place)
        if end < start:
            return None
        return end if first is None else start

    async def end(self, place: TopicPartition) -> int:
        """Where the next record will go."""
        async with self._kept.asking() as consumer:
            return int((await consumer.end_offsets([place]))[place])


class SecondInput:
    """One partition of a stream's second input."""

    def __init__(
        self,
        topics: StreamTopics,
        partition: Partition,
        *,
        settings: KafkaSettings,
        ends: InputEnds,
    ) -> None:
        self._topics = replace(topics, input=topics.second_input, headers=True)
        self._partition = partition
        self._ends = ends
        self._place = TopicPartition(topics.second_input, partition.number)
        self._where = f"partition {partition}: second input {topics.second_input}"
        new = partial(settings.consumer, max_partition_fetch_bytes=reading.FETCH_BYTES)
        self._kept = KeptConsumer(settings, new, self._prepare)
        self._at: int | None = None  # where the consumer is, if that is certain
        self.close = self._kept.close

    def _prepare(self, consumer: AIOKafkaConsumer) -> None:
        """Assign the partition to a new consumer."""
        lean(consumer, every=False)
        consumer.assign([self._place])
        self._at = None

    async def stop(self, start: int, *, timestamp: int) -> int:
        """Where reading may stop so that everything older than a time is read."""
        with client_errors.after_start(), client_errors.translated(self._where):
            stop = await self._ends.stop(self._place, start, timestamp=timestamp)
        if stop is None:
            raise beyond(str(self._partition))
        return stop

    async def read(self, start: int, stop: int) -> AsyncIterator[Records]:
        """Committed records in [start, stop), batch by batch, until the position is `stop`."""
        if start >= stop:
            return
        with client_errors.after_start(), client_errors.translated(self._where):
            async with self._kept.asking() as consumer:
                async for records in self._stretch(consumer, start, stop):
                    yield records

    async def _stretch(
        self, consumer: AIOKafkaConsumer, start: int, stop: int
    ) -> AsyncIterator[Records]:
        if self._at != start:
            consumer.seek(self._place, start)
        self._at = None  # until this read has come to its end
        look = reading.PartitionReader(consumer, self._where)
        while start < stop:
            try:
                async for records in look.arriving(self._place, start, stop):
                    batch = reading.as_records(self._topics, self._partition, records, start=start)
                    yield batch
                    start = batch.next_offset
                if start < stop:
                    yield Records(self._partition, start, (), (), (), stop)
                    start = stop
            except OffsetOutOfRangeError:
                first = int((await consumer.beginning_offsets([self._place]))[self._place])
                if first <= start:
                    raise beyond(str(self._partition)) from None
                first = min(first, stop)
                yield Records(self._partition, start, (), (), (), first)
                start = first
                consumer.seek(self._place, start)
        self._at = stop if await consumer.position(self._place) == stop else None
