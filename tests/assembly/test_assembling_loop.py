"""Do workers of one group join together, as they come and go, whatever is lost?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp.ports import LiveEntries, Partition, Records, Taken
from streamdp.service.assembling.worker import AssemblyWorker
from streamdp.service.charges_by_others import alone
from streamdp.service.loop import Service
from streamdp.service.view import Reason, Status, View
from streamdp.testing.faults import Dice
from streamdp.testing.memory import MemoryTransport
from streamdp.wire.entries import Entries
from tests.support.assembling_group import PARTITIONS, SETTINGS, Group
from tests.support.assembly_model import (
    GRACE,
    WINDOW,
    Logs,
    Record,
    expected_events,
    random_logs,
)
from tests.support.services import Lines
from tests.support.visits import RULES, SPEC, TOPICS


async def test_workers_that_come_and_go_emit_each_request_once() -> None:
    """One, two, then another one, while steps are lost: events are the join of the logs."""
    group = Group(chance=Fraction(1, 12))
    logs = [random_logs(seed, requests=40) for seed in range(PARTITIONS)]
    first, _ = group.service("first")
    tasks = {first: asyncio.create_task(first.run())}
    end = max(at for part in logs for at, *_ in part.requests + part.outcomes)
    for now in range(0, end + WINDOW, 100):
        group.send(logs, now=now)
        await asyncio.sleep(0.001)
        if len(tasks) == 1 and now > end // 3:
            second, _ = group.service("second")
            tasks[second] = asyncio.create_task(second.run())
        if first in tasks and now > end // 2:
            first.drain()
            await tasks.pop(first)
            third, _ = group.service("third")
            tasks[third] = asyncio.create_task(third.run())
    group.now = end + 10 * (WINDOW + GRACE)
    await group.until(sum(len(part.requests) for part in logs))
    for service, task in tasks.items():
        service.drain()
        await task
    for number, part in enumerate(logs):
        assert group.events(number) == expected_events(part, RULES)
    assert isinstance(group.reached, Dice)
    assert sum(group.reached.thrown.values()) > 5


@pytest.mark.parametrize(
    "expired", [(TOPICS.input,), (TOPICS.second_input,), (TOPICS.input, TOPICS.second_input)]
)
async def test_does_a_quiet_assembly_survive_retention(expired: Sequence[str]) -> None:
    """Nothing comes for longer than logs are kept; the next start goes on, and joins as ever."""
    group = Group(partitions=1)
    first = Logs(*_clicked(at=1000, late=5 * WINDOW))
    service, view = group.service("first")
    task = asyncio.create_task(service.run())
    group.send([first], now=3 * WINDOW)
    await group.until(2)
    parts = view.assemblies[SPEC.name].partitions
    part = parts[0]
    assert (part.position, part.low_water) == (2, 0)
    group.send([first], now=200 * WINDOW)
    while parts[0].low_water < 2:
        await asyncio.sleep(0.001)
    for topic in expired:
        group.log.trim(topic, 0, before=group.log.input(topic, 0).next)
    service.drain()
    await task
    service, view = group.service("second")
    task = asyncio.create_task(service.run())
    requests, outcomes = _clicked(at=201 * WINDOW)
    repeated, clicks = _clicked(at=201 * WINDOW + 500)
    requests, outcomes = requests + repeated, outcomes + clicks
    both = Logs([*first.requests, *requests], [*first.outcomes, *outcomes])
    for topic, records in ((TOPICS.input, requests), (TOPICS.second_input, outcomes)):
        for group.log.now, key, headers, value in records:
            group.log.append(topic, [(key, value)], headers=[headers], partition=0)
    group.now = 210 * WINDOW
    await group.until(6)
    service.drain()
    await task
    assert group.events(0) == expected_events(both, RULES)


def _clicked(*, at: int, late: int | None = None) -> tuple[list[Record], list[Record]]:
    """Two requests, and a click on the second; maybe one that comes too late."""
    headers = [[("streamdp-request", b"r%d" % number)] for number in range(2)]
    click = b'{"reward": 1}'
    outcomes: list[Record] = [(at + 10, b"k", headers[1], click)]
    if late is not None:
        outcomes.append((at + late, b"k", headers[1], click))
    return [(at, b"k", pairs, None) for pairs in headers], outcomes


async def test_reading_brakes_while_too_much_is_open() -> None:
    """Memory is bounded by what was allowed to be open, and nothing is dropped for it."""
    group, most = Group(spec=replace(SPEC, most_open=10, most_at_once=4)), 0
    headers = [[("streamdp-request", b"r%d" % number)] for number in range(200)]
    requests = [(b"k", None)] * 200
    group.log.append(TOPICS.input, requests, headers=headers, partition=0)
    few = replace(SETTINGS, poll_records=5, batch_records=5)
    service, _ = group.service("lone", settings=few)
    task = asyncio.create_task(service.run())
    for _ in range(50):
        await asyncio.sleep(0.001)
        worker = service._workers.get(Partition(SPEC.name, 0))
        if isinstance(worker, AssemblyWorker) and worker.life.work is not None:
            most = max(most, worker.life.work.open)
    assert not group.events(0)
    group.now = WINDOW + GRACE
    await group.until(200)
    service.drain()
    await task
    assert 10 <= most < 20


async def test_a_halted_partition_says_why_and_others_go_on() -> None:
    group = Group()
    service, view = group.service("lone")
    group.log.replace_state(TOPICS, 1, {Entries(SPEC.name, 1).checkpoint: b"nonsense"})
    headers = [[("streamdp-request", b"r")]]
    for number in range(PARTITIONS):
        group.log.append(TOPICS.input, [(b"k", None)], headers=headers, partition=number)
    task = asyncio.create_task(service.run())
    group.now = 2 * WINDOW
    await group.until(PARTITIONS - 1)
    assert service.halted == [Partition(SPEC.name, 1)]
    service.drain()
    await task
    parts = view.assemblies[SPEC.name].partitions
    assert (parts[1].status, parts[1].reason) == (Status.HALTED, Reason.STATE)
    assert (parts[0].status, parts[0].position) == (Status.DRAINED, 1)


async def test_an_assembly_that_does_not_fit_is_refused_before_it_joins() -> None:
    group = Group()
    group.log.largest_value = 100
    service, _ = group.service("lone")
    with pytest.raises(InvalidConfig, match=r"assemblies\.clicks: its largest value"):
        await service.run()


class Deaf(MemoryTransport):
    """Delivers nothing before it was taken twice."""

    takes = 0

    async def take(self, partition: Partition, *, entries: LiveEntries | None = None) -> Taken:
        self.takes += 1
        return await super().take(partition, entries=entries)

    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        if self.takes <= PARTITIONS:
            await asyncio.sleep(timeout)
            return []
        return await super().poll(max_records=max_records, timeout=timeout)


async def test_a_consumer_that_stalls_in_silence_is_taken_again() -> None:
    """Requests wait and none comes: as for a stream that learns."""
    group, log = Group(), Lines()
    headers = [[("streamdp-request", b"r")]]
    group.log.append(TOPICS.input, [(b"k", None)], headers=headers, partition=0)
    group.now = 2 * WINDOW
    service = Service(
        [SPEC], Deaf(group.log, worker="lone"), by_others=alone,
        view=View([], assemblies=[SPEC.name]), log=log,
        settings=replace(SETTINGS, stall_seconds=0.05), now=lambda: group.now,
    )  # fmt: skip
    task = asyncio.create_task(service.run())
    await group.until(1)
    service.drain()
    await task
    lost = log.of("partition_lost")
    assert [line["partition"] for line in lost] == [f"{SPEC.name}/0"]
    assert "records wait in the input, but none comes" in str(lost[0]["detail"])


async def test_a_drain_waits_for_no_commit_that_is_not_due() -> None:
    """Partitions rest between commits; they end as soon as they are told to."""
    group = Group()
    rare = replace(SETTINGS, commit_seconds=1000.0, idle_commit_seconds=1000.0)
    service, view = group.service("lone", settings=rare)
    task = asyncio.create_task(service.run())
    parts = view.assemblies[SPEC.name].partitions
    while [part.status for part in parts.values()] != [Status.RUNNING] * PARTITIONS:
        await asyncio.sleep(0.001)
    service.drain()
    await task
    assert [str(part.status) for part in parts.values()] == [str(Status.DRAINED)] * PARTITIONS


async def test_a_lost_poll_is_tried_again() -> None:
    group = Group()
    failures = iter([TransportLost("once")])

    def reached(step: str, partition: Partition) -> None:
        if step == "poll" and (error := next(failures, None)):
            raise error

    group.reached = reached
    service, _ = group.service("lone")
    headers = [[("streamdp-request", b"r")]]
    group.log.append(TOPICS.input, [(b"k", None)], headers=headers, partition=0)
    group.now = 2 * WINDOW
    task = asyncio.create_task(service.run())
    await group.until(1)
    service.drain()
    await task
    assert len(group.events(0)) == 1
