"""Services on a memory log, for tests: started, watched until something is so, drained, judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from streamdp.ports import (
    Commit,
    Headers,
    Key,
    LastKnown,
    Listener,
    LiveEntries,
    Partition,
    Reached,
    Records,
    StreamTopics,
    Taken,
    Transport,
    Value,
    no_fault,
)
from streamdp.service.charges_by_others import ChargesByOthersOf, alone
from streamdp.service.life import Clock
from streamdp.service.logs import EVENTS
from streamdp.service.loop import Service
from streamdp.service.settings import LoopSettings
from streamdp.service.spec import StreamSpec
from streamdp.service.view import Reason, View
from streamdp.testing.judge import Evidence, judge, judge_fold
from streamdp.testing.memory import MemoryTransport
from streamdp.testing.memory_log import Isolation, MemoryLog
from tests.support.decoding import decode

QUICK = LoopSettings(
    poll_seconds=0.02,
    commit_seconds=0.0,
    idle_commit_seconds=0.01,
    drain_seconds=10.0,
    retry_seconds=(0.0, 0.001, 0.01),
)


@dataclass
class Lines:
    """A log that a test can read."""

    lines: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)

    def info(self, event: str, **fields: object) -> None:
        """Keep it; every event is documented."""
        assert event in EVENTS, event
        self.lines.append((event, fields))

    warning = info
    error = info

    def of(self, event: str) -> list[Mapping[str, object]]:
        """The fields of every line of one event."""
        return [fields for name, fields in self.lines if name == event]


@dataclass
class Worker:
    """A service that runs, and what a test may ask of it."""

    service: Service
    view: View
    log: Lines
    task: asyncio.Task[Reason | None]

    async def drained(self) -> Reason | None:
        """Let it end."""
        self.service.drain()
        return await self.ended()

    async def ended(self) -> Reason | None:
        """What it returns; loudly, if it never does."""
        async with asyncio.timeout(240):
            return await self.task


@asynccontextmanager
async def serving(
    specs: Sequence[StreamSpec],
    transport: Transport,
    *,
    settings: LoopSettings = QUICK,
    by_others: ChargesByOthersOf = alone,
    clock: Clock = time.monotonic,
) -> AsyncIterator[Worker]:
    """A service for as long as the block lasts; drained at its end."""
    view, log = View(specs), Lines()
    service = Service(
        specs, transport, by_others=by_others, view=view, log=log, settings=settings, clock=clock
    )
    worker = Worker(service, view, log, asyncio.create_task(service.run()))
    try:
        yield worker
        if not worker.task.done():
            await worker.drained()
    finally:
        worker.task.cancel()
        await asyncio.wait({worker.task}, timeout=60)


class Room:
    """A memory log, and the services that work on it."""

    def __init__(self, specs: Sequence[StreamSpec], *, partitions: int, gap: int = 0) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.log = MemoryLog(gap=gap)
        for spec in specs:
            self.log.create(spec.topics.input, partitions=partitions)
        self.partitions = [
            Partition(spec.name, number) for spec in specs for number in range(partitions)
        ]

    def send(
        self,
        stream: str,
        records: Sequence[tuple[Key, Value]],
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Append input."""
        self.log.append(self.specs[stream].topics.input, records, headers=headers)

    @asynccontextmanager
    async def worker(
        self,
        name: str = "one",
        *,
        settings: LoopSettings = QUICK,
        reached: Reached = no_fault,
        around: Callable[[Transport], Transport] = lambda transport: transport,
        clock: Clock = time.monotonic,
    ) -> AsyncIterator[Worker]:
        """A service of this name, for as long as the block lasts; drained at its end."""
        transport = around(MemoryTransport(self.log, worker=name, reached=reached))
        specs = list(self.specs.values())
        async with serving(specs, transport, settings=settings, clock=clock) as worker:
            yield worker

    async def until(self, what: Callable[[], bool]) -> None:
        """Wait until something is so; loudly, if it never is."""
        async with asyncio.timeout(240):
            while not what():
                await self.log.changed(timeout=0.05)

    def position(self, partition: Partition) -> int:
        """The durable position."""
        return self.log.position(self.specs[partition.stream].topics, partition.number) or 0

    def end(self, partition: Partition) -> int:
        """Where the input ends."""
        return self.log.input(self.specs[partition.stream].topics.input, partition.number).next

    def is_read(self, *partitions: Partition) -> bool:
        """Whether everything is durable up to the last record, here or everywhere."""
        return all(
            self.position(place) >= self._last(place) for place in partitions or self.partitions
        )

    def _last(self, partition: Partition) -> int:
        source = self.log.input(self.specs[partition.stream].topics.input, partition.number)
        return source.offsets[-1] + 1 if source.offsets else 0

    def evidence(self, partition: Partition) -> Evidence:
        """What can be seen of a partition from outside."""
        topics, number = self.specs[partition.stream].topics, partition.number
        return Evidence(
            partition,
            [record for record in self.log.actions(topics) if record.partition == number],
            [record for record in self.log.ledger(topics) if record.partition == number],
            [
                record.value
                for record in self.log.ledger(topics, Isolation.UNCOMMITTED)
                if record.partition == number
            ],
        )

    def wrong(self, *partitions: Partition, whole: str = "whole") -> list[str]:
        """What the judge finds, here or everywhere."""
        faults: list[str] = []
        for partition in partitions or self.partitions:
            spec = self.specs[partition.stream]
            source = self.log.input(spec.topics.input, partition.number)
            records = self.log.batch(
                spec.topics, partition.number, source.first, source.next, 10**9
            )
            batch, _ = decode(
                spec.format, [records], most_key_bytes=spec.most_key_bytes, idle=spec.idle
            )
            evidence = self.evidence(partition)
            faults += judge(evidence)
            faults += judge_fold(
                evidence,
                engine=spec.engine(partition.number),
                lines=spec.lines,
                log=[batch],
                whole=whole,
            )
        return faults


class Between:
    """A transport around another; a test's own overrides what it wants to spoil."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

    async def join(self, streams: Sequence[StreamTopics], listener: Listener) -> None:
        """As inside."""
        await self.inner.join(streams, listener)

    async def take(self, partition: Partition, *, entries: LiveEntries | None = None) -> Taken:
        """As inside."""
        return await self.inner.take(partition, entries=entries)

    async def confirm(self, partition: Partition) -> None:
        """As inside."""
        await self.inner.confirm(partition)

    def read(self, partition: Partition, start: int, stop: int) -> AsyncIterator[Records]:
        """As inside."""
        return self.inner.read(partition, start, stop)

    def resume(self, partition: Partition, offset: int) -> None:
        """As inside."""
        self.inner.resume(partition, offset)

    def pause(self, partition: Partition) -> None:
        """As inside."""
        self.inner.pause(partition)

    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        """As inside."""
        return await self.inner.poll(max_records=max_records, timeout=timeout)

    async def newest_list(self, stream: str) -> bytes | None:
        """As inside."""
        return await self.inner.newest_list(stream)

    async def commit(self, partition: Partition, commit: Commit) -> None:
        """As inside."""
        await self.inner.commit(partition, commit)

    def largest_value(self, stream: str) -> int:
        """As inside."""
        return self.inner.largest_value(stream)

    def last_known(self, partition: Partition) -> LastKnown:
        """As inside."""
        return self.inner.last_known(partition)

    def missing(self) -> Mapping[str, str]:
        """As inside."""
        return self.inner.missing()

    async def leave(self, partition: Partition) -> None:
        """As inside."""
        await self.inner.leave(partition)

    async def close(self) -> None:
        """As inside."""
        await self.inner.close()
