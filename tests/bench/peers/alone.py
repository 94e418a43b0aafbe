"""aiokafka consuming alone: what any service on this client library can at most reach.

    python -m tests.bench.peers.alone BOOTSTRAP GROUP TOPIC json|json-feedback|raw PARTITION...

It fetches, and for JSON decodes with msgspec, and throws everything away. What it has consumed it
tells the group ten times a second, so that it is measured like the others. It assigns itself its
partitions: with a group's callbacks nothing would change but the start.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import msgspec
import uvloop
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

POLL = 2000
"""Records at once; 500 to 2,000 are fastest."""
FETCH_BYTES = 4 * 1024 * 1024
_COMMIT_SECONDS = 0.1


class Event(msgspec.Struct):
    """A JSON record of a stream of losses."""

    losses: list[float]


class Shown(msgspec.Struct):
    """A JSON record of a feedback stream; its header, which names the action, comes decoded."""

    reward: float


EVENTS: dict[str, type] = {"json": Event, "json-feedback": Shown}


async def consume(bootstrap: str, group: str, topic: str, kind: str, partitions: list[int]) -> None:
    """Until it is killed."""
    decode: Callable[[bytes], object] | None = None
    if kind in EVENTS:
        decode = msgspec.json.Decoder(EVENTS[kind]).decode
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    await consumer.start()
    consumer.assign([TopicPartition(topic, number) for number in partitions])
    committed = time.monotonic()
    while True:
        batches = await consumer.getmany(timeout_ms=100, max_records=POLL)
        if decode is not None:
            for records in batches.values():
                for record in records:
                    assert record.value is not None
                    decode(record.value)
        if time.monotonic() - committed > _COMMIT_SECONDS:
            committed = time.monotonic()
            await consumer.commit()


if __name__ == "__main__":
    server, group, topic, kind, *numbers = sys.argv[1:]
    uvloop.run(consume(server, group, topic, kind, [int(number) for number in numbers]))
