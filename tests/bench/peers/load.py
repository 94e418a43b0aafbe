"""A steady load, and the time at which each of its records was sent.

    python -m tests.bench.peers.load BOOTSTRAP TOPIC FORMAT K KEYS RATE SECONDS

A process of its own, so that its work delays nobody who listens. It sends a batch for each
partition every few milliseconds, waits for none, and ends with one line of JSON: partition, first
offset, count and time (the clock is the machine's, so others can compare) of every batch. A batch
counts as sent before the client library sees it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass

from tests.bench.peers.inputs import PARTITIONS, Batches, Input, filler

_BATCH_SECONDS = 0.005
"""Between two batches of a partition: releases are spread over time as finely as that."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One batch."""

    partition: int
    first: int
    count: int
    at: float


async def load(
    bootstrap: str, topic: str, input_: Input, *, rate: float, seconds: float
) -> list[Sent]:
    """Send at a steady rate."""
    producer = filler(bootstrap)
    await producer.start()
    try:
        at_once = max(1, round(rate * _BATCH_SECONDS / PARTITIONS))
        batches = Batches.of(producer, input_, records=at_once).in_turn()
        pause = at_once / rate  # between two batches, of whichever partition
        begun = time.monotonic()
        under_way = []
        for at in range(int(seconds / pause)):
            wait = begun + at * pause - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            partition, batch = next(batches)
            now = time.monotonic()
            under_way.append((now, await producer.send_batch(batch, topic, partition=partition)))
        done = [(at, await acknowledged) for at, acknowledged in under_way]
    finally:
        await producer.stop()
    return [Sent(record.partition, record.offset, at_once, at) for at, record in done]


def main() -> None:
    """As the arguments say."""
    bootstrap, topic, kind, size, keys, rate, seconds = sys.argv[1:]
    input_ = Input(kind, int(size), int(keys))
    sent = asyncio.run(load(bootstrap, topic, input_, rate=float(rate), seconds=float(seconds)))
    print(json.dumps([[batch.partition, batch.first, batch.count, batch.at] for batch in sent]))


if __name__ == "__main__":
    main()
