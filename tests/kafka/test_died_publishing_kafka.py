"""Does a stream draw again from what a former one showed to readers of uncommitted records?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from streamdp.ports import StreamTopics
from streamdp.service.charges_by_others import RecordedLines
from streamdp.service.config import Configuration
from streamdp.service.ledgers import Ledgers
from streamdp.service.view import Reason
from streamdp.testing.broker import Borrowed
from streamdp.wire.lines import Charge
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology, reading
from tests.support.calling import Streamdp
from tests.support.renaming import Dying, charges, charging, configured, lived, shared, verified

pytestmark = pytest.mark.kafka


def seen(bootstrap: str, topic: str) -> list[Charge]:
    """What a reader with Kafka's default isolation has read of a ledger."""

    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_uncommitted",
            enable_auto_commit=False,
        )
        await consumer.start()
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        consumer.seek(place, 0)
        values: list[bytes] = []
        while await consumer.position(place) < end:
            batches = await consumer.getmany(timeout_ms=50)
            values += [r.value for r in batches.get(place, []) if r.value is not None]
        await consumer.stop()
        return values

    return charging(asyncio.run(read()))


@pytest.mark.slow
@pytest.mark.parametrize("knows", [True, False])
def test_does_a_stream_begin_behind_what_a_dead_one_has_shown(
    knows: bool,
    broker: Borrowed,
    fresh_app: Callable[[], str],
    streamdp: Streamdp,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its transaction was sent and never committed. The mutant looks at committed lines alone: then
    `verify`, which sees no other, calls twice the budget kept.
    """
    app = fresh_app()
    table = f'kind = "kafka"\nbootstrap = "{broker.bootstrap}"\nsingle_broker = true'
    monkeypatch.setattr(reading, "_SETTLED_SECONDS", 0.2)  # nobody ends the open transaction

    def shop(*names: str) -> Path:
        source = f"{app}-losses"
        return configured(tmp_path, *names, app=app, source=source, transport=table)

    both = Configuration.load(shop("one"), {})
    technology = both.technology()
    topics = [*both.topics(), *Configuration.load(shop("two"), {}).topics()]
    asyncio.run(technology.administrator().create(topics, partitions=1))
    with monkeypatch.context() as patch:
        dying = Dying(technology, "commit: sent", patch)
        assert lived(shop("one"), 40, dying) is Reason.INTERNAL
    shown = seen(broker.bootstrap, f"{app}.one.ledger")
    assert shown
    assert not charges(shop("one"), "one")
    if not knows:

        async def nothing(self: Ledgers, topics: object) -> RecordedLines:
            return RecordedLines([], None)

        monkeypatch.setattr(Ledgers, "_recorded", nothing)
    assert lived(shop("two"), 20) is None
    assert bool(shared(shown, charges(shop("two"), "two"))) is not knows
    assert verified(streamdp, shop("two"))[:2] == (0, "1/2")


async def test_is_what_the_newest_commit_published_still_looked_at(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """It may have ended in the state and not yet in the ledger: then the state alone has shown the
    release that it deleted, however much else the commit before has entered.
    """
    topics = StreamTopics(app=fresh_app(), stream="home", input="")
    before = [(b"release", b"drawn"), *((b"row %d" % at, b"") for at in range(14)), (b"mark", b"2")]
    entries = [(b"mark", b"1"), *before, (b"release", None), (b"mark", b"3")]

    technology = KafkaTechnology(KafkaSettings(bootstrap=broker.bootstrap, single_broker=True))
    tools = technology.administrator()
    await tools.create([replace(topics, input=f"{topics.app}-losses")], partitions=1)
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
    await producer.start()
    for key, value in entries:
        await producer.send(topics.state, value, key, partition=0)
    await producer.stop()
    (commit,) = [
        look async for look in tools.last_commits(topics, marks=lambda _: [b"other", b"mark"])
    ]
    await tools.close()
    state = dict(commit.state)
    assert (state.get(b"release"), state[b"mark"]) == (b"drawn", b"3")
