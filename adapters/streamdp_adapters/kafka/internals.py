"""Everything that touches parts of the client library that it does not document, in one room.

The client (version 0.14) has no setting and no method for these; each function here says why it is
needed, and `tests/test_contracts.py` and `tests/kafka/test_contracts_kafka.py` hold the library to
what it does. No other module of this adapter touches an attribute that begins with an underscore.

**Handing over without copies.** The client copies every decoded record into a `ConsumerRecord`,
which takes as long as all the rest of its work on a record: 0.4 of 0.8 µs. The decoded ones have
the same `offset`, `timestamp`, `key`, `value` and `headers`, which is all that this adapter reads,
so its consumers hand over those (`lean`). What was fetched comes by one dictionary of the fetcher,
and each entry is changed on its way in. Aborted and control records are left out before, as ever.

**Turns.** The order of that dictionary is the order in which the client hands over: all of the
first partition, then all of the next. With 2 MB of small records of each of 32 partitions the last
one waits for a million records of its siblings. `to_the_end` lets partitions take turns.

**Ending clients that will not stop**: their stop hangs while the broker is down, or in a race. The
tasks of a part are found by whose methods they run, and cancelled again and again, because a
cancelled one goes on to wait for those it had started. Then the connections are closed. Queued
batches are dropped: the outcome of whatever was in flight is unknown anyway.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import FetchError, FetchResult
from aiokafka.structs import OffsetAndMetadata, TopicPartition

R = TypeVar("R")

_SECONDS = 2.0
_TIMES = 10


# -- questions that the library does not pass on ---------------------------------------------------


async def ask_any_node(client: AIOKafkaAdminClient, request: Any) -> Any:
    """Send a request of our own to any broker."""
    return await client._client.send(client._client.get_random_node(), request)


async def ask_transaction_coordinator(client: AIOKafkaAdminClient, transactional_id: str) -> None:
    """Look up who coordinates a transactional id, which needs a right on it."""
    await client._client.coordinator_lookup(CoordinationType.TRANSACTION, transactional_id)


def add_to_transaction(producer: AIOKafkaProducer, place: TopicPartition) -> None:
    """Say that the open transaction will write there, without writing."""
    producer._txn_manager.maybe_add_partition_to_txn(place)


def sender_error(producer: AIOKafkaProducer) -> BaseException | None:
    """The error that ended the task which sends a producer's batches, if one did."""
    sender = producer._sender.sender_task
    if sender is None or not sender.done() or sender.cancelled():
        return None
    return sender.exception()


async def committed(
    consumer: AIOKafkaConsumer, places: list[TopicPartition]
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """The group's offsets with their metadata, which the client's own method drops."""
    found: Mapping[TopicPartition, OffsetAndMetadata]
    found = await consumer._coordinator.fetch_committed_offsets(places)
    return found


async def know_topics(consumer: AIOKafkaConsumer, topics: Sequence[str]) -> None:
    """Ask for these topics at once: the client would wait before it asks again for each."""
    await consumer._client.set_topics(topics)


def client_of(consumer: AIOKafkaConsumer) -> AIOKafkaClient:
    """The connections of a consumer."""
    return consumer._client


def knows_a_broker(consumer: AIOKafkaConsumer) -> bool:
    """Whether a started consumer has heard of any broker."""
    return bool(consumer._client.cluster.brokers())


def abort(connection: AIOKafkaConnection) -> bool:
    """Cut a connection that is closing: a refused TLS connection waits for the other side."""
    protocol = connection._protocol
    if protocol is None or protocol._transport is None:
        return False
    protocol._transport.abort()
    return True


# -- fetched records -------------------------------------------------------------------------------


def lean(consumer: AIOKafkaConsumer) -> None:
    """Let a started consumer, without deserialisers, hand over records as they are decoded."""
    consumer._fetcher._records = _Fetched(consumer._fetcher._records)


def to_the_end(consumer: AIOKafkaConsumer, place: TopicPartition) -> None:
    """Hand over what is left of a partition after what there is of all others."""
    fetched = consumer._fetcher._records
    if place in fetched:
        fetched.move_to_end(place)


def waits(consumer: AIOKafkaConsumer, place: TopicPartition) -> bool:
    """Whether something of a partition was fetched and waits to be handed over."""
    return place in consumer._fetcher._records


class _Fetched(OrderedDict[TopicPartition, FetchResult | FetchError]):
    """Fetched records that are not delivered yet."""

    def __setitem__(self, place: TopicPartition, result: FetchResult | FetchError) -> None:
        if isinstance(result, FetchResult) and result._partition_records is not None:
            result._partition_records._consumer_record = _as_decoded
        super().__setitem__(place, result)


def _as_decoded(_: TopicPartition, record: R) -> R:
    """The record itself."""
    return record


# -- ending clients --------------------------------------------------------------------------------


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
