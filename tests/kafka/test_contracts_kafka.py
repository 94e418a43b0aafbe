"""Does a client of aiokafka that is abandoned leave nothing behind, and ours ask only once?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka.internals import (
    AbandonableProducer,
    abandon_consumer,
    abandon_producer,
)

pytestmark = pytest.mark.kafka


@pytest.fixture
async def topic(broker: Borrowed, fresh_app: Callable[[], str]) -> str:
    """A topic with one partition, that clients see: a member of a group asks once in minutes."""
    name = fresh_app()
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(name, 1, 1)])
    while (await admin.describe_topics([name]))[0]["error_code"]:
        await asyncio.sleep(0.02)
    await admin.close()
    return name


@pytest.mark.parametrize("answered", range(6))
async def test_does_a_producer_that_is_abandoned_at_any_request_leave_no_task(
    broker: Borrowed, topic: str, answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many answers of a transaction's six none comes; some requests are made together."""
    before = asyncio.all_tasks()
    producer = AbandonableProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
    await producer.start()
    send, asked, silent = producer.client.send, list[object](), asyncio.Event()

    async def send_some(node: int | None, request: Any, **more: Any) -> Any:
        asked.append(request)
        if len(asked) > answered:
            silent.set()
            await asyncio.Event().wait()
        return await send(node, request, **more)

    monkeypatch.setattr(producer.client, "send", send_some)
    running = asyncio.ensure_future(transact(producer, topic))
    async with asyncio.timeout(120):
        await silent.wait()
    await abandon_producer(producer)
    running.cancel()
    await asyncio.wait([running])
    assert asyncio.all_tasks() == before
    assert not producer.requests


@pytest.mark.parametrize(("made_by", "asked"), [(AIOKafkaProducer, 2), (AbandonableProducer, 1)])
async def test_the_client_asks_again_for_an_end_whose_answer_was_lost_and_ours_does_not(
    broker: Borrowed,
    topic: str,
    made_by: type[AIOKafkaProducer],
    asked: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would ask in the same epoch; to our producer a fatal error tells it to stop."""
    send, ends = AIOKafkaClient.send, list[object]()

    async def lose_the_first(client: Any, node: int, request: Any, **more: Any) -> Any:
        answer = await send(client, node, request, **more)
        if isinstance(request, EndTxnRequest):
            ends.append(answer)
            if len(ends) == 1:
                raise KafkaConnectionError("lost")
        return answer

    monkeypatch.setattr(AIOKafkaClient, "send", lose_the_first)
    producer = made_by(bootstrap_servers=broker.bootstrap, transactional_id=topic)
    await producer.start()
    async with asyncio.timeout(120):
        if asked == 1:
            with pytest.raises(KafkaConnectionError, match="lost"):
                await transact(producer, topic)
            assert producer._txn_manager.is_fatal_error()
        else:
            await transact(producer, topic)
    await producer.stop()
    assert len(ends) == asked


async def transact(producer: AIOKafkaProducer, topic: str) -> None:
    """One record and one offset in one transaction; batch and group are in flight together."""
    await producer.begin_transaction()
    position = {TopicPartition(topic, 0): OffsetAndMetadata(1, "")}
    sending = producer.send_and_wait(topic, b"value", partition=0)
    await asyncio.gather(sending, producer.send_offsets_to_transaction(position, topic))
    await producer.commit_transaction()


@pytest.mark.parametrize("in_group", [True, False], ids=["in a group", "alone"])
async def test_does_a_consumer_that_is_abandoned_leave_no_task(
    broker: Borrowed, topic: str, in_group: bool
) -> None:
    """Fetches, and what keeps a member in its group or remembers offsets without one."""
    before = asyncio.all_tasks()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id=topic if in_group else None,
        enable_auto_commit=False,
    )
    await consumer.start()
    if in_group:
        consumer.subscribe([topic])
    else:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
    async with asyncio.timeout(120):
        while not (consumer.assignment() and consumer._fetcher._pending_tasks):
            await asyncio.sleep(0.01)
    await abandon_consumer(consumer)
    for _ in range(3):
        await asyncio.sleep(0)  # a task that was cancelled last ends in the next turns
    assert asyncio.all_tasks() == before


async def test_does_a_client_that_never_connected_have_nothing_to_abandon() -> None:
    """Its parts are made by `start`."""
    consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1", group_id="nobody")
    await abandon_consumer(consumer)
    await abandon_producer(
        AbandonableProducer(bootstrap_servers="127.0.0.1:1", transactional_id="nobody")
    )
