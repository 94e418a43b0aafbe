"""Does a consumer group share the input without stopping anybody who need not stop?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.structs import TopicPartition

from streamdp.ports import Partition, StreamTopics
from streamdp.testing.broker import Borrowed
from streamdp.testing.transport_room import QUIET, Heard, Worker, rows, step
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology, grouping, owner

pytestmark = [pytest.mark.kafka, pytest.mark.anyio]


@pytest.fixture
def topics(fresh_app: Callable[[], str]) -> StreamTopics:
    """A stream's, of an application that the broker has not seen."""
    app = fresh_app()
    return StreamTopics(app=app, stream="home", input=f"{app}.input")


@pytest.fixture
def technology(broker: Borrowed) -> KafkaTechnology:
    """The shared broker, with one copy of everything."""
    return KafkaTechnology(KafkaSettings(broker.bootstrap, single_broker=True))


def _home(number: int) -> Partition:
    return Partition("home", number)


async def _joined(technology: KafkaTechnology, topics: StreamTopics, *, partitions: int) -> Worker:
    """A lone worker on topics of its own, with everything assigned."""
    await technology.administrator().create([topics], partitions=partitions)
    worker = Worker(technology.transport(worker="lone"), Heard())
    await worker.transport.join([topics], worker.heard)
    await worker.until(lambda heard: len(heard.assigned_now) == partitions)
    return worker


class Slow(ConsumerRebalanceListener):
    """A member that holds every rebalance up until it may go on."""

    def __init__(self) -> None:
        self.assigned = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Before it joins anew."""
        if self.assigned.is_set():
            await self.may_go_on.wait()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """It is in."""
        self.assigned.set()


@asynccontextmanager
async def _slow_member(bootstrap: str, topics: StreamTopics) -> AsyncIterator[Slow]:
    """A member of the stream's group that has joined."""
    listener = Slow()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=owner.group(topics),
        enable_auto_commit=False,
        auto_offset_reset="latest",
        heartbeat_interval_ms=100,
        rebalance_timeout_ms=60_000,
        partition_assignment_strategy=(StickyPartitionAssignor,),
    )
    await consumer.start()
    consumer.subscribe([topics.input], listener=listener)
    try:
        yield listener
    finally:
        listener.may_go_on.set()
        await consumer.stop()


async def test_does_a_rebalance_stop_what_is_kept(
    broker: Borrowed,
    topics: StreamTopics,
    technology: KafkaTechnology,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long the others take to join anew, what stays is delivered and committed."""
    heard: list[object] = []
    monkeypatch.setattr(
        grouping._Callbacks, "on_partitions_revoked", lambda self, revoked: heard.append(revoked)
    )
    worker = await _joined(technology, topics, partitions=2)
    async with _slow_member(broker.bootstrap, topics) as slow:
        await worker.until(lambda heard: len(heard.assigned_now) == 1 and slow.assigned.is_set())
        (kept,) = worker.heard.assigned_now
        await worker.transport.take(kept)
        worker.transport.resume(kept, 0)
        rebalances = len(heard)
        third = Worker(technology.transport(worker="third"), Heard())
        await third.transport.join([topics], third.heard)
        await worker.until(lambda _: len(heard) > rebalances)
        async with asyncio.timeout(30):  # whoever has nothing yet does not wait for it in a poll
            assert await third.transport.poll(max_records=1, timeout=0.1) == []
        producer = technology.producer()
        for number in range(3):
            await producer.send(topics.input, [(b"key", b"value")] * 5, partition=kept.number)
            assert len(rows(await worker.collect(5))) == 5
            await worker.transport.commit(kept, step(number + 1))
        assert third.heard.assigned_now == set(), "the rebalance is not over"
        await producer.close()
        slow.may_go_on.set()
        await third.transport.close()
    await worker.until(lambda heard: len(heard.assigned_now) == 2)
    await worker.transport.close()


async def test_do_partitions_take_turns(topics: StreamTopics, technology: KafkaTechnology) -> None:
    """However much was fetched of one, the next ask begins with another."""
    worker = await _joined(technology, topics, partitions=4)
    producer = technology.producer()
    for number in range(4):
        await producer.send(topics.input, [(b"key", b"value")] * 500, partition=number)
    await producer.close()
    for number in range(4):
        worker.transport.resume(_home(number), 0)
    seen: set[Partition] = set()
    while len(seen) < 4:
        seen |= {r.partition for r in await worker.transport.poll(max_records=1, timeout=QUIET)}
    counts = dict.fromkeys(range(4), 0)
    for _ in range(12):
        for records in await worker.transport.poll(max_records=10, timeout=QUIET):
            counts[records.partition.number] += len(records)
    assert counts == dict.fromkeys(range(4), 30)
    await worker.transport.close()
