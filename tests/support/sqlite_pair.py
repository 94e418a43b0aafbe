"""A pair of SQLite files to try things on: joined workers, numbered commits, what is published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from streamdp.core.errors import (
    StreamdpError,
)
from streamdp.ports import Commit, Partition, Reached, StreamTopics, no_fault
from streamdp_adapters.sqlite import Settings, Sqlite, SqliteTransport

TOPICS = StreamTopics(app="shop", stream="home", input="events")
AT = Partition("home", 0)


@dataclass(slots=True)
class Ears:
    assigned_now: list[Partition] = field(default_factory=list)
    revoked_ever: list[Partition] = field(default_factory=list)
    failures: list[StreamdpError] = field(default_factory=list)

    def assigned(self, partitions: Sequence[Partition]) -> None:
        self.assigned_now += partitions

    def revoked(self, partitions: Sequence[Partition]) -> None:
        self.revoked_ever += partitions

    def settled(self, stream: str) -> None: ...

    def failed(self, partition: Partition, error: StreamdpError) -> None:
        self.failures.append(error)


def settings(folder: Path, **more: object) -> Settings:
    return Settings.from_mapping({"path": str(folder / "trusted.db"), **more})


async def joined(
    chosen: Settings,
    *,
    worker: str = "w",
    reached: Reached = no_fault,
    topics: StreamTopics = TOPICS,
) -> tuple[SqliteTransport, Ears]:
    transport = SqliteTransport(chosen, worker=worker, reached=reached)
    ears = Ears()
    try:
        await transport.join([topics], ears)
    except BaseException:
        await transport.close()
        raise
    return transport, ears


def step(number: int, *, low_water: int | None = None) -> Commit:
    mark = b"%d" % number
    return Commit(
        number,
        [(b"checkpoint", mark)],
        [(b"key " + mark, b"action " + mark)],
        [(b"key " + mark, b"line " + mark)],
        low_water,
    )


async def ledger(chosen: Settings) -> list[bytes]:
    reader = Sqlite(chosen).publications()
    try:
        batches = [batch async for batch in reader.ledger(TOPICS, follow=False)]
    finally:
        await reader.close()
    return [record.value for batch in batches for record in batch]


async def send(chosen: Settings, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
    producer = Sqlite(chosen).producer()
    await producer.send("events", records)
    await producer.close()
