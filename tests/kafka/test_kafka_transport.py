"""Does the Kafka transport survive what Kafka and its client do?"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import TopicPartition

from streamdp.core.errors import Fenced, InvalidConfig, StateMismatch, TransportLost
from streamdp.ports import Commit, Key, Partition, Records, StreamTopics, Value, Verdict, no_fault
from streamdp.testing.broker import Borrowed, Broker
from streamdp.testing.transport_room import Heard, RoomWorker, rows, step
from streamdp_adapters.kafka import (
    KafkaSettings,
    KafkaTechnology,
    client_errors,
    internals,
    membership,
    owner,
    publications,
)
from tests.support.kafka_site import joined, ledger, send

pytestmark = pytest.mark.kafka

GOOD = Verdict.GOOD
Fresh = Callable[[], str]


def _settings(bootstrap: str, **more: object) -> KafkaSettings:
    """A single broker, and short patience with silent members."""
    table = {"single_broker": True, "session_timeout_ms": 1500, **more}
    return KafkaSettings.parse({"bootstrap": bootstrap, **table})


def _topics_of(app: str) -> StreamTopics:
    return StreamTopics(app=app, stream="home", input=f"{app}.input")


def _home(number: int = 0) -> Partition:
    return Partition("home", number)


# Other owners


async def test_a_fenced_partition_that_the_group_still_gives_is_announced_again(
    broker: Borrowed, technology: KafkaTechnology, topics: StreamTopics
) -> None:
    settings, worker = _settings(broker.bootstrap), await joined(technology, topics)
    assert (await worker.transport.take(_home())).owner == "lone"
    thief = owner.PartitionOwner(
        topics, 0, settings=settings, worker="thief", largest=10**6, reached=no_fault
    )
    await thief.take()
    assert (await technology.administrator().peek(topics, 0)).owner == "thief"
    with pytest.raises(Fenced):
        await worker.transport.commit(_home(), step(1))
    worker.heard.assigned_now.clear()
    await worker.until(lambda heard: heard.assigned_now == {_home()})
    await worker.transport.take(_home())
    await worker.transport.commit(_home(), step(2))
    with pytest.raises(TransportLost):
        await thief.commit(step(3))
    await asyncio.gather(worker.transport.close(), thief.close())


# A broker that dies


@pytest.mark.parametrize("moment", ["commit: begun", "commit: sent", "commit: decided"])
async def test_a_broker_killed_in_mid_commit_leaves_one_outcome(
    mortal: Broker, monkeypatch: pytest.MonkeyPatch, moment: str, topics: StreamTopics
) -> None:
    kills = iter([False, True])

    def kill(reached: str, partition: Partition) -> None:
        if reached == moment and next(kills, False):
            mortal.kill()

    technology = KafkaTechnology(_settings(mortal.bootstrap), reached=kill)
    worker = await joined(technology, topics)
    await worker.transport.take(_home())
    await worker.transport.commit(_home(), step(1))
    monkeypatch.setattr(owner, "COMMIT_SECONDS", 0.5)
    commit = worker.transport.commit(_home(), step(2))
    (outcome,) = await asyncio.gather(commit, return_exceptions=True)
    monkeypatch.undo()
    mortal.start()
    taken = await worker.transport.take(_home())
    kept = b"row 2" in taken.state
    assert isinstance(outcome, TransportLost) or (outcome is None and kept)
    await worker.transport.commit(_home(), step(3))
    numbers = [1, 2, 3] if kept else [1, 3]
    assert await ledger(technology, topics) == [v for n in numbers for _, v in step(n).ledger]
    await worker.transport.close()


async def test_giving_up_is_bounded_while_the_broker_hangs(
    mortal: Broker, monkeypatch: pytest.MonkeyPatch, topics: StreamTopics
) -> None:
    """And it leaves no task behind."""
    before = asyncio.all_tasks()
    worker = await joined(KafkaTechnology(_settings(mortal.bootstrap)), topics)
    await worker.transport.take(_home())
    assert asyncio.all_tasks() > before
    monkeypatch.setattr(owner, "COMMIT_SECONDS", 0.3)
    mortal.freeze()
    try:
        with pytest.raises(TransportLost):
            await worker.transport.commit(_home(), step(1))
        async with asyncio.timeout(60):
            await worker.transport.close()
    finally:
        mortal.thaw()
    assert asyncio.all_tasks() == before


async def test_a_corrupt_batch_halts_its_partition_only(
    mortal: Broker, topics: StreamTopics
) -> None:
    technology = KafkaTechnology(_settings(mortal.bootstrap))
    worker = await joined(technology, topics, partitions=2)
    producer = technology.producer()
    for number in range(2):
        await producer.send(topics.input, [(b"key", b"intact")] * 3, partition=number)
        await producer.send(topics.input, [(b"key", b"damage me")] * 3, partition=number)
    await producer.close()
    await worker.transport.close()
    mortal.stop()  # in order: after a kill the broker would cut the damage off
    (log,) = (mortal.folder / "data" / f"{topics.input}-1").glob("*.log")
    log.write_bytes(log.read_bytes().replace(b"damage me", b"damaged!!", 1))
    mortal.start()
    worker = await joined(technology, topics, partitions=2)
    for number in range(2):
        await worker.transport.take(_home(number))
        worker.transport.resume(_home(number), 0)
    came: list[tuple[int, Key, Value]] = []
    while not (worker.heard.failures and len(came) >= 9):
        came += rows(await worker.transport.poll(max_records=100, timeout=0.5))
    assert sorted(value for _, _, value in came if value) == [b"damage me"] * 3 + [b"intact"] * 6
    ((partition, error),) = worker.heard.failures
    assert partition == _home(1)
    assert isinstance(error, StateMismatch)
    assert "cannot be decoded at offset 3" in str(error)
    await worker.transport.close()


async def _lost(worker: RoomWorker) -> str:
    """Poll until that is an error, and say which."""
    with pytest.raises(TransportLost) as caught:
        await worker.until(lambda heard: False)
    return str(caught.value)


async def test_lag_without_progress_is_an_error_that_passes(
    mortal: Broker, monkeypatch: pytest.MonkeyPatch, topics: StreamTopics
) -> None:
    """A consumer that no longer hears anything says nothing by itself; a new one takes over.

    With time of its own for all partitions: idle ones do not end it one after the other.
    """
    monkeypatch.setattr(membership, "STALL_SECONDS", 2.5)
    monkeypatch.setattr(membership, "_LOOK_SECONDS", 0.1)
    technology = KafkaTechnology(_settings(mortal.bootstrap))
    worker = await joined(technology, topics, partitions=4)
    for number in range(4):
        worker.transport.resume(_home(number), 0)
    mortal.freeze()
    try:
        while "lags and makes no progress" not in await _lost(worker):
            pass
    finally:
        mortal.thaw()
    calm = 0
    while calm < 15:
        try:
            assert await worker.transport.poll(max_records=9, timeout=0.1) == []
            calm += 1
        except TransportLost as error:
            assert "lags" not in str(error)  # noqa: PT017  # other errors may still be under way
    producer = technology.producer()
    await producer.send(topics.input, [(b"key", b"value")] * 3, partition=0)
    await producer.close()
    assert len(rows(await worker.collect(3))) == 3
    await worker.transport.close()


async def test_is_the_end_of_a_transaction_no_lag(
    broker: Borrowed,
    technology: KafkaTechnology,
    monkeypatch: pytest.MonkeyPatch,
    topics: StreamTopics,
) -> None:
    """A marker takes an offset, which an empty batch passes; an open transaction cannot be read."""
    monkeypatch.setattr(membership, "_LOOK_SECONDS", 5.0)  # and so long an answer may take
    worker = await joined(technology, topics)
    worker.transport.resume(_home(), 0)
    upstream: Any = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=f"{topics.app}.upstream"
    )
    await upstream.start()
    async with upstream.transaction():
        for _ in range(3):
            await upstream.send(topics.input, b"value", b"key", partition=0)
    batches: list[Records] = []
    while not batches or batches[-1].next_offset < 4:
        batches += await worker.transport.poll(max_records=10, timeout=0.2)
    assert (len(rows(batches)), worker.transport.last_known(_home()).end) == (3, 4)
    await upstream.begin_transaction()
    await upstream.send_and_wait(topics.input, b"value", b"key", partition=0)
    assert await worker.transport.poll(max_records=10, timeout=0.5) == []
    assert worker.transport.last_known(_home()).end == 4
    await upstream.commit_transaction()
    (batch,) = await worker.collect(1)
    assert (batch.start, list(batch.offsets)) == (4, [4])
    await worker.until(lambda _: worker.transport.last_known(_home()).end == 6)
    await upstream.stop()
    await worker.transport.close()


@pytest.mark.long
async def test_a_cluster_that_is_gone_is_noticed_without_any_traffic(
    mortal: Broker, fresh_app: Fresh, topics: StreamTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an idle worker, one that has resumed nothing and a reader; a poll is well afterwards."""
    monkeypatch.setattr(membership, "_LOOK_SECONDS", 5.0)  # and so long an answer may take
    monkeypatch.setattr(publications, "_PARTITIONS_SECONDS", 1.0)
    technology = KafkaTechnology(_settings(mortal.bootstrap))
    workers = [await joined(technology, _topics_of(fresh_app())) for _ in range(2)]
    workers[0].transport.resume(_home(), 0)
    await technology.administrator().create([topics], partitions=1)
    lines = technology.publications().ledger(topics, follow=True)
    assert await anext(lines) == []
    async with asyncio.timeout(60):
        await asyncio.gather(*map(_well, workers))
    mortal.kill()
    async with asyncio.timeout(180):
        for said in await asyncio.gather(*map(_lost, workers)):
            assert "the result is unknown" in said
        with pytest.raises(TransportLost, match="unreachable"):
            await anext(lines)
    await asyncio.to_thread(mortal.start)
    async with asyncio.timeout(120):
        for worker in workers:
            while not await _polled(worker):
                pass
    await asyncio.gather(*(worker.transport.close() for worker in workers))


