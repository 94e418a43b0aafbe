"""Does the memory transport show a judge everything, and fail where it is told to?"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from streamdp.core.errors import (
    Fenced,
    InvalidConfig,
    StateMismatch,
    StreamdpError,
    TransportLost,
)
from streamdp.ports import (
    Commit,
    Partition,
    Reached,
    StreamTopics,
    no_fault,
)
from streamdp.testing.faults import Count, Dice, FaultPlan
from streamdp.testing.memory import STEPS, MemoryTechnology, MemoryTransport
from streamdp.testing.memory_log import CommitOutcome, Isolation, MemoryLog

# --- what a judge can see -------------------------------------------------------------------------

TOPICS = StreamTopics(app="shop", stream="home", input="events")
AT = Partition("home", 0)


class Ears:
    """A listener that remembers what it has now."""

    def __init__(self) -> None:
        self.now: set[Partition] = set()

    def assigned(self, partitions: Sequence[Partition]) -> None:
        self.now |= set(partitions)

    def revoked(self, partitions: Sequence[Partition]) -> None:
        self.now -= set(partitions)

    def settled(self, stream: str) -> None: ...

    def failed(self, partition: Partition, error: StreamdpError) -> None: ...


async def joined(
    log: MemoryLog, worker: str, reached: Reached = no_fault
) -> tuple[MemoryTransport, Ears]:
    transport = MemoryTransport(log, worker=worker, reached=reached)
    ears = Ears()
    await transport.join([TOPICS], ears)
    return transport, ears


def commit(number: int) -> Commit:
    mark = b"%d" % number
    return Commit(number, [(b"at", mark)], [(b"k", b"action " + mark)], [(b"k", b"line " + mark)])


@pytest.mark.parametrize(
    ("step", "uncommitted", "durable"),
    [
        ("commit: begun", [], False),
        ("commit: half", [b"action 1"], False),
        ("commit: sent", [b"action 1", b"line 1"], False),
        ("commit: decided", [b"action 1", b"line 1"], True),
    ],
)
async def test_what_each_reader_saw_of_a_commit_that_failed(
    step: str, uncommitted: list[bytes], durable: bool
) -> None:
    """Uncommitted readers see what was sent, committed ones what counts, and history stays."""
    log = MemoryLog()
    log.create("events", partitions=1)
    transport, _ = await joined(log, "first", FaultPlan({step: {1}}))
    await transport.take(AT)
    with pytest.raises(TransportLost, match=step):
        await transport.commit(AT, commit(1))
    with pytest.raises(TransportLost):  # its outcome is unknown: take first
        await transport.commit(AT, commit(2))
    taken = await transport.take(AT)
    assert dict(taken.state) == ({b"at": b"1"} if durable else {})
    await transport.commit(AT, commit(3))

    outcomes = [attempt.outcome for attempt in log.attempts]
    assert outcomes == [
        CommitOutcome.COMMITTED if durable else CommitOutcome.ABORTED,
        CommitOutcome.COMMITTED,
    ]
    kept = [b"action 1", b"line 1"] if durable else []
    for isolation, before in [
        (Isolation.COMMITTED, kept),
        (Isolation.UNCOMMITTED, uncommitted),
    ]:
        seen = [
            record.value for look in (log.actions, log.ledger) for record in look(TOPICS, isolation)
        ]
        assert sorted(seen) == sorted([*before, b"action 3", b"line 3"])


async def test_a_committed_reader_waits_for_an_open_attempt() -> None:
    """What comes after an attempt that is not decided is not shown before it is."""
    log = MemoryLog()
    log.create("events", partitions=1)
    transport, _ = await joined(log, "first", FaultPlan({"commit: sent": {2}}))
    await transport.take(AT)
    await transport.commit(AT, commit(1))
    with pytest.raises(TransportLost):
        await transport.commit(AT, commit(2))
    assert [r.value for r in log.published(TOPICS.ledger, 0, start=0)] == [b"line 1"]
    await transport.take(AT)
    await transport.commit(AT, commit(3))
    shown = [r.value for r in log.published(TOPICS.ledger, 0, start=0)]
    assert shown == [b"line 1", b"line 3"]


async def test_a_worker_that_expired_is_a_zombie_until_it_is_fenced() -> None:
    """It is not told, still reads and may even commit, until the heir has taken the partition."""
    log = MemoryLog()
    log.create("events", partitions=1)
    log.append("events", [(b"k", b"v")])
    zombie, zombies_ears = await joined(log, "zombie")
    await zombie.take(AT)
    heir, ears = await joined(log, "heir")
    zombie.resume(AT, 0)
    log.expire("zombie")
    assert ears.now == zombies_ears.now == {AT}
    assert len(await zombie.poll(max_records=5, timeout=0)) == 1
    await zombie.commit(AT, commit(1))
    taken = await heir.take(AT)
    assert taken.state == {b"at": b"1"}
    with pytest.raises(Fenced):
        await zombie.commit(AT, commit(2))


async def test_a_lost_poll_comes_again() -> None:
    log = MemoryLog()
    log.create("events", partitions=3)
    for number in range(3):
        log.append("events", [(b"k", b"%d" % number)] * 4, partition=number)
    transport, ears = await joined(log, "w", FaultPlan({"poll": {1, 3, 7}}))
    for partition in ears.now:
        transport.resume(partition, 0)
    came: list[bytes | None] = []
    losses = 0
    while len(came) < 12:
        try:
            for records in await transport.poll(max_records=3, timeout=0):
                came += records.values
        except TransportLost:
            losses += 1
    assert losses == 3
    assert sorted(value for value in came if value) == sorted([b"0", b"1", b"2"] * 4)


async def test_retention_that_overtakes_a_partition_fails_it_alone() -> None:
    failed: list[tuple[Partition, StreamdpError]] = []

    class Strict(Ears):
        def failed(self, partition: Partition, error: StreamdpError) -> None:
            failed.append((partition, error))

    log = MemoryLog()
    log.create("events", partitions=2)
    for number in range(2):
        log.append("events", [(b"k", b"v")] * 10, partition=number)
    transport = MemoryTransport(log, worker="w")
    await transport.join([TOPICS], Strict())
    for number in range(2):
        transport.resume(Partition("home", number), 0)
    log.trim("events", 0, before=5)
    (records,) = await transport.poll(max_records=100, timeout=0)
    assert (records.partition.number, len(records)) == (1, 10)
    ((partition, error),) = failed
    assert partition == AT
    assert isinstance(error, StateMismatch)
    with pytest.raises(StateMismatch):
        await anext(transport.read(AT, 4, 8))


def test_faults_are_a_function_of_their_seed() -> None:
    def thrown(seed: int) -> list[int]:
        dice = Dice(seed=seed, chance=Fraction(1, 8), steps={"commit: sent"})
        at = []
        for passage in range(400):
            try:
                dice("commit: begun", AT)
                dice("commit: sent", AT)
            except TransportLost:
                at.append(passage)
        assert dice.thrown["commit: sent"] == len(at)
        return at

    assert thrown(1) == thrown(1) != thrown(2)
    assert 25 <= len(thrown(1)) <= 80  # 50 expected; a fixed seed, so no false alarms


async def test_every_step_can_be_failed() -> None:
    """The steps that the module names are the steps that are reached."""
    count = Count()
    log = MemoryLog()
    log.create("events", partitions=1)
    log.append("events", [(b"k", b"v")])
    transport, _ = await joined(log, "w", count)
    await transport.take(AT)
    transport.resume(AT, 0)
    await transport.poll(max_records=5, timeout=0)
    await transport.commit(AT, commit(1))
    assert set(count.passages) == set(STEPS)


def test_memory_logs_are_found_by_name() -> None:
    one = MemoryTechnology.from_settings({"log": "shared"}, app="a")
    two = MemoryTechnology.from_settings({"log": "shared"}, app="b")
    assert one.log is two.log
    with pytest.raises(InvalidConfig, match="unknown key"):
        MemoryTechnology.from_settings({"lgo": "shared"}, app="a")
