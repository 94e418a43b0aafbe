"""Does a look that ends see a commit which has ended elsewhere already?

A commit's markers come partition by partition: a record may be readable in one topic before another
of the same commit is readable in another topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition

from streamdp.ports import StreamTopics
from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology, reading

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.parametrize("kind", ["state", "recorded", "ledger"]),
]


@dataclass
class Committing:
    """A topic into which an owner has written a record whose commit has not ended."""

    kind: str
    topics: StreamTopics
    technology: KafkaTechnology
    owner: Any

    @property
    def place(self) -> TopicPartition:
        topic = self.topics.ledger if self.kind == "ledger" else self.topics.state
        return TopicPartition(topic, 0)

    async def seen(self) -> list[bytes]:
        """What one look sees: at the state as `doctor` does or whoever comes after a stream, at
        the ledger as `verify` does."""
        if self.kind == "state":
            taken = await self.technology.administrator().peek(self.topics, 0)
            return list(taken.state.values())
        if self.kind == "recorded":
            tools = self.technology.administrator()
            looks = tools.last_commits(self.topics, marks=lambda number: [b"mark"])
            return [value async for look in looks for value in look.state.values()]
        reader = self.technology.publications()
        return [r.value async for batch in reader.ledger(self.topics, follow=False) for r in batch]


@pytest.fixture
async def committing(
    kind: str, broker: Borrowed, fresh_app: Callable[[], str]
) -> AsyncIterator[Committing]:
    """On the shared broker, of an application that it has not seen."""
    app = fresh_app()
    topics = StreamTopics(app=app, stream="home", input=f"{app}.input")
    technology = KafkaTechnology(KafkaSettings(bootstrap=broker.bootstrap, single_broker=True))
    await technology.administrator().create([topics], partitions=1)
    owner: Any = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=app)
    await owner.start()
    await owner.begin_transaction()
    committing = Committing(kind, topics, technology, owner)
    await owner.send_and_wait(committing.place.topic, b"written", b"key", partition=0)
    yield committing
    await owner.stop()


async def test_does_a_look_wait_for_a_commit_that_has_ended_elsewhere_already(
    committing: Committing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_SETTLED_SECONDS", 60.0)
    asked, plain, times = asyncio.Event(), AIOKafkaConsumer.end_offsets, 0

    async def noted(
        self: AIOKafkaConsumer, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        nonlocal times
        ends: dict[TopicPartition, int] = await plain(self, places)
        times += committing.place in places
        if times == 5:  # the end of all records, then that of committed ones again and again
            asked.set()
        return ends

    monkeypatch.setattr(AIOKafkaConsumer, "end_offsets", noted)
    look = asyncio.create_task(committing.seen())
    waits = asyncio.create_task(asked.wait())
    await asyncio.wait({look, waits}, return_when=asyncio.FIRST_COMPLETED)
    assert not look.done()
    await committing.owner.commit_transaction()
    assert await look == [b"written"]


async def test_does_a_look_end_where_a_transaction_hangs(
    committing: Committing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its owner never ended was not seen elsewhere either."""
    monkeypatch.setattr(reading, "_SETTLED_SECONDS", 0.1)
    assert await committing.seen() == []
    await committing.owner.abort_transaction()
