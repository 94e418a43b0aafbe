"""Bounded reads of single partitions: the state, the tail of the ledger, stretches of the input.

A `PartitionReader` is a consumer outside every group, so its reads disturb neither polling nor the
group. It sees committed records only. A read ends at a position, never at an empty answer: offsets
have gaps, and an empty answer means nothing. A position that does not move for `IDLE_SECONDS` is an
error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import OffsetOutOfRangeError
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition

from streamdp.core.errors import Fenced, StateMismatch, TransportLost
from streamdp.ports import (
    NO_INPUT,
    LastCommit,
    LiveEntries,
    Partition,
    Reach,
    Reached,
    Records,
    StreamTopics,
    Taken,
    no_fault,
)
from streamdp_adapters.kafka import client_errors
from streamdp_adapters.kafka.identity import topic_ids
from streamdp_adapters.kafka.internals import client_of, committed, know_topics, lean
from streamdp_adapters.kafka.owner import OWNER_KEY, group, owner_of
from streamdp_adapters.kafka.settings import KafkaSettings

IDLE_SECONDS = 60.0
"""Seconds without progress after which a read fails."""

BATCH = 2000
"""Records that are handed over at once, at most."""

FETCH_BYTES = 4 * 1024 * 1024
"""Bytes of a partition in one answer; a single larger batch comes whole all the same."""

_WAIT_MS = 20  # a fetch at the end waits this long; other questions queue behind it, and markers
# move the position without a record that would end the wait
_SETTLED_SECONDS = 5.0  # to wait for open transactions; one that hangs stays open for longer
_TAIL = 16  # offsets to look back at first; markers and aborted records take some


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """A consumer that reads one partition after the other."""

    consumer: AIOKafkaConsumer
    where: str

    async def bounds(self, place: TopicPartition) -> tuple[int, int]:
        """The oldest retained offset and the end of what is committed."""
        return await self.first(place), await self.end(place)

    async def first(self, place: TopicPartition) -> int:
        """The oldest retained offset."""
        return int((await self.consumer.beginning_offsets([place]))[place])

    async def end(self, place: TopicPartition) -> int:
        """The end of the committed records."""
        return int((await self.consumer.end_offsets([place]))[place])

    async def batches(
        self, place: TopicPartition, start: int, stop: int | None
    ) -> AsyncIterator[Sequence[ConsumerRecord]]:
        """Committed records from `start` on, until the position has passed `stop` if given."""
        if stop is not None and start >= stop:
            return
        self.consumer.assign([place])
        self.consumer.seek(place, start)
        async for records in self.arriving(place, start, stop):
            yield records

    async def arriving(
        self, place: TopicPartition, position: int, stop: int | None
    ) -> AsyncIterator[Sequence[ConsumerRecord]]:
        """The same from where the consumer is."""
        moved = asyncio.get_running_loop().time()
        while stop is None or position < stop:
            most = BATCH if stop is None else min(BATCH, stop - position)
            some = await self.consumer.getmany(place, timeout_ms=_WAIT_MS, max_records=most)
            records = some.get(place, [])
            if stop is not None and records and records[-1].offset >= stop:
                records = [record for record in records if record.offset < stop]
                position = stop
            if records:
                yield records
            now, before = asyncio.get_running_loop().time(), position
            position = max(position, await self.consumer.position(place))
            if position > before or records:
                moved = now
            elif now - moved > IDLE_SECONDS:
                raise TransportLost(
                    self.where,
                    f"reading {place.topic}/{place.partition} makes no progress",
                    expected=f"progress within {IDLE_SECONDS:g} s",
                    got=f"none for {now - moved:.0f} s",
                )

    async def input(
        self, topics: StreamTopics, partition: Partition, start: int, stop: int
    ) -> AsyncIterator[Records]:
        """The stream's input in [start, stop), as the port's columns."""
        place = TopicPartition(topics.input, partition.number)
        async for records in self.batches(place, start, stop):
            yield (batch := as_records(topics, partition, records, start=start))
            start = batch.next_offset

    async def remembered(
        self, topic: str, partitions: Iterable[int]
    ) -> dict[int, OffsetAndMetadata]:
        """The group's offsets of a topic's partitions."""
        places = [TopicPartition(topic, number) for number in partitions]
        offsets = await committed(self.consumer, places)
        return {place.partition: kept for place, kept in offsets.items() if kept.offset >= 0}

    async def newest(
        self, place: TopicPartition, *, stop: int | None = None, but: bytes | None = None
    ) -> ConsumerRecord | None:
        """The newest committed record before `stop` with a value and another key than `but`.

        It looks further back until there is one.
        """
        first, end = await self.bounds(place)
        end = end if stop is None else stop
        span = _TAIL
        while first < end:
            start = max(first, end - span)
            newest: ConsumerRecord | None = None
            async for records in self.batches(place, start, end):
                fitting = [
                    of for of in records if of.value is not None and (but is None or of.key != but)
                ]
                newest = fitting[-1] if fitting else newest
            if newest is not None or start == first:
                return newest
            span *= 16
        return None

    async def last_commit(
        self, place: TopicPartition, *, marks: Collection[bytes]
    ) -> dict[bytes, bytes]:
        """What the two newest commits have entered, looking further back until three have left
        their mark.

        Transactions of a partition follow each other, so all of the two newest ones lies between;
        where compaction has left fewer marks, the state is read from its beginning. The newest one
        deletes what the one before it has recorded; it is told all the same, since the publication
        may be a while longer in ending elsewhere than the deletion is here.
        """
        first, end = await self.bounds(place)
        span = _TAIL
        while True:
            start, left = max(first, end - span), 0
            state: dict[bytes, bytes] = {}
            async for records in self.batches(place, start, end):
                for record in records:
                    left += record.key in marks
                    if record.key != OWNER_KEY and record.value is not None:
                        state[_key(record)] = record.value
            if left > 2 or start == first:
                return state
            span *= 16


@asynccontextmanager
async def reader(
    settings: KafkaSettings,
    topics: Sequence[str],
    *,
    where: str,
    group_id: str | None = None,
    isolation: str = "read_committed",
) -> AsyncIterator[PartitionReader]:
    """A reader for as long as the block lasts; with a group it can read the group's offsets."""
    with client_errors.translated(where):
        consumer = settings.consumer(
            isolation=isolation,
            group_id=group_id,
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_max_wait_ms=_WAIT_MS,
        )
        async with client_errors.started(consumer, settings):
            lean(consumer)
            await know_topics(consumer, topics)
            yield PartitionReader(consumer, where)


