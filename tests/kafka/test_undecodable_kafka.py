"""What do records that the client cannot decode do to a transport on a real broker?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition, codec
from aiokafka.admin import RecordsToDelete

from streamdp.core.errors import InvalidConfig
from streamdp.ports import Partition, Records, StreamTopics, Verdict
from streamdp.testing.broker import Borrowed
from streamdp.testing.transport_room import Heard, RoomWorker, rows
from streamdp_adapters.kafka import KafkaTechnology
from streamdp_adapters.kafka.decoding import LARGEST
from streamdp_adapters.kafka.transport import KafkaTransport
from tests.support.kafka_site import Site, send
from tests.support.record_batches import GOOD, ZSTD, batch_of, produce, spoilt

pytestmark = pytest.mark.kafka

HOME = Partition("home", 0)


@pytest.fixture
async def topics(technology: KafkaTechnology, fresh_app: Callable[[], str]) -> StreamTopics:
    """Of an application that the broker has not seen."""
    app = fresh_app()
    made = StreamTopics(
        app, "home", input=f"{app}.input", headers=True, second_input=f"{app}.beside",
        output=f"{app}.output",
    )  # fmt: skip
    await technology.administrator().create([made], partitions=2)
    return made


@asynccontextmanager
async def working(
    technology: KafkaTechnology, topics: StreamTopics
) -> AsyncIterator[tuple[RoomWorker, KafkaTransport]]:
    """A lone worker that has taken and resumed the partition."""
    transport = technology.transport(worker="lone")
    worker = RoomWorker(transport, Heard())
    await transport.join([topics], worker.heard)
    await worker.until(lambda heard: len(heard.assigned_now) == 2)
    await transport.take(HOME)
    transport.resume(HOME, 0)
    try:
        yield worker, transport
    finally:
        await transport.close()


async def delivered(transport: KafkaTransport, count: int) -> list[Records]:
    """So many records; a poll that traces an error brings none."""
    batches: list[Records] = []
    async with asyncio.timeout(120):
        while sum(map(len, batches)) < count:
            batches += await transport.poll(max_records=100, timeout=0.1)
    return batches


async def _send_compressed(broker: Borrowed, topic: str, value: bytes) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, compression_type="zstd")
    await producer.start()
    await producer.send_and_wait(topic, value, b"k", partition=0)
    await producer.stop()


async def test_a_header_name_that_is_not_utf_8_costs_an_outcome_but_no_slot(
    broker: Borrowed, technology: KafkaTechnology, topics: StreamTopics
) -> None:
    for topic in (topics.input, topics.second_input):
        await produce(broker.bootstrap, topic, batch_of(b"1", b"2", b"3", change=spoilt))
    async with working(technology, topics) as (worker, transport):
        batches = await delivered(transport, 3)
        assert [value for batch in batches for value in batch.values] == [b"1", b"2", b"3"]
        whole = [("id", b"1"), (GOOD, b"content")]
        headers = [list(pairs) for batch in batches for pairs in batch.headers]
        assert headers == [whole, [("id", b"1")], whole]
        again = [batch async for batch in transport.read(HOME, 0, 3)]
        assert rows(again) == rows(batches)
        second_input = [batch async for batch in transport.read_second_input(HOME, 0, 3)]
        assert [value for batch in second_input for value in batch.values] == [b"1", b"3"]
        assert second_input[-1].next_offset == 3
        assert worker.heard.failures == []


async def test_a_batch_that_decompresses_to_too_much_is_no_outcome_and_stops_an_input(
    broker: Borrowed, technology: KafkaTechnology, topics: StreamTopics
) -> None:
    """The broker takes it: only its compressed size is limited."""
    bomb = batch_of(bytes(LARGEST), compression=ZSTD)
    assert len(bomb) < 10_000
    for topic in (topics.input, topics.second_input):
        for batch in (batch_of(b"1"), bomb, batch_of(b"3")):
            await produce(broker.bootstrap, topic, batch)
    async with working(technology, topics) as (worker, transport):
        second_input = [batch async for batch in transport.read_second_input(HOME, 0, 3)]
        assert [value for batch in second_input for value in batch.values] == [b"1", b"3"]
        assert second_input[-1].next_offset == 3
        async with asyncio.timeout(120):
            while not worker.heard.failures:
                await transport.poll(max_records=100, timeout=0.1)
        ((failed, error),) = worker.heard.failures
        assert failed == HOME
        assert "decompressed larger than 64 MiB, cannot be decoded at offset" in str(error)


async def test_outcomes_in_a_codec_that_is_missing_are_none_but_input_is_refused(
    broker: Borrowed,
    technology: KafkaTechnology,
    topics: StreamTopics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition alone is halted, with the remedy; the other one is delivered."""
    producer = technology.producer()
    for topic in (topics.input, topics.second_input):
        await producer.send(topic, [(b"k", b"1")], partition=0)
        await _send_compressed(broker, topic, b"2")
        await producer.send(topic, [(b"k", b"3")], partition=0)
    monkeypatch.setattr(codec, "cramjam", None)
    async with working(technology, topics) as (worker, transport):
        second_input = [batch async for batch in transport.read_second_input(HOME, 0, 3)]
        assert [value for batch in second_input for value in batch.values] == [b"1", b"3"]
        assert second_input[-1].next_offset == 3
        other = Partition("home", 1)
        await transport.take(other)
        transport.resume(other, 0)
        assert [v for batch in await delivered(transport, 1) for v in batch.values] == [b"1"]
        await worker.until(lambda heard: bool(heard.failures))
        ((failed, error),) = worker.heard.failures
        assert (failed, type(error)) == (HOME, InvalidConfig)
        assert 'pip install "streamdp[compression]"' in str(error)
        await producer.send(topics.input, [(b"k", b"4")], partition=1)
        assert [v for batch in await delivered(transport, 1) for v in batch.values] == [b"4"]
        with pytest.raises(InvalidConfig, match="codec that is not installed"):
            _ = [batch async for batch in transport.read(HOME, 0, 3)]
    await producer.close()


