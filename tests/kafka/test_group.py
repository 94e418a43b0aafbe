"""Does a consumer group share the input without stopping anybody who need not stop?"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.structs import TopicPartition

from streamdp.core.errors import InvalidConfig
from streamdp.ports import Partition, StaticMembership, StreamTopics
from streamdp.testing.broker import Borrowed
from streamdp.testing.transport_room import QUIET, Heard, RoomWorker, rows, step
from streamdp_adapters.kafka import (
    KafkaSettings,
    KafkaTechnology,
    grouping,
    owner,
    static_membership,
)
from streamdp_adapters.kafka.static_membership import Name
from tests.support.forking import parent
from tests.support.kafka_site import joined
from tests.support.processes import Process

pytestmark = pytest.mark.kafka


@pytest.fixture
def technology(broker: Borrowed) -> KafkaTechnology:
    """The shared broker, and sessions as they are by default."""
    return KafkaTechnology(KafkaSettings(broker.bootstrap, single_broker=True))


def _home(number: int) -> Partition:
    return Partition("home", number)


class Slow(ConsumerRebalanceListener):
    """A member that holds every rebalance up until it may go on."""

    def __init__(self) -> None:
        self.assigned = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Before it joins anew."""
        if self.assigned.is_set():
            await self.may_go_on.wait()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """It is in."""
        self.assigned.set()


@asynccontextmanager
async def _slow_member(bootstrap: str, topics: StreamTopics) -> AsyncIterator[Slow]:
    """A member of the stream's group that has joined."""
    listener = Slow()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=owner.group(topics),
        enable_auto_commit=False,
        auto_offset_reset="latest",
        heartbeat_interval_ms=100,
        rebalance_timeout_ms=120_000,
        partition_assignment_strategy=(StickyPartitionAssignor,),
    )
    await consumer.start()
    consumer.subscribe([topics.input], listener=listener)
    try:
        yield listener
    finally:
        listener.may_go_on.set()
        await consumer.stop()