async def durable(
    settings: KafkaSettings,
    topics: StreamTopics,
    number: int,
    *,
    owned_at: int | None,
    entries: LiveEntries | None = None,
    reached: Reached = no_fault,
) -> Taken:
    """A partition's durable state: as of our own owner record, or without one as of now.

    The order of reads avoids contradictions when an owner works meanwhile: the state contains every
    ledger line and group offset that was read earlier, and the input reaches at least as far as the
    state. An owner's state is that before its record, though, so only `PartitionOwner.confirm`
    tells whether a later owner has come. A look without a record waits for the transactions that
    are open in the state: a commit ends in one partition before it ends in another. It then reads
    the ledger's end again, in the same way: that contains every line of which the state knows.
    """
    partition = Partition(topics.stream, number)
    seconds = (topics.second_input,) if topics.second_input else ()
    names = (topics.input, topics.state, topics.ledger, *seconds)
    where = f"partition {partition}"
    async with reader(settings, names, where=where, group_id=group(topics)) as look:
        source = TopicPartition(topics.input, number)
        ids = await topic_ids(client_of(look.consumer), [topics.input, *seconds])
        first = await look.first(source)
        reached("take: first", partition)
        partitions = look.consumer.partitions_for_topic(topics.input) or ()
        group_offsets = await look.remembered(topics.input, partitions)
        reached("take: group", partition)
        second_offsets = await look.remembered(topics.second_input, [number]) if seconds else {}
        ledger_place = TopicPartition(topics.ledger, number)
        last = await look.newest(ledger_place)
        reached("take: ledger", partition)
        state_place = TopicPartition(topics.state, number)
        if owned_at is None:
            await transactions_ended(look.consumer, settings, [state_place], where=where)
        state = LiveEntries() if entries is None else entries
        owner = await _read_state(look, state_place, owned_at, state)
        reached("take: state", partition)
        later: ConsumerRecord | None = None
        if owned_at is None:
            await transactions_ended(look.consumer, settings, [ledger_place], where=where)
            later = await look.newest(ledger_place)
        end = await look.end(source)
        second_input = NO_INPUT
        if seconds:
            second_input = Reach(
                *await look.bounds(TopicPartition(topics.second_input, number)),
                group=second_offsets[number].offset if number in second_offsets else None,
                id=ids.get(topics.second_input),
            )
    return Taken(
        state=state,
        first_offset=first,
        end_offset=end,
        group_offset=group_offsets[number].offset if number in group_offsets else None,
        last_ledger_line=None if last is None else last.value,
        partitions=len(partitions),
        remarks={number: kept.metadata for number, kept in group_offsets.items()},
        input_id=ids.get(topics.input),
        owner=owner,
        second_input=second_input,
        later_ledger_line=None if later is None else later.value,
    )


