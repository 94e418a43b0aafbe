"""Can a topic be read after the cleaner has emptied the markers of transactions in it?

It keeps the batch of such a marker while that remembers a producer, such as a transactional id that
died after its work. The client of aiokafka raises at a control batch without a record, for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from struct import unpack_from

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition

from streamdp.ports import Verdict
from streamdp.testing.broker import Borrowed, Broker, own_broker
from streamdp_adapters.kafka.internals import AbandonableProducer, abandon_producer
from tests.support.kafka_site import Site

pytestmark = pytest.mark.kafka

CLEANED_SOON = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "delete.retention.ms": "1",
    "min.cleanable.dirty.ratio": "0.01",
}
BATCH_HEAD, CONTROL = 61, 0x20
LOSSES = b'{"losses": {"a": 0.25, "b": 0.5, "c": 1}}'


@pytest.fixture(scope="module")
def tidy() -> Iterator[Broker]:
    """A broker whose cleaner looks often."""
    with own_broker(settings={"log.cleaner.backoff.ms": "50"}) as mine:
        yield mine


async def test_the_doctor_leaves_no_marker_in_topics_with_data(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """Not even an offset is taken."""
    site = Site.on(broker, fresh_app())
    await site.create()
    findings = await site.technology.administrator().probe([site.made.topics])
    assert {finding.verdict for finding in findings} == {Verdict.GOOD}
    topics = site.made.topics
    consumer = AIOKafkaConsumer(bootstrap_servers=site.bootstrap, enable_auto_commit=False)
    await consumer.start()
    places = [
        TopicPartition(name, 0)
        for name in (topics.input, topics.state, topics.actions, topics.ledger)
    ]
    ends = await consumer.end_offsets(places)
    await consumer.stop()
    assert set(ends.values()) == {0}


async def test_a_partition_is_taken_over_after_its_markers_were_emptied(
    tidy: Broker, fresh_app: Callable[[], str]
) -> None:
    """The doctor looks, ids die at their work, a service runs and is killed, another goes on."""
    site = Site.on(Borrowed(tidy.bootstrap), fresh_app())
    topics = site.made.topics
    await site.create()
    for topic in (topics.state, topics.actions):
        await site.configure(topic, CLEANED_SOON)
    await site.technology.administrator().probe([topics])
    for topic in (topics.state, topics.actions, topics.ledger):
        for leave in (announce, die_at_work):
            await leave(site.bootstrap, topic, f"{leave.__name__} in {topic}")
    async with site.serving() as killed:
        async with asyncio.timeout(240):
            while any(emptied(tidy, topic) < 2 for topic in (topics.state, topics.actions)):
                await site.send([(b"k", LOSSES)])
                await killed.read(len(site.sent))
                await asyncio.sleep(0.2)
        killed.worker.task.cancel()
        await asyncio.wait([killed.worker.task])
    await site.send([(b"k", LOSSES)] * 5)
    async with site.serving() as heir:
        await heir.read(len(site.sent))
    assert set(await site.state()).isdisjoint({b"gone", b"lost"})
    evidence = await site.evidence()
    assert {record.key for record in evidence.actions} == {b"k", b"gone"}
    assert len(evidence.ledger) >= len(site.sent)  # a block has one slot
    for topic in (topics.state, topics.actions):
        assert emptied(tidy, topic) >= 2


async def announce(bootstrap: str, topic: str, name: str) -> None:
    """A transaction that writes nothing, and is aborted: all that it leaves is its marker."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    await producer.start()
    await producer.begin_transaction()
    await producer.partitions_for(topic)
    producer._txn_manager.maybe_add_partition_to_txn(TopicPartition(topic, 0))
    await producer.abort_transaction()
    await producer.stop()


async def die_at_work(bootstrap: str, topic: str, name: str) -> None:
    """An id that has written, and whose open transaction an heir ends that never writes."""
    first, heir = (
        AbandonableProducer(bootstrap_servers=bootstrap, transactional_id=name) for _ in range(2)
    )
    await first.start()
    value = None if topic.endswith("state") else b"{}"
    await first.begin_transaction()
    if not topic.endswith("ledger"):  # a line must be one
        await first.send_and_wait(topic, value, b"gone", partition=0)
    await first.commit_transaction()
    await first.begin_transaction()
    await first.send_and_wait(topic, b"lost", b"lost", partition=0)
    await heir.start()
    await heir.stop()
    await abandon_producer(first)


def emptied(broker: Broker, topic: str) -> int:
    """How many control batches without a record are in the broker's files."""
    count = 0
    for path in (broker.folder / "data" / f"{topic}-0").glob("*.log"):
        log, at = path.read_bytes(), 0
        while at + BATCH_HEAD <= len(log):
            length, attributes = *unpack_from(">i", log, at + 8), *unpack_from(">h", log, at + 21)
            (records,) = unpack_from(">i", log, at + 57)
            count += bool(attributes & CONTROL and not records)
            at += 12 + length
    return count
