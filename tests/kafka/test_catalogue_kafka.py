"""Is a stream's list obeyed at once and never half written, whoever dies in the middle?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from streamdp.client import ActionsCache, Source, Why
from streamdp.core.errors import InvalidConfig
from streamdp.ports import StreamTopics
from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka import KafkaTechnology
from streamdp_adapters.kafka.catalogue import LIST_KEY
from streamdp_adapters.kafka.internals import AbandonableProducer
from streamdp_adapters.kafka.sending import Outbox
from streamdp_adapters.kafka.settings import KafkaSettings
from tests.support.publishing import LINES, action, list_record, release

pytestmark = [pytest.mark.kafka, pytest.mark.anyio]

OBEYED_SECONDS = 2.0


def settings(broker: Borrowed) -> KafkaSettings:
    return KafkaSettings.parse({"bootstrap": broker.bootstrap, "single_broker": True})


async def left_open(
    broker: Borrowed, identity: str, topic: str, key: bytes, value: bytes
) -> AbandonableProducer:
    """A producer that has sent something in a transaction, and goes no further."""
    producer = AbandonableProducer(**settings(broker).client(), transactional_id=identity)
    await producer.start()
    await producer.begin_transaction()
    out = Outbox(producer)
    await out.put(topic, 0, [(key, value)])
    await out.acknowledged()
    return producer


async def test_a_pause_is_obeyed_while_an_owner_is_stuck_within_a_commit(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """Its transaction holds up readers of the actions, and must not hold up the list."""
    topics = StreamTopics(fresh_app(), "home", "clicks")
    technology = KafkaTechnology(settings(broker))
    tools = technology.administrator()
    await tools.create([topics], partitions=2)
    first = action(release(b"fr", 1)).value
    owner = await left_open(broker, f"{topics.app}.home.0", topics.actions, b"fr", first)
    await owner.commit_transaction()
    async with ActionsCache(technology.publications, [Source(topics, "a")]) as cache:
        assert cache.action("home", b"fr").action == "b"
        await owner.begin_transaction()
        out = Outbox(owner)
        await out.put(topics.actions, 0, [(b"fr", action(release(b"fr", 2, block=1)).value)])
        await out.acknowledged()
        await tools.revise(topics, lambda _: list_record(1, paused=["b"]).value)
        began = time.monotonic()
        while cache.action("home", b"fr").why is not Why.PAUSED:
            await asyncio.sleep(0.01)
            assert time.monotonic() - began < OBEYED_SECONDS
        async with ActionsCache(technology.publications, [Source(topics, "a")]) as later:
            assert later.action("home", b"fr").action == "a"
    await owner.stop()


async def test_a_command_that_dies_in_its_transaction_is_as_if_it_had_not_begun(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """The next one takes its place at once, and does not read what it had written."""
    topics = StreamTopics(fresh_app(), "home", "clicks")
    technology = KafkaTechnology(settings(broker))
    tools, reader = technology.administrator(), technology.publications()
    await tools.create([topics], partitions=1)
    await tools.revise(topics, lambda _: b"one")
    identity = f"{topics.app}.home.catalogue"
    dead = await left_open(broker, identity, topics.catalogue, LIST_KEY, b"half")
    began = time.monotonic()
    assert await tools.revise(topics, lambda before: (before or b"") + b" two") == b"one two"
    assert time.monotonic() - began < 10
    lists = [r.value async for b in reader.catalogue(topics, follow=False) for r in b]
    assert lists[-1] == b"one two"
    assert b"half" not in lists
    await dead.stop()
    await reader.close()


async def test_a_reader_of_a_stream_without_a_catalogue_says_what_to_do(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    topics = StreamTopics(fresh_app(), "home", "clicks")
    technology = KafkaTechnology(settings(broker))
    with pytest.raises(InvalidConfig, match="`streamdp topics create`"):
        await technology.administrator().revise(topics, lambda _: b"")
    source = Source(topics, LINES.actions[0])
    with pytest.raises(InvalidConfig, match="`streamdp topics create`"):
        async with ActionsCache(technology.publications, [source]):
            raise AssertionError
