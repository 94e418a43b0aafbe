"""How long an output takes: from the last record that it needed to a committed reader.

The load comes from a process of its own (`load`); a reader of committed records notes when each
output came and which input record completed it. The first seconds, in which every key is new, do
not count.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import unpack_from

import numpy as np
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from streamdp.wire.published import decode_action
from tests.bench.peers.candidates import Place
from tests.bench.peers.inputs import PARTITIONS
from tests.bench.peers.load import Sent
from tests.bench.peers.processes import Candidate, committed, running

_SETTLING_SECONDS = 3.0
_QUIET_SECONDS = 2.0
_START_SECONDS = 60.0

CompletedBy = Callable[[bytes], tuple[int, int]]
"""Partition and offset of the input record that completed an output."""

Seen = list[tuple[float, bytes]]
"""Outputs, and when a reader had them."""


def of_streamdp(value: bytes) -> tuple[int, int]:
    """As an action's line says."""
    line = decode_action(value)
    return line.partition, line.last_offset


def of_kafka_streams(value: bytes) -> tuple[int, int]:
    """As the peer's program writes it."""
    partition, offset = unpack_from(">qq", value)
    return int(partition), int(offset)


@dataclass(frozen=True, slots=True)
class Delay:
    """Of many outputs, in seconds."""

    outputs: int
    p50: float
    p99: float

    def as_row(self) -> dict[str, float]:
        """For tables."""
        return {
            "outputs": self.outputs,
            "p50 ms": round(1e3 * self.p50, 1),
            "p99 ms": round(1e3 * self.p99, 1),
        }


async def delay(
    candidate: Candidate,
    place: Place,
    *,
    outputs: str,
    completed_by: CompletedBy,
    rate: float,
    seconds: float,
) -> Delay:
    """Run a candidate under a steady load on an empty topic."""
    with running(candidate, place.folder):
        await _until_working(candidate, place)
        enough = asyncio.Event()
        reading = asyncio.create_task(_read(place.bootstrap, outputs, enough))
        sent = await _load(place, rate=rate, seconds=seconds)
        await asyncio.sleep(_QUIET_SECONDS)
        enough.set()
        seen = await reading
    return _compare(sent, seen, completed_by)


async def _until_working(candidate: Candidate, place: Place) -> None:
    """One record at each partition, so that nothing is measured before all are taken."""
    await _load(place, rate=1000, seconds=0.1)
    async with committed(place.bootstrap, candidate.group, place.topic) as positions:
        async with asyncio.timeout(_START_SECONDS):
            while not sum(await positions()):
                await asyncio.sleep(0.05)
    await asyncio.sleep(_QUIET_SECONDS)


async def _load(place: Place, *, rate: float, seconds: float) -> list[Sent]:
    """Let the load's process run."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.peers.load", place.bootstrap, place.topic,
        place.input.format, str(place.input.actions), str(place.input.keys), str(rate),
        str(seconds), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError("the load ended")
    return [Sent(*fields) for fields in json.loads(out)]


async def _read(bootstrap: str, topic: str, enough: asyncio.Event) -> Seen:
    """Every committed output from now on, until it is enough."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="latest"
    )
    await consumer.start()
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(places)
    seen: Seen = []
    try:
        while not enough.is_set():
            batches = await consumer.getmany(timeout_ms=200)
            now = time.monotonic()
            seen += [(now, record.value or b"") for part in batches.values() for record in part]
    finally:
        await consumer.stop()
    return seen


def _compare(sent: Sequence[Sent], seen: Seen, completed_by: CompletedBy) -> Delay:
    """Each output with the batch that its last record was in."""
    batches: defaultdict[int, list[Sent]] = defaultdict(list)
    for batch in sorted(sent, key=lambda sent_batch: sent_batch.first):
        batches[batch.partition].append(batch)
    firsts = {number: [sent_batch.first for sent_batch in part] for number, part in batches.items()}
    begun = min(sent_batch.at for sent_batch in sent) + _SETTLING_SECONDS
    delays = []
    for at, value in seen:
        partition, offset = completed_by(value)
        index = bisect_right(firsts[partition], offset) - 1
        if index >= 0 and batches[partition][index].at > begun:
            delays.append(at - batches[partition][index].at)
    p50, p99 = np.percentile(delays, (50, 99)).tolist()
    return Delay(len(delays), p50, p99)
