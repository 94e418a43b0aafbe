"""Is a partition that waits for its turn, while others are served, left in peace?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from streamdp.ports import Partition, Records, Transport
from tests.support.services import QUICK, Between, Room
from tests.support.streams import events, spec

KEYS = tuple(f"key {n}".encode() for n in range(12))
HOME0 = Partition("home", 0)


class OneByOne(Between):
    """Delivers one partition only, a record at a time, until all of it is read; a second each."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.seconds = 0.0
        self.kept: list[Records] = []

    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        """What comes of the other one is kept until then."""
        self.seconds += 1.0
        batches = await super().poll(max_records=1, timeout=timeout)
        self.kept += [records for records in batches if records.partition == HOME0]
        passed_on = [records for records in batches if records.partition != HOME0]
        if batches and not passed_on:
            return await self.poll(max_records=max_records, timeout=timeout)
        if not passed_on:
            passed_on, self.kept = self.kept, []
        return passed_on


def test_is_nothing_stalled_while_its_siblings_are_served() -> None:
    """Under backlog partitions take turns; whoever waits for its turn is not taken again."""
    asyncio.run(_backlog())


async def _backlog() -> None:
    """Two partitions, of which one is served first, a record a second."""
    room = Room([spec()], partitions=2)
    room.send("home", events(600, keys=KEYS))
    between: list[OneByOne] = []

    def around(transport: Transport) -> Transport:
        between.append(OneByOne(transport))
        return between[0]

    async with room.worker(
        settings=replace(QUICK, stall_seconds=20.0, batch_records=1),
        around=around,
        clock=lambda: between[0].seconds if between else 0.0,
    ) as worker:
        await room.until(room.is_read)
        assert between[0].seconds > 10 * 20
        assert worker.log.of("partition_lost") == []
    assert room.wrong() == []
