"""Does a look into a partition fit together while its owner's commit ends?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.structs import TopicPartition

from streamdp.ports import StreamTopics
from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology, reading
from streamdp_adapters.kafka.administrator import KafkaAdministrator

pytestmark = [pytest.mark.kafka, pytest.mark.anyio]


@dataclass
class Committing:
    """A partition whose owner has written a checkpoint and not yet ended its commit."""

    topics: StreamTopics
    administrator: KafkaAdministrator
    owner: Any


@pytest.fixture
async def committing(broker: Borrowed, fresh_app: Callable[[], str]) -> AsyncIterator[Committing]:
    """On the shared broker, of an application that it has not seen."""
    app = fresh_app()
    topics = StreamTopics(app=app, stream="home", input=f"{app}.input")
    technology = KafkaTechnology(KafkaSettings(bootstrap=broker.bootstrap, single_broker=True))
    await technology.administrator().create([topics], partitions=1)
    owner: Any = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=app)
    await owner.start()
    await owner.begin_transaction()
    await owner.send_and_wait(topics.state, b"state 1", b"checkpoint", partition=0)
    yield Committing(topics, technology.administrator(), owner)
    await owner.stop()


async def test_does_a_look_wait_for_a_commit_that_has_ended_elsewhere_already(
    committing: Committing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit's marker may be in the ledger, and readable there, before it is in the state."""
    monkeypatch.setattr(reading, "_SETTLED_SECONDS", 60.0)
    state, asked = TopicPartition(committing.topics.state, 0), asyncio.Event()
    plain, times = reading.PartitionReader.end, 0

    async def noted(self: reading.PartitionReader, place: TopicPartition) -> int:
        nonlocal times
        end = await plain(self, place)
        times += place == state
        if times == 4:  # the end of all records, then that of committed ones again and again
            asked.set()
        return end

    monkeypatch.setattr(reading.PartitionReader, "end", noted)
    look = asyncio.create_task(committing.administrator.peek(committing.topics, 0))
    waits = asyncio.create_task(asked.wait())
    await asyncio.wait({look, waits}, return_when=asyncio.FIRST_COMPLETED)
    assert not look.done()
    await committing.owner.commit_transaction()
    assert (await look).state == {b"checkpoint": b"state 1"}


async def test_does_a_look_end_where_a_transaction_hangs(
    committing: Committing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its owner never ended was not seen elsewhere either."""
    monkeypatch.setattr(reading, "_SETTLED_SECONDS", 0.1)
    assert (await committing.administrator.peek(committing.topics, 0)).state == {}
    await committing.owner.abort_transaction()