async def transactions_ended(
    consumer: AIOKafkaConsumer,
    settings: KafkaSettings,
    places: Sequence[TopicPartition],
    *,
    where: str,
) -> None:
    """Wait until every record there is now can be read, or was aborted; or until time is up.

    For a reader of committed records, which compares them with what it has read elsewhere.
    """
    topics = list({place.topic for place in places})
    async with reader(settings, topics, where=where, isolation="read_uncommitted") as everything:
        ends = await everything.consumer.end_offsets(places)
    clock = asyncio.get_running_loop().time
    until = clock() + _SETTLED_SECONDS
    while clock() < until:
        readable = await consumer.end_offsets(places)
        if all(readable[place] >= end for place, end in ends.items()):
            return
        await asyncio.sleep(_WAIT_MS / 1000)


async def _read_state(
    look: PartitionReader,
    place: TopicPartition,
    owned_at: int | None,
    state: LiveEntries,
) -> str | None:
    """Read every live entry; return the owner. A later owner means that the partition is lost.

    The newest entry comes first, and again in its place: a commit ends with its checkpoint, which
    tells what is published, and compaction has removed the earlier ones.
    """
    newest = await look.newest(place, stop=owned_at, but=OWNER_KEY)
    if newest is not None:
        state.enter([_key(newest)], [newest.value])
    first, end = await look.bounds(place)
    owner: str | None = None
    async for records in look.batches(place, first, end if owned_at is None else None):
        keys = [of.key for of in records if of.key is not None]
        values = [of.value for of in records]
        assert len(keys) == len(values), "a compacted topic takes no record without a key"
        stop = len(keys)
        if OWNER_KEY in keys:
            for at in [at for at, key in enumerate(keys) if key == OWNER_KEY]:
                owner = owner_of(values[at])
                if owned_at is not None and records[at].offset >= owned_at:
                    if records[at].offset > owned_at:
                        raise Fenced(
                            look.where,
                            "another process has taken it",
                            expected=f"our owner record, at offset {owned_at}, as the last",
                            got=f"a later one, at offset {records[at].offset}",
                        )
                    stop = at
                    break
            kept = [at for at in range(stop) if keys[at] != OWNER_KEY]
            keys, values = [keys[at] for at in kept], [values[at] for at in kept]
        state.enter(keys, values)
        if stop < len(records):
            break
    return owner


def _key(record: ConsumerRecord) -> bytes:
    """The key of an entry."""
    assert record.key is not None, "a compacted topic takes no record without a key"
    return bytes(record.key)


async def last_commits(
    settings: KafkaSettings, topic: str, *, marks: Callable[[int], Collection[bytes]]
) -> AsyncIterator[LastCommit]:
    """What the newest commit of each partition of a state topic has recorded."""
    async with reader(settings, (topic,), where=f"topic {topic}") as look:
        numbers = sorted(look.consumer.partitions_for_topic(topic) or ())
        places = [TopicPartition(topic, number) for number in numbers]
        await transactions_ended(look.consumer, settings, places, where=look.where)
        for number, place in zip(numbers, places, strict=True):
            yield LastCommit(number, await look.last_commit(place, marks=marks(number)))


async def stretch(
    settings: KafkaSettings, topics: StreamTopics, partition: Partition, *, start: int, stop: int
) -> AsyncIterator[Records]:
    """The input from `start` up to but without `stop`, or up to its end."""
    if start >= stop:
        return
    where = f"partition {partition}"
    place = TopicPartition(topics.input, partition.number)
    async with reader(settings, (topics.input,), where=where) as look:
        first, end = await look.bounds(place)
        if start < first:
            raise expired(partition, start=start, first=first)
        try:
            async for records in look.input(topics, partition, start, min(stop, end)):
                yield records
        except OffsetOutOfRangeError as error:
            first, _ = await look.bounds(place)
            raise expired(partition, start=start, first=first) from error


def expired(partition: Partition, *, start: int, first: int) -> StateMismatch:
    """The error for input that is needed and gone."""
    return StateMismatch(
        f"partition {partition}: input",
        "needed records are gone; restore them, or start a new epoch",
        expected=f"offset {start}",
        got=f"oldest retained offset {first}",
    )


def as_records(
    topics: StreamTopics, partition: Partition, records: Sequence[ConsumerRecord], *, start: int
) -> Records:
    """The client's records as the port's columns; `start` is the requested offset."""
    first, last = records[0].offset, records[-1].offset
    whole = last - first + 1 == len(records)  # offsets rise
    offsets = range(first, last + 1) if whole else [record.offset for record in records]
    return Records(
        partition=partition,
        start=start,
        offsets=offsets,
        keys=[record.key for record in records],
        values=[record.value for record in records],
        next_offset=last + 1,
        headers=[record.headers for record in records] if topics.headers else (),
        timestamps=[record.timestamp for record in records] if topics.headers else (),
    )