async def test_outcomes_that_retention_has_deleted_are_passed_over(
    broker: Borrowed, technology: KafkaTechnology, topics: StreamTopics
) -> None:
    """Before the reading, or after it has read some."""
    await send(technology, topics.second_input, [(b"k", b"%d" % n) for n in range(10)])
    place = TopicPartition(topics.second_input, 0)
    async with working(technology, topics) as (_, transport):
        for first, start, stop in ((0, 0, 2), (4, 2, 6), (9, 6, 8), (9, 8, 10)):
            async with Site.on(broker, topics.app).administration() as client:
                await client.delete_records({place: RecordsToDelete(first)})
            batches = [batch async for batch in transport.read_second_input(HOME, start, stop)]
            read = [offset for batch in batches for offset in batch.offsets]
            assert set(range(max(first, start), stop)) <= set(read) <= set(range(start, stop))
            ends = [start, *(batch.next_offset for batch in batches)]
            assert ends == [*(batch.start for batch in batches), stop]


async def test_a_topic_s_own_codec_must_be_installed(
    broker: Borrowed,
    technology: KafkaTechnology,
    topics: StreamTopics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools, site = technology.administrator(), Site.on(broker, topics.app)
    subject = f"topic {topics.second_input}: compression.type"

    async def found() -> tuple[Verdict, str]:
        (finding,) = [f for f in await tools.check([topics]) if f.subject == subject]
        return finding.verdict, finding.detail

    assert (await found())[0] is Verdict.GOOD
    monkeypatch.setattr(codec, "cramjam", None)
    verdict, detail = await found()
    assert verdict is Verdict.WARNING
    assert "snappy or lz4 or zstd" in detail
    times = {"message.timestamp.type": "LogAppendTime", "min.insync.replicas": "1"}
    await site.configure(topics.second_input, {**times, "compression.type": "zstd"})
    verdict, detail = await found()
    assert (verdict, detail.startswith("zstd is not installed")) == (Verdict.PROBLEM, True)
    with pytest.raises(InvalidConfig, match=r"compression\.type: zstd is not installed"):
        await technology.transport(worker="w").join([topics], Heard())
    await site.configure(topics.second_input, {**times, "compression.type": "gzip"})
    assert (await found())[0] is Verdict.GOOD