async def test_does_a_rebalance_stop_what_is_kept(
    broker: Borrowed,
    topics: StreamTopics,
    technology: KafkaTechnology,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long the others take to join anew, what stays is delivered and committed."""
    heard: list[object] = []
    monkeypatch.setattr(
        grouping._Callbacks, "on_partitions_revoked", lambda self, revoked: heard.append(revoked)
    )
    worker = await joined(technology, topics, partitions=2)
    async with _slow_member(broker.bootstrap, topics) as slow:
        await worker.until(lambda heard: len(heard.assigned_now) == 1 and slow.assigned.is_set())
        (kept,) = worker.heard.assigned_now
        await worker.transport.take(kept)
        worker.transport.resume(kept, 0)
        rebalances = len(heard)
        third = RoomWorker(technology.transport(worker="third"), Heard())
        await third.transport.join([topics], third.heard)
        await worker.until(lambda _: len(heard) > rebalances)
        async with asyncio.timeout(60):  # whoever has nothing yet does not wait for it in a poll
            assert await third.transport.poll(max_records=1, timeout=0.1) == []
        producer = technology.producer()
        for number in range(3):
            await producer.send(topics.input, [(b"key", b"value")] * 5, partition=kept.number)
            assert len(rows(await worker.collect(5))) == 5
            await worker.transport.commit(kept, step(number + 1))
        assert third.heard.assigned_now == set(), "the rebalance is not over"
        await producer.close()
        slow.may_go_on.set()
        await third.transport.close()
    await worker.until(lambda heard: len(heard.assigned_now) == 2)
    await worker.transport.close()


async def test_do_partitions_take_turns(topics: StreamTopics, technology: KafkaTechnology) -> None:
    """However much was fetched of one, the next ask begins with another."""
    worker = await joined(technology, topics, partitions=4)
    producer = technology.producer()
    for number in range(4):
        await producer.send(topics.input, [(b"key", b"value")] * 500, partition=number)
    await producer.close()
    for number in range(4):
        worker.transport.resume(_home(number), 0)
    seen: set[Partition] = set()
    while len(seen) < 4:
        seen |= {r.partition for r in await worker.transport.poll(max_records=1, timeout=QUIET)}
    counts = dict.fromkeys(range(4), 0)
    for _ in range(12):
        for records in await worker.transport.poll(max_records=10, timeout=QUIET):
            counts[records.partition.number] += len(records)
    assert counts == dict.fromkeys(range(4), 30)
    await worker.transport.close()


# Names that last

SESSION_MS = 150_000
"""Far longer than anything here may take: whoever waits for a session is late."""

LIMIT = 100.0  # seconds

VICTIM = """
import asyncio, sys
from streamdp.ports import StaticMembership, StreamTopics
from streamdp.testing.transport_room import Heard
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology

async def main(bootstrap, app):
    settings = KafkaSettings(bootstrap=bootstrap, single_broker=True, session_timeout_ms=150_000)
    topics = StreamTopics(app=app, stream="home", input=f"{app}.input")
    transport = KafkaTechnology(settings).transport(
        worker="w", static_membership=StaticMembership.REPLACED
    )
    heard = Heard()
    await transport.join([topics], heard)
    while len(heard.assigned_now) < 2:
        await transport.poll(max_records=1, timeout=0.02)
    print("joined", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def patient(broker: Borrowed) -> KafkaTechnology:
    """The shared broker, and long sessions."""
    return KafkaTechnology(
        KafkaSettings(broker.bootstrap, single_broker=True, session_timeout_ms=SESSION_MS)
    )


def _without_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another machine: nothing is known of the other process but what the group says."""
    monkeypatch.setattr(Name, "hold", lambda self: None)


async def _killed(broker: Borrowed, topics: StreamTopics) -> None:
    """A process of the name joins, and is killed."""
    names = [broker.bootstrap, topics.app]
    with parent().start(VICTIM, names, stdout=PIPE, stderr=DEVNULL) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"joined\n"
        process.send_signal(signal.SIGKILL)


def _named(technology: KafkaTechnology) -> RoomWorker:
    """A worker that comes back under the same name."""
    return RoomWorker(
        technology.transport(worker="w", static_membership=StaticMembership.REPLACED), Heard()
    )


@pytest.mark.parametrize("place", ["this machine", "elsewhere"])
async def test_does_a_process_take_the_place_of_the_dead_one_of_its_name(
    broker: Borrowed,
    topics: StreamTopics,
    patient: KafkaTechnology,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """Long before the session has timed out, it has all that the dead one had."""
    await patient.administrator().create([topics], partitions=2)
    await _killed(broker, topics)
    if place == "elsewhere":
        _without_sockets(monkeypatch)
    heir = _named(patient)
    async with asyncio.timeout(LIMIT):
        await heir.transport.join([topics], heir.heard)
        await heir.until(lambda heard: len(heard.assigned_now) == 2)
    await heir.transport.close()


async def test_is_a_live_namesake_of_this_machine_refused_at_once(
    topics: StreamTopics, patient: KafkaTechnology
) -> None:
    """Before it joins: the group does not hear of it. And the name is free when its holder ends."""
    await patient.administrator().create([topics], partitions=2)
    holder, second = _named(patient), _named(patient)
    await holder.transport.join([topics], holder.heard)
    await holder.until(lambda heard: len(heard.assigned_now) == 2)
    with pytest.raises(InvalidConfig, match=r"service\.worker: a process of this name is running"):
        await second.transport.join([topics], second.heard)
    await asyncio.gather(holder.transport.close(), second.transport.close())
    third = _named(patient)
    await third.transport.join([topics], third.heard)
    await third.until(lambda heard: len(heard.assigned_now) == 2)
    await third.transport.close()


@pytest.mark.parametrize("socket", ["none", "only the newcomer's"])
async def test_is_a_live_namesake_elsewhere_refused(
    topics: StreamTopics, patient: KafkaTechnology, monkeypatch: pytest.MonkeyPatch, socket: str
) -> None:
    """It joins anew, or comes back when it was taken for dead: the newcomer has to go."""
    monkeypatch.setattr(static_membership, "PATIENCE_SECONDS", LIMIT)
    await patient.administrator().create([topics], partitions=2)
    holder, second = _named(patient), _named(patient)
    with pytest.MonkeyPatch.context() as while_it_starts:
        _without_sockets(while_it_starts)
        await holder.transport.join([topics], holder.heard)
        await holder.until(lambda heard: len(heard.assigned_now) == 2)
    if socket == "none":
        _without_sockets(monkeypatch)
    await second.transport.join([topics], second.heard)
    polling = asyncio.create_task(holder.until(lambda heard: False))
    async with asyncio.timeout(LIMIT):
        with pytest.raises(InvalidConfig, match=r"got live members of group .*127\.0\.0\.1"):
            await second.until(lambda heard: False)
    await second.transport.close()
    polling.cancel()
    await asyncio.wait([polling])
    async with asyncio.timeout(LIMIT):
        await holder.until(lambda heard: len(heard.assigned_now) == 2)
    for partition in sorted(holder.heard.assigned_now):
        await holder.transport.take(partition)
        await holder.transport.commit(partition, step(partition.number + 1))
    await holder.transport.close()


CONFIG = """
app = "{app}"
[transport]
kind = "kafka"
bootstrap = "{bootstrap}"
single_broker = true
session_timeout_ms = {session}
[topics."{app}.input"]
budget = "1/2"
[streams.home]
input = "{app}.input"
start = "earliest"
actions = ["a", "b"]
[streams.home.learner]
recipe = "noisy_leader"
epsilon = "1/2"
schedule = "dyadic"
noise = "exponential"
[service]
worker = "w"
"""


def test_does_a_killed_service_come_back_by_its_name(
    broker: Borrowed, topics: StreamTopics, patient: KafkaTechnology, tmp_path: Path
) -> None:
    """`service.worker` is enough; and the name refuses a second service while the first lives."""
    asyncio.run(_created(patient, topics))
    path = tmp_path / "streamdp.toml"
    path.write_text(
        CONFIG.format(app=topics.app, bootstrap=broker.bootstrap, session=SESSION_MS), "utf-8"
    )
    command = ("run", "--config", str(path))
    with Process.start(*command) as first:
        for _ in range(2):
            first.hear("partition_running")
        with Process.start(*command) as second:
            assert second.ended() == 3
            assert "a process of this name is running" in str(second.other) + str(second.lines)
        first.end(signal.SIGKILL)
    begun = time.monotonic()
    with Process.start(*command) as heir:
        for _ in range(2):
            heir.hear("partition_running")
        assert time.monotonic() - begun < LIMIT < SESSION_MS / 1000
        assert heir.end() == 0


async def _created(technology: KafkaTechnology, topics: StreamTopics) -> None:
    """Two partitions."""
    administrator = technology.administrator()
    await administrator.create([topics], partitions=2)
    await administrator.close()
