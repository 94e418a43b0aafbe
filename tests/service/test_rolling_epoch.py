"""Does a rolling change of epoch go through without a halt, whoever is given which partition?

Processes are restarted one by one. One that still has the earlier epoch may be given a partition
that the new one has taken on already: it stands by, and the partition goes on where it can.
"""

from __future__ import annotations

from dataclasses import replace

from streamdp.ports import Partition
from streamdp.service.settings import OnHalt
from streamdp.service.view import Reason, Status, View
from streamdp.wire.lines import EpochMark
from streamdp.wire.published import decode_ledger
from tests.support.services import QUICK, Room
from tests.support.streams import events, spec

KEYS = tuple(b"key %d" % number for number in range(12))
PARTITIONS = 4


async def test_does_a_rolling_change_of_epoch_halt_nothing() -> None:
    """Three processes of epoch 1 are replaced in turn; partitions go to and fro meanwhile."""
    room = Room([spec()], partitions=PARTITIONS)
    new = replace(room.specs["home"], epoch=2)
    exits = replace(QUICK, on_halt=OnHalt.EXIT)
    seed = iter(range(1000))

    async def fed() -> None:
        room.send("home", events(60, keys=KEYS, seed=next(seed)))
        await room.log.changed(timeout=0.05)

    waited: list[Partition] = []
    async with room.worker("old 1", settings=exits) as old_1:
        await fed()
        topics = room.specs["home"].topics
        await room.until(
            lambda: None not in [room.log.position(topics, n) for n in range(PARTITIONS)]
        )
        async with room.worker("old 2", settings=exits) as old_2:
            await fed()
            first = room.specs["home"]
            room.specs["home"] = new
            async with room.worker("new 1", settings=exits) as new_1:
                await fed()
                await room.until(
                    lambda: any(
                        part.blocks > 0 for part in new_1.view.streams["home"].partitions.values()
                    )
                )
            room.specs["home"] = first
            # What the new process took on is of epoch 2 now, and only old ones are there.
            await room.until(
                lambda: any(_count(old.view, Status.WAITING) for old in (old_1, old_2))
            )
            await fed()
            waited = [
                Partition("home", number)
                for worker in (old_1, old_2)
                for number, part in worker.view.streams["home"].partitions.items()
                if part.status is Status.WAITING
            ]
            room.specs["home"] = new
            async with room.worker("new 2", settings=exits) as new_2:
                await fed()
                assert await old_2.drained() is None
                assert await old_1.drained() is None
                await fed()
                await room.until(lambda: _count(new_2.view, Status.RUNNING) == PARTITIONS)
                await room.until(room.is_read)
            workers = [old_1, old_2, new_1, new_2]
    assert waited
    for worker in workers:
        assert worker.log.of("partition_halted") == []
    assert await new_2.ended() is None
    waiting_lines = [*old_1.log.of("partition_waiting"), *old_2.log.of("partition_waiting")]
    assert {line["partition"] for line in waiting_lines} >= {str(place) for place in waited}
    for number in range(PARTITIONS):
        lines = [decode_ledger(record.value) for record in room.evidence(_at(number)).ledger]
        assert sum(isinstance(line, EpochMark) for line in lines) == 1, number


async def test_is_a_process_that_stands_by_told_of_and_drained() -> None:
    """It says what it waits for, alters nothing, and ends at once when asked."""
    room = Room([spec(epoch=2)], partitions=1)
    room.send("home", events(40, keys=KEYS))
    async with room.worker():
        await room.until(room.is_read)
    before = room.evidence(_at(0))
    room.specs["home"] = spec(epoch=1)
    room.send("home", events(40, keys=KEYS, seed=2))
    async with room.worker() as old:
        await room.until(lambda: old.view.part(_at(0)).status is Status.WAITING)
        part = old.view.part(_at(0))
        assert "deploy the newer one; expected epoch 2 or a later one, got 1" in part.message
        assert part.reason is None
        assert await old.drained() is None
    assert room.evidence(_at(0)) == before
    assert Reason.STATE not in {line.get("reason") for line in old.log.of("partition_halted")}


def _count(view: View, status: Status) -> int:
    parts = view.streams["home"].partitions.values()
    return sum(part.status is status for part in parts)


def _at(number: int) -> Partition:
    return Partition("home", number)
