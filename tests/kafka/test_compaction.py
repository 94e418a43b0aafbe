"""Is what a takeover reads bounded by a small multiple of what is live, however long it ran?

Only closed segments of a compacted topic are ever compacted, so it rests on the state topic's own
settings: made with it, looked at by `topics check`, and mended on request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streamdp.ports import Commit, LiveEntries, Partition, StreamTopics, Value, Verdict
from streamdp.testing.broker import Borrowed, Broker, own_broker
from streamdp.testing.transport_room import Heard
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology, reading
from streamdp_adapters.kafka.topics import wanted

pytestmark = pytest.mark.kafka

HOME = Partition("home", 0)
LIVE = 200  # entries that are live
BURST = 100  # commits at once; from then on a few in a second, while the broker does its part
PAUSE = 0.2  # seconds
MOST_COMMITS = 1_000


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
    with own_broker(settings={"log.cleaner.backoff.ms": "100"}) as mine:
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
