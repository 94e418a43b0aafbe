"""Does a taker that was overtaken between two of its reads leave the partition alone?

Who takes a partition reads its state, its ledger, the group's offset and the input one after the
other. A process that is frozen in between wakes up to reads that contradict each other, because an
heir has worked meanwhile. Nothing is wrong with the state then, so nothing may halt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from streamdp.ports import Partition, Reached, no_fault
from streamdp.service.charges_by_others import alone
from streamdp.service.life import Surroundings
from streamdp.service.settings import Pace
from streamdp.service.view import PartitionStatus, Status, View
from streamdp.service.worker import Worker
from streamdp.testing.broker import Borrowed
from streamdp.testing.transport_room import Heard
from streamdp_adapters.kafka import KafkaTechnology, owner, reading
from streamdp_adapters.kafka.transport import KafkaTransport
from tests.support.kafka_site import HOME, QUICK, Fresh, Site
from tests.support.services import Lines
from tests.support.streams import events

pytestmark = pytest.mark.kafka

KEYS = tuple(b"key %d" % number for number in range(40))
SLOWLY_SAVED = replace(QUICK, pace=Pace(records=10_000, seconds=10_000.0))
"""Rows are hardly ever saved, so that a taker has input to read again."""


@dataclass
class Life:
    """One process on the partition: its worker, without a group that gives or revokes."""

    transport: KafkaTransport
    worker: Worker
    view: View
    log: Lines
    task: asyncio.Task[None]

    @property
    def part(self) -> PartitionStatus:
        return self.view.part(HOME)

    async def reads(self, stop: int) -> None:
        """Learn from everything up to `stop`, and publish it."""
        await self._until(lambda: self.part.status is Status.RUNNING)
        async for records in self.transport.read(HOME, self.part.position, stop):
            self.worker.life.deliver(records)
            self.worker.apply()
        await self._until(lambda: self.part.position >= stop)
        self.worker.life.drain()
        await self.task

    async def _until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(240):
            while not what():
                assert not self.task.done(), self.log.lines
                await asyncio.sleep(0.005)


@asynccontextmanager
async def life(site: Site, name: str, *, reached: Reached = no_fault) -> AsyncIterator[Life]:
    """A worker that takes the partition, whatever the group says."""
    made, view, log = site.made, View([site.made]), Lines()
    transport = KafkaTechnology(site.settings, reached=reached).transport(worker=name)
    await transport.join([made.topics], Heard())
    around = Surroundings(
        transport=transport,
        by_others=alone,
        settings=SLOWLY_SAVED,
        view=view,
        log=log,
        clock=time.monotonic,
        observe=lambda step, seconds: None,
        halted=lambda partition, reason: None,
        give_up=lambda error: None,
        heard=lambda: 0.0,
        now=lambda: 0,
    )
    worker = Worker(made, HOME, around)
    task = asyncio.create_task(worker.life.run())
    try:
        yield Life(transport, worker, view, log, task)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await transport.close()


@dataclass
class Freeze:
    """Stops a whole process at one step, once, for as long as an heir's life takes."""

    step: str
    heir: Callable[[], Awaitable[None]]
    held: bool = field(default=False, init=False)

    def __call__(self, step: str, partition: Partition) -> None:
        if step == self.step and not self.held:
            self.held = True
            with ThreadPoolExecutor(1) as other:  # this thread's own loop stands still meanwhile
                other.submit(lambda: asyncio.run(_run(self.heir))).result(timeout=240)


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()


@pytest.mark.parametrize(
    ("step", "lived", "expired"),
    [
        ("take: owned", False, False),  # no state as of its owner record, but a group offset
        ("take: first", False, False),
        ("take: group", False, False),  # no state, but a ledger line
        ("take: group", True, False),  # a ledger line that the state does not know
        ("take: owned", True, True),  # the input does not reach back to low_water
        ("take: state", True, True),  # nor when a rebuild asks for it
        ("take: read", True, True),
    ],
)
async def test_is_no_partition_halted_by_who_was_overtaken(
    broker: Borrowed,
    fresh_app: Fresh,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    lived: bool,
    expired: bool,
) -> None:
    """Frozen between two reads of a taking; an heir lives meanwhile, and retention passes."""
    # However long that takes, whoever wakes up shall go on reading.
    monkeypatch.setattr(owner, "COMMIT_SECONDS", 600.0)
    monkeypatch.setattr(reading, "IDLE_SECONDS", 600.0)
    site = Site.on(broker, fresh_app())
    await site.create()
    await site.send(events(120, keys=KEYS, seed=1))
    if lived:
        async with life(site, "before") as before:
            await before.reads(100)

    async def heir() -> None:
        async with life(site, "heir") as heir:
            await heir.reads(110)
        if expired:
            await site.forget(before=105)

    freeze = Freeze(step, heir)
    async with life(site, "taker", reached=freeze) as taker:
        async with asyncio.timeout(240):
            while not (taker.task.done() or taker.part.status is Status.RUNNING):
                await asyncio.sleep(0.005)
            assert taker.task.done(), "it found out before it had anything to commit"
    assert freeze.held
    assert taker.log.of("partition_halted") == []
    assert len(taker.log.of("partition_fenced")) == 1
    if not expired:
        async with life(site, "after") as after:
            await after.reads(len(site.sent))
        assert await site.wrong() == []
