"""How long a service takes to be back after kill -9, with many keys."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers.candidates import log_events
from tests.bench.peers.inputs import PARTITIONS
from tests.bench.peers.processes import Candidate, Process, committed, running

_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Rebuild:
    """From the start of the new process until its last partition is at work."""

    keys: int
    again: int  # records that were read again, at most
    seconds: float

    def as_row(self) -> dict[str, float]:
        """For tables."""
        return {"keys": self.keys, "read again": self.again, "seconds": round(self.seconds, 1)}


async def rebuild(
    candidate: Candidate, folder: Path, *, bootstrap: str, topic: str, records: int
) -> Rebuild:
    """Kill a service after so many records, and start it again."""
    with running(candidate, folder):
        async with committed(bootstrap, candidate.group, topic) as position:
            while await position() < records:
                await asyncio.sleep(_LOOK_SECONDS)
    log = folder / f"{candidate.group}-again.log"
    begun = time.monotonic()
    process = Process(candidate.commands[0], candidate.environment, log)
    try:
        while len(_events(log, "partition_running")) < PARTITIONS:
            assert process.cpu >= 0  # raises when it has ended
            await asyncio.sleep(_LOOK_SECONDS)
        seconds = time.monotonic() - begun
    finally:
        process.kill()
    return Rebuild(
        keys=sum(int(str(each["keys"])) for each in _events(log, "partition_running")),
        again=sum(
            {
                str(e["partition"]): int(str(e["records"]))
                for e in _events(log, "partition_rebuilding")
                if "records" in e
            }.values()
        ),
        seconds=seconds,
    )


def _events(log: Path, name: str) -> list[dict[str, object]]:
    """What the service has logged under one name."""
    return [event for event in log_events([log]) if event["event"] == name]
