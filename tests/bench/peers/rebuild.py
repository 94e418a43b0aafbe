"""How long a service takes to be back after kill -9, with many keys.

The group first waits until the dead member's session has timed out (10 s by default); that is the
group's, and told apart from what taking and rebuilding take.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.bench.peers.candidates import log_events
from tests.bench.peers.inputs import PARTITIONS
from tests.bench.peers.processes import Candidate, Process, committed, running

_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Rebuild:
    """From the first partition's taking until the last one is at work."""

    keys: int
    again: int  # records that were read again, at most
    seconds: float
    waited: float  # before, for the group

    def as_row(self) -> dict[str, float]:
        """For tables."""
        return {
            "keys": self.keys,
            "read again": self.again,
            "s rebuilding": round(self.seconds, 1),
            "s waiting for the group": round(self.waited, 1),
        }


async def rebuild(
    candidate: Candidate, folder: Path, *, bootstrap: str, topic: str, records: int
) -> Rebuild:
    """Kill a service after so many records, and start it again."""
    with running(candidate, folder):
        async with committed(bootstrap, candidate.group, topic) as positions:
            while sum(await positions()) < records:
                await asyncio.sleep(_LOOK_SECONDS)
    log = folder / f"{candidate.group}-again.log"
    process = Process(candidate.commands[0], candidate.environment, log)
    try:
        while len(_events(log, "partition_running")) < PARTITIONS:
            assert process.cpu >= 0  # raises when it has ended
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        process.kill()
    started, taken, back = (
        [_time(event) for event in _events(log, name)]
        for name in ("starting", "partition_taking", "partition_running")
    )
    again = {
        str(event["partition"]): int(str(event["records"]))
        for event in _events(log, "partition_rebuilding")
        if "records" in event
    }
    return Rebuild(
        keys=sum(int(str(event["keys"])) for event in _events(log, "partition_running")),
        again=sum(again.values()),
        seconds=max(back) - min(taken),
        waited=min(taken) - min(started),
    )


def _time(event: dict[str, object]) -> float:
    """When it was logged."""
    return datetime.fromisoformat(str(event["time"])).timestamp()


def _events(log: Path, name: str) -> list[dict[str, object]]:
    """What the service has logged under one name."""
    return [event for event in log_events([log]) if event["event"] == name]
