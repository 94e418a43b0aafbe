"""What alerts are made of, on a real broker: lag before a partition works, and a deleted input."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from streamdp.core.errors import TransportLost
from streamdp.ports import Partition, StreamTopics
from streamdp.testing.broker import Borrowed
from streamdp.testing.transport_room import Heard, RoomWorker, numbered, step
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology
from streamdp_adapters.kafka.topics import administration
from tests.support.kafka_site import send

pytestmark = [pytest.mark.kafka, pytest.mark.long]

HOME = Partition("home", 0)


async def test_lag_is_known_before_a_partition_is_taken_and_a_deleted_input_is_missed(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """The rule pages after thirty seconds more, so all within two minutes."""
    settings = KafkaSettings.parse({"bootstrap": broker.bootstrap, "single_broker": True})
    technology, app = KafkaTechnology(settings), fresh_app()
    topics = StreamTopics(app, "home", f"{app}.input")
    await technology.administrator().create([topics], partitions=1)
    await send(technology, topics.input, numbered(10))
    first = RoomWorker(technology.transport(worker="first"), Heard())
    await first.transport.join([topics], first.heard)
    await first.until(lambda heard: bool(heard.assigned_now))
    await first.transport.take(HOME)
    await first.transport.commit(HOME, step(4))
    await first.transport.close()

    second = RoomWorker(technology.transport(worker="second"), Heard())
    await second.transport.join([topics], second.heard)
    await second.until(lambda heard: bool(heard.assigned_now))
    begun = time.monotonic()
    await second.until(lambda _: second.transport.last_known(HOME).group is not None)
    assert time.monotonic() - begun < 30
    assert (second.transport.last_known(HOME).group, second.transport.last_known(HOME).end) == (
        4,
        10,
    )
    assert not second.transport.missing()

    async with administration(settings) as client:
        await client.delete_topics([topics.input])
    begun = time.monotonic()
    while not second.transport.missing():
        assert time.monotonic() - begun < 60
        with suppress(TransportLost):  # after any other error the service would end
            await second.transport.poll(max_records=1, timeout=0.1)
    assert set(second.transport.missing()) == {topics.input}
    await second.transport.close()
