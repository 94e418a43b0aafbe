"""Is what a takeover reads bounded and readable, whatever the broker's cleaner has done or left?

Only closed segments of a compacted topic are ever compacted, so that a takeover reads a small
multiple of what is live rests on the state topic's own settings: made with it, looked at by
`topics check`, and mended on request.

Of a transaction's marker the cleaner keeps the empty batch while that remembers a producer, such as
a transactional id that died after its work. The client of aiokafka raises at a control batch
without a record, for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from struct import unpack_from

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import TopicPartition

from streamdp.ports import Commit, LiveEntries, Partition, StreamTopics, Value, Verdict
from streamdp.testing.broker import Borrowed, Broker, own_broker
from streamdp.testing.transport_room import Heard
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology, reading
from streamdp_adapters.kafka.internals import AbandonableProducer, abandon_producer
from streamdp_adapters.kafka.topics import wanted
from tests.support.kafka_site import Site

pytestmark = pytest.mark.kafka

HOME = Partition("home", 0)
LIVE = 200  # entries that are live
BURST = 100  # commits at once; from then on a few in a second, while the broker does its part
PAUSE = 0.2  # seconds
MOST_COMMITS = 1_000
CLEANED_SOON = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "delete.retention.ms": "1",
    "min.cleanable.dirty.ratio": "0.01",
}
BATCH_HEAD, CONTROL = 61, 0x20
LOSSES = b'{"losses": {"a": 0.25, "b": 0.5, "c": 1}}'


class Counted(LiveEntries):
    """Counts what is read, live or not."""

    read = 0

    def enter(self, places: Sequence[bytes], values: Sequence[Value]) -> None:
        self.read += len(places)
        super().enter(places, values)


def table(bootstrap: str) -> KafkaSettings:
    return KafkaSettings.parse(
        {"bootstrap": bootstrap, "single_broker": True, "session_timeout_ms": 1500}
    )


def topics_of(app: str, *, largest_value: int = 0) -> StreamTopics:
    return StreamTopics(app, "home", f"{app}-losses", largest_value=largest_value)


async def configure(bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
    """These settings, and the broker's own for all others."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(settings))
    await client.alter_configs([resource])
    await client.close()


async def settings_of(bootstrap: str, topic: str) -> dict[str, str | None]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    (answer,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    await client.close()
    return {entry[0]: entry[1] for entry in answer.resources[0][4]}


async def test_is_a_state_without_settings_of_its_own_mended(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """As an earlier version made it: a warning each, set on request, everything else left alone."""
    topics = topics_of(fresh_app())
    tools = KafkaTechnology(table(broker.bootstrap)).administrator()
    await tools.create([topics], partitions=1)
    assert [f.subject for f in await tools.check([topics]) if f.verdict is not Verdict.GOOD] == []
    own = {"cleanup.policy": "compact", "max.message.bytes": "900000", "segment.ms": "20000"}
    await configure(broker.bootstrap, topics.state, own)
    warned = [f for f in await tools.check([topics]) if f.verdict is not Verdict.GOOD]
    names = ("segment.bytes", "min.cleanable.dirty.ratio", "delete.retention.ms")
    assert {f.subject for f in warned} == {f"topic {topics.state}: {name}" for name in names}
    assert {f.verdict for f in warned} == {Verdict.WARNING}
    assert all("topics check --mend" in f.detail for f in warned)
    mended = await tools.mend([topics])
    changed = {f.subject for f in mended if f.verdict is Verdict.CHANGED}
    assert changed == {f.subject for f in warned}
    now = await settings_of(broker.bootstrap, topics.state)
    assert own.items() <= now.items()
    assert now["delete.retention.ms"] == "1000"
    assert [f.verdict for f in await tools.mend([topics])].count(Verdict.CHANGED) == 0


def test_is_a_segment_never_too_small_for_a_commit() -> None:
    """The broker refuses a batch that is larger than a segment."""
    settings = table("127.0.0.1:9092")
    for largest_value in (0, 1 << 20, 60 << 20):
        (state,) = [t for t in wanted(topics_of("a", largest_value=largest_value), settings)
                    if t.role == "state"]  # fmt: skip
        assert int(state.settings["segment.bytes"]) >= max(8 << 20, 2 * largest_value)


@pytest.fixture(scope="module")
def tidy() -> Iterator[Broker]:
    """A broker whose cleaner looks often."""
    with own_broker(settings={"log.cleaner.backoff.ms": "50"}) as mine:
        yield mine


async def test_is_what_a_takeover_reads_bounded(tidy: Broker) -> None:
    """Everything is written again and again, a release removed for each that is recorded.

    With the settings that the topic is made with, but segments that are closed after a second, so
    that it takes seconds. With a broker's own settings a takeover would read all of it.
    """
    topics, technology = topics_of("tidy"), KafkaTechnology(table(tidy.bootstrap))
    await technology.administrator().create([topics], partitions=1)
    made = next(t for t in wanted(topics, table(tidy.bootstrap)) if t.role == "state").settings
    quicker = {"segment.ms": "1000"}
    await configure(tidy.bootstrap, topics.state, {**made, **quicker})
    transport = technology.transport(worker="w")
    await transport.join([topics], Heard())
    await transport.take(HOME)
    written = 0
    for number in range(1, MOST_COMMITS):
        rows = [(b"row %d" % at, b"r" * 200) for at in range(LIVE)]
        recorded = [(b"release %d" % number, b"x" * 400), (b"release %d" % (number - 20), None)]
        commit = Commit(next_offset=number, state=[*rows, *recorded, (b"checkpoint", b"c")])
        await transport.commit(HOME, commit)
        written += len(commit.state)
        if number >= BURST:
            await asyncio.sleep(PAUSE)
        if number >= BURST and number % 5 == 0:
            entries = Counted()
            await reading.durable(table(tidy.bootstrap), topics, 0, owned_at=None, entries=entries)
            assert len(entries) < 2 * LIVE
            if entries.read < written / 10:
                break
    else:
        pytest.fail(f"{entries.read} of {written} entries were read, {LIVE} are live")
    await transport.close()


# Markers that were emptied


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
