"""Are the records that the adapter reads the client's own, without what nobody reads?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import ConsumerRecord, TopicPartition

from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka.internals import lean

pytestmark = pytest.mark.kafka

Made = tuple[int, bytes | None, bytes | None]


async def _write(bootstrap: str, topic: str) -> None:
    """Committed, aborted and committed again; null keys and null values among them."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
    await producer.start()
    for part in range(3):
        await producer.begin_transaction()
        for number in range(50):
            key = None if number % 7 == 0 else b"key %d" % number
            value = None if key is not None and number % 5 == 0 else b"value %d/%d" % (part, number)
            await producer.send_and_wait(topic, value, key, partition=0)
        await (producer.abort_transaction() if part == 1 else producer.commit_transaction())
    await producer.stop()


async def _read(
    bootstrap: str, topic: str, *, change: Callable[[AIOKafkaConsumer], None]
) -> object:
    """Offsets, keys and values in small polls, whether they are the client's own class, the end."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="none",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        change(consumer)
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        end = (await consumer.end_offsets([place]))[place]
        rows: list[Made] = []
        classes: set[bool] = set()
        while await consumer.position(place) < end:
            records: Any = (await consumer.getmany(timeout_ms=100, max_records=7)).get(place, [])
            assert len(records) <= 7
            rows += [(record.offset, record.key, record.value) for record in records]
            classes |= {isinstance(record, ConsumerRecord) for record in records}
        return rows, classes
    finally:
        await consumer.stop()


async def test_are_lean_records_the_same(broker: Borrowed, fresh_app: Callable[[], str]) -> None:
    """The same offsets, keys and values; nothing aborted; and not the client's slow class."""
    topic = fresh_app()
    await _write(broker.bootstrap, topic)
    usual = await _read(broker.bootstrap, topic, change=lambda consumer: None)
    lean_read = await _read(broker.bootstrap, topic, change=lean)
    assert isinstance(usual, tuple)
    assert isinstance(lean_read, tuple)
    assert usual[0] == lean_read[0]
    assert len(lean_read[0]) == 100
    assert (usual[1], lean_read[1]) == ({True}, {False})
