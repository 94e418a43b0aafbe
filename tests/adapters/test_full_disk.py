"""Does a full disk end the process as such, and lose nothing?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from streamdp.core.errors import DiskFull
from streamdp.ports import Commit, Partition, Records, Transport
from streamdp.testing.faults import FaultPlan
from tests.support.services import QUICK, Between, Room
from tests.support.streams import events, spec

KEYS = tuple(f"key {n}".encode() for n in range(12))


async def test_is_it_given_up_at_once_and_gone_on_from_later() -> None:
    """It is everybody's trouble, so no partition goes on alone."""
    room = Room([spec()], partitions=2)
    room.send("home", events(200, keys=KEYS))
    reached = FaultPlan({"commit: sent": {3}}, failure=DiskFull)
    async with room.worker(reached=reached) as worker:
        with pytest.raises(DiskFull):
            await worker.ended()
    async with room.worker():
        await room.until(room.is_read)
    assert room.wrong() == []


class Filling(Between):
    """A disk that is full from some moment on; counts the records that were read."""

    full, polled = False, 0

    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        """As inside."""
        batches = await super().poll(max_records=max_records, timeout=timeout)
        self.polled += sum(map(len, batches))
        return batches

    async def commit(self, partition: Partition, commit: Commit) -> None:
        """As inside, while there is room."""
        if self.full:
            raise DiskFull("no space left")
        await super().commit(partition, commit)


async def test_does_a_disk_that_fills_in_the_drain_look_like_an_end_as_asked() -> None:
    """It must not: not everything that was read is durable."""
    room, disks = Room([spec()], partitions=1), list[Filling]()

    def around(inner: Transport) -> Transport:
        disks.append(Filling(inner))
        return disks[-1]

    settings = replace(QUICK, idle_commit_seconds=60.0)
    async with room.worker(around=around, settings=settings) as worker:
        room.send("home", events(100, keys=KEYS))
        await room.until(room.is_read)
        room.send("home", events(1, keys=KEYS))  # ends no block: it waits for an idle commit
        await room.until(lambda: disks[0].polled == 101)
        disks[0].full = True
        worker.service.drain()
        with pytest.raises(DiskFull):
            await worker.ended()
    assert worker.log.of("draining")