def _namelessly(monkeypatch: pytest.MonkeyPatch, times: Iterator[object]) -> None:
    """Let brokers' first answers name no broker, as for a moment after a start or an absence."""
    connected = AIOKafkaConnection.send

    async def send(connection: AIOKafkaConnection, request: Any, **more: Any) -> Any:
        answer = await connected(connection, request, **more)
        if isinstance(request, MetadataRequest) and next(times, None) is not None:
            answer.brokers = []
        return answer

    monkeypatch.setattr(AIOKafkaConnection, "send", send)


async def test_a_broker_that_knows_of_none_for_long_is_said_to_start(
    broker: Borrowed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internals, "KNOWN_SECONDS", 0.3)
    _namelessly(monkeypatch, count())
    with pytest.raises(TransportLost, match=r"unreachable.*knows of no broker yet"):
        await KafkaTechnology(_settings(broker.bootstrap)).administrator().create([], partitions=1)


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_a_broker_that_knows_of_none_for_a_moment_is_waited_for(
    technology: KafkaTechnology, monkeypatch: pytest.MonkeyPatch, times: int, topics: StreamTopics
) -> None:
    """By a look at the cluster, by its administration and by a consumer."""
    _namelessly(monkeypatch, iter(range(times)))
    await technology.administrator().create([topics], partitions=1)
    worker = RoomWorker(technology.transport(worker="lone"), Heard())
    _namelessly(monkeypatch, iter(range(times)))
    await worker.transport.join([topics], worker.heard)
    await worker.until(lambda heard: len(heard.assigned_now) == 1)
    await worker.transport.close()


async def _well(worker: RoomWorker) -> None:
    """Poll during two looks at a cluster that is well."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(11):
            await worker.until(lambda heard: False)


async def test_a_consumer_s_stop_ends_nobody_but_whom_it_should(broker: Borrowed) -> None:
    """It waits for a fetch that it has cancelled; that fetch's end is not its caller's."""

    async def stop() -> str:
        settings = _settings(broker.bootstrap)
        consumer = AIOKafkaConsumer(**settings.client())
        await client_errors.start(consumer, settings)
        consumer._fetcher._pending_tasks.add(asyncio.create_task(asyncio.sleep(3600)))
        await client_errors.stop(consumer)
        return "went on"

    assert await stop() == "went on"
    cancelled = asyncio.create_task(stop())
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def _polled(worker: RoomWorker) -> bool:
    """Whether a poll goes well."""
    try:
        await worker.transport.poll(max_records=1, timeout=0.1)
    except TransportLost:
        return False
    return True


# Topics that are lost, wrong or too small


async def test_expired_input_stops_its_partition(
    topics: StreamTopics, technology: KafkaTechnology
) -> None:
    worker = await joined(technology, topics)
    producer = technology.producer()
    await producer.send(topics.input, [(b"key", b"value")] * 5, partition=0)
    await producer.close()
    await worker.transport.take(_home())
    worker.transport.resume(_home(), 99)  # as if the topic had been deleted and recreated
    while not worker.heard.failures:
        assert not await worker.transport.poll(max_records=10, timeout=0.2)
    ((partition, error),) = worker.heard.failures
    assert partition == _home()
    assert isinstance(error, StateMismatch)
    assert "offset 99" in str(error)
    await worker.transport.close()


async def test_input_that_is_needed_and_gone_is_never_skipped(
    broker: Borrowed, topics: StreamTopics, technology: KafkaTechnology
) -> None:
    worker = await joined(technology, topics)
    producer = technology.producer()
    await producer.send(topics.input, [(b"key", b"value")] * 5, partition=0)
    await producer.close()
    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await client.start()
    await client.delete_records({TopicPartition(topics.input, 0): RecordsToDelete(3)})
    await client.close()
    taken = await worker.transport.take(_home())
    assert (taken.first_offset, taken.end_offset) == (3, 5)
    assert worker.transport.last_known(_home()).first == 3
    with pytest.raises(StateMismatch, match="expected offset 2, got oldest retained offset 3"):
        await anext(worker.transport.read(_home(), 2, 5))
    await worker.transport.close()


def test_the_printed_commands_make_what_the_promise_needs() -> None:
    topics = StreamTopics(app="shop", stream="home", input="clicks")
    settings = KafkaSettings(bootstrap="kafka:9092")
    lines = KafkaTechnology(settings).administrator().commands([topics], partitions=8).splitlines()
    ledger = next(line for line in lines if "--topic shop.home.ledger" in line)
    for part in (
        "kafka-topics.sh --bootstrap-server kafka:9092 --create",
        "--partitions 8 --replication-factor 3",
        "--config cleanup.policy=delete",
        "--config min.insync.replicas=2",
        "--config unclean.leader.election.enable=false",
        "--config retention.ms=-1",
        "--config retention.bytes=-1",
    ):
        assert part in ledger
    for line in lines:  # what is filled to one length there is stored at that length
        state = "--topic shop.home.state" in line
        assert ("--config compression.type=uncompressed" in line) == state
    manifest = [json.loads(line[2:]) for line in lines if line.startswith("# {")]
    roles = "actions", "ledger", "state", "catalogue"
    names = ["clicks", *(f"shop.home.{role}" for role in roles)]
    assert [item["topic"] for item in manifest] == names
    assert [item["partitions"] for item in manifest] == [8, 8, 8, 8, 1]
    assert manifest[0]["config"]["retention.ms"] == str(7 * 24 * 3600 * 1000)


@pytest.mark.parametrize(
    ("policy", "single_broker", "message"),
    [
        ({"cleanup.policy": "compact"}, True, "compaction removes slots by content"),
        ({"cleanup.policy": "compact,delete"}, True, "compaction removes slots by content"),
        ({"unclean.leader.election.enable": "true"}, True, "roll back"),
        ({}, False, "replication: expected at least 3, got 1"),
    ],
)
async def test_an_input_that_breaks_the_promise_is_refused(
    broker: Borrowed,
    policy: dict[str, str],
    single_broker: bool,
    message: str,
    topics: StreamTopics,
) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await client.start()
    await client.create_topics([NewTopic(topics.input, 1, 1, topic_configs=policy)])
    await client.close()
    trial = KafkaTechnology(_settings(broker.bootstrap))
    await trial.administrator().create([topics], partitions=1)
    technology = KafkaTechnology(_settings(broker.bootstrap, single_broker=single_broker))
    transport = technology.transport(worker="lone")
    with pytest.raises(InvalidConfig, match=message):
        await transport.join([topics], Heard())
    await transport.close()


async def test_what_is_too_large_is_refused_before_anything_is_sent(
    topics: StreamTopics, technology: KafkaTechnology
) -> None:
    worker = await joined(technology, topics)
    await worker.transport.take(_home())
    large = bytes(worker.transport.largest_value("home") + 5000)
    with pytest.raises(InvalidConfig, match=r"raise max\.message\.bytes"):
        await worker.transport.commit(
            _home(), Commit(1, [(b"small", b"1")], ledger=[(b"key", large)])
        )
    await worker.transport.commit(_home(), step(2))
    taken = await worker.transport.take(_home())
    assert b"small" not in taken.state
    assert await ledger(technology, topics) == [v for _, v in step(2).ledger]
    await worker.transport.close()


# What may be seen


async def test_no_log_line_quotes_content_even_when_debugging(
    caplog: pytest.LogCaptureFixture, topics: StreamTopics, technology: KafkaTechnology
) -> None:
    caplog.set_level(logging.DEBUG)
    worker = await joined(technology, topics)
    await send(technology, topics.input, [(b"xyzzy key", b"xyzzy value")])
    await worker.transport.take(_home())
    worker.transport.resume(_home(), 0)
    (records,) = await worker.collect(1)
    assert records.values == [b"xyzzy value"]
    await worker.transport.commit(
        _home(), Commit(1, [(b"xyzzy state", b"xyzzy")], [(b"xyzzy", b"xyzzy action")])
    )
    await worker.transport.close()
    assert "xyzzy" not in caplog.text
    assert "NotEnoughReplicas" not in caplog.text
