"""The memory transport: the port over a `MemoryLog`, for tests that must see everything.

Several workers share one log and its consumer group, fence each other as on a broker, and can be
made to fail at each step:

    take: fenced      every earlier owner is a stranger, nothing was read yet
    take: read        what is durable was read
    poll              records were found and not yet delivered
    commit: begun     the attempt is open, nothing was sent
    commit: half      half of what it publishes can be seen by uncommitted readers
    commit: sent      all of it can, and nothing is decided
    commit: decided   it counts, but the worker has not heard

What fails before ``commit: decided`` stays open until the next take aborts it; so does what is
cancelled. Whatever fails, the worker's own ownership is over and it has to take again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Self

from streamdp.core.errors import InvalidConfig, StateMismatch, TransportLost, beyond, counted
from streamdp.ports import (
    NO_INPUT,
    Administrator,
    Commit,
    Finding,
    Headers,
    Key,
    LastCommit,
    LastKnown,
    Listener,
    LiveEntries,
    Partition,
    Producer,
    Publications,
    Published,
    Reach,
    Reached,
    Records,
    StaticMembership,
    StreamTopics,
    Taken,
    Transport,
    Value,
    Verdict,
    check_bytes,
    check_names,
    check_paired,
    no_fault,
)
from streamdp.testing.memory_log import Attempt, Member, MemoryLog

STEPS = (
    "take: fenced",
    "take: read",
    "poll",
    "commit: begun",
    "commit: half",
    "commit: sent",
    "commit: decided",
)
READ_BATCH = 1000  # records that `read` and the publications hand over at once


class MemoryTransport:
    """One worker over a memory log."""

    def __init__(self, log: MemoryLog, *, worker: str, reached: Reached = no_fault) -> None:
        self._log = log
        self._worker = worker
        self._reached = reached
        self._topics: dict[str, StreamTopics] = {}
        self._listener: Listener | None = None
        self._member: Member | None = None
        self._owned: dict[Partition, int] = {}
        self._in_flight: dict[Partition, Attempt] = {}
        self._positions: dict[Partition, int] = {}
        self._turn = 0

    async def join(self, streams: Sequence[StreamTopics], listener: Listener) -> None:
        """Check the inputs, then enter the group."""
        check_names(streams)
        for topics in streams:
            self._log.partitions(topics.input)
            if topics.second_input or topics.output:
                paired = filter(None, (topics.input, topics.second_input, topics.output))
                check_paired(topics, {name: self._log.partitions(name) for name in paired})
        self._topics = {topics.stream: topics for topics in streams}
        self._listener = listener
        self._member = Member(self._worker, tuple(streams), self)
        self._log.join(self._member)

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """Pass on the assignment."""
        assert self._listener is not None
        self._listener.assigned(partitions)

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """Deliver nothing more of these, and pass it on."""
        assert self._listener is not None
        for partition in partitions:
            self.pause(partition)
        self._listener.revoked(partitions)

    def settled(self, stream: str) -> None:
        """Pass on that the assignment is complete."""
        assert self._listener is not None
        self._listener.settled(stream)

    def failed(self, partition: Partition, error: Exception) -> None:
        """Never called by the group."""
        raise AssertionError(f"{partition}: {error}")

    async def take(self, partition: Partition, *, entries: LiveEntries | None = None) -> Taken:
        """Fence, abort what was left open, and read what is durable."""
        topics = self._stream(partition)
        self._forget(partition)
        epoch = self._log.fence(topics, partition.number)
        self._reached("take: fenced", partition)
        await asyncio.sleep(0)
        self._log.check_owner(topics, partition.number, epoch)
        taken = peek(self._log, topics, partition.number, entries=entries)
        self._reached("take: read", partition)
        self._owned[partition] = epoch
        return taken

    async def confirm(self, partition: Partition) -> None:
        """Check in the log that this worker still owns the partition."""
        epoch = self._owned.get(partition)
        if epoch is not None:
            self._log.check_owner(self._stream(partition), partition.number, epoch)

    async def read(self, partition: Partition, start: int, stop: int) -> AsyncIterator[Records]:
        """The input again, batch by batch."""
        topics, number = self._stream(partition), partition.number
        while records := self._log.batch(topics, number, start, stop, READ_BATCH):
            yield records
            start = records.next_offset
            await asyncio.sleep(0)

    async def end_now(self, partition: Partition) -> int:
        """The end of the first input."""
        await asyncio.sleep(0)
        return self._log.input(self._stream(partition).input, partition.number).next

    async def stop_second_input(self, partition: Partition, start: int, *, timestamp: int) -> int:
        """The first offset of the second input that is not older than the timestamp."""
        await asyncio.sleep(0)
        source = self._log.input(self._stream(partition).second_input, partition.number)
        if start > source.next:
            raise beyond(str(partition))
        return source.since(timestamp, start=start)

    async def read_second_input(
        self, partition: Partition, start: int, stop: int
    ) -> AsyncIterator[Records]:
        """The second input, batch by batch."""
        source = self._log.input(self._stream(partition).second_input, partition.number)
        while start < (stop := min(stop, source.next)):
            first = max(start, source.first)
            records = source.batch(partition, first, stop, READ_BATCH, headers=True)
            if len(records) < READ_BATCH:
                records = replace(records, next_offset=stop)
            records = replace(records, start=start)
            yield records
            start = records.next_offset
            await asyncio.sleep(0)

    def resume(self, partition: Partition, offset: int) -> None:
        """Deliver from `offset` on."""
        self._positions[partition] = offset
        self._log.ring()

    def pause(self, partition: Partition) -> None:
        """Deliver nothing more."""
        self._positions.pop(partition, None)

    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        """New records, the partitions in turn; waits only when there are none."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        await asyncio.sleep(0)  # before anything is taken: a cancelled poll loses nothing
        while True:
            batches = self._fetch(max_records)
            left = deadline - clock()
            if batches or left <= 0:
                return batches
            await self._log.changed(timeout=left)

    def _fetch(self, limit: int) -> list[Records]:
        partitions = sorted(self._positions)
        turn = self._turn % max(1, len(partitions))
        batches: list[Records] = []
        for partition in partitions[turn:] + partitions[:turn]:
            topics, start = self._stream(partition), self._positions[partition]
            end = self._log.input(topics.input, partition.number).next
            try:
                records = self._log.batch(topics, partition.number, start, end, limit)
            except StateMismatch as error:
                self.pause(partition)
                assert self._listener is not None
                self._listener.failed(partition, error)
                continue
            if records:
                self._reached("poll", partition)
                batches.append(records)
                limit -= len(records)
        self._positions.update((records.partition, records.next_offset) for records in batches)
        self._turn += 1
        return batches

    async def newest_list(self, stream: str) -> bytes | None:
        """The last record of the catalogue."""
        records = [*self._log.published(self._topics[stream].catalogue, 0, start=0)]
        return records[-1].value if records else None

    async def commit(self, partition: Partition, commit: Commit) -> None:
        """One attempt, with a chance for everyone else between its steps."""
        topics = self._stream(partition)
        epoch = self._owned.pop(partition, None)
        if epoch is None:
            raise TransportLost(
                f"{partition}",
                "commit refused",
                expected="a partition that was taken",
                got="one that was lost or never taken",
            )
        self._check_sizes(partition, commit)
        self._log.check_owner(topics, partition.number, epoch)
        attempt = Attempt(topics, partition, self._worker, commit)
        self._log.begin(attempt)
        self._in_flight[partition] = attempt
        lines = len(commit.actions) + len(commit.ledger)
        half = lines // 2
        await self._step("commit: begun", partition, epoch)
        self._log.send(attempt, skip=0, stop=half)
        await self._step("commit: half", partition, epoch)
        self._log.send(attempt, skip=half, stop=lines)
        await self._step("commit: sent", partition, epoch)
        self._log.decide(attempt)
        self._reached("commit: decided", partition)
        if self._in_flight.pop(partition, None) is attempt:  # nobody left or took it meanwhile
            self._owned[partition] = epoch

    async def _step(self, step: str, partition: Partition, epoch: int) -> None:
        self._reached(step, partition)
        await asyncio.sleep(0)
        self._log.check_owner(self._stream(partition), partition.number, epoch)

    def _check_sizes(self, partition: Partition, commit: Commit) -> None:
        public = [value for _, value in (*commit.actions, *commit.ledger)]
        state = [value for _, value in commit.state if value is not None]
        written = [value for _, value, _ in commit.records if value is not None]
        largest = max(map(len, public + state + written), default=0)
        if largest > self._log.largest_value:
            raise InvalidConfig(
                f"{partition}: commit",
                "a value is too large",
                expected=f"≤ {self._log.largest_value} bytes",
                got=largest,
            )

    def largest_value(self, stream: str) -> int:
        """The log's limit."""
        return self._log.largest_value

    def last_known(self, partition: Partition) -> LastKnown:
        """How far the input reaches; everything is kept."""
        source = self._log.input(self._stream(partition).input, partition.number)
        return LastKnown(source.first, source.next)

    def missing(self) -> Mapping[str, str]:
        """None: an input is never deleted here."""
        return {}

    async def leave(self, partition: Partition) -> None:
        """Give one partition up."""
        self._forget(partition)

    async def close(self) -> None:
        """Give everything up and leave the group."""
        for partition in {*self._owned, *self._in_flight, *self._positions}:
            self._forget(partition)
        if self._member is not None:
            self._log.part(self._member)

    def _forget(self, partition: Partition) -> None:
        self._owned.pop(partition, None)
        self._in_flight.pop(partition, None)
        self._positions.pop(partition, None)

    def _stream(self, partition: Partition) -> StreamTopics:
        if partition.stream not in self._topics:
            raise InvalidConfig(
                f"{partition}",
                "unknown stream",
                expected=sorted(self._topics),
                got=partition.stream,
            )
        return self._topics[partition.stream]


def peek(
    log: MemoryLog, topics: StreamTopics, number: int, *, entries: LiveEntries | None = None
) -> Taken:
    """Read a partition's durable state."""
    state = log.state(topics, number)
    if entries is not None:
        entries.enter(list(state), list(state.values()))
    source = log.input(topics.input, number)
    lines = [record.value for record in log.published(topics.ledger, number, start=0)]
    reach = NO_INPUT
    if topics.second_input:
        second = log.input(topics.second_input, number)
        reach = Reach(
            second.first,
            second.next,
            group=log.second_input(topics, number),
            id=log.input_id(topics.second_input),
        )
    return Taken(
        state=state if entries is None else entries,
        first_offset=source.first,
        end_offset=source.next,
        group_offset=log.position(topics, number),
        last_ledger_line=lines[-1] if lines else None,
        partitions=log.partitions(topics.input),
        remarks=log.remarks(topics),
        input_id=log.input_id(topics.input),
        second_input=reach,
    )


class MemoryPublications:
    """A committed reader of what was published."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def actions(self, stream: StreamTopics, *, follow: bool) -> AsyncIterator[Sequence[Published]]:
        """Every action record, superseded ones too."""
        return self._read(stream.actions, follow=follow)

    def catalogue(
        self, stream: StreamTopics, *, follow: bool
    ) -> AsyncIterator[Sequence[Published]]:
        """Every list that the stream had."""
        return self._read(stream.catalogue, follow=follow)

    def ledger(
        self, stream: StreamTopics, *, follow: bool, newest: int | None = None
    ) -> AsyncIterator[Sequence[Published]]:
        """Every ledger record, or the newest."""
        return self._read(stream.ledger, follow=follow, newest=newest)

    async def _read(
        self, topic: str, *, follow: bool, newest: int | None = None
    ) -> AsyncIterator[Sequence[Published]]:
        read = {} if newest is None else self._late(topic, newest)
        while batch := self._next(topic, read):
            yield batch
        if not follow:
            return
        yield ()
        while True:
            if batch := self._next(topic, read):
                yield batch
            else:
                await self._log.changed(timeout=None)

    async def ledgers(self, app: str) -> Sequence[StreamTopics]:
        """The ledgers of this application."""
        await asyncio.sleep(0)
        return [topics for topics in self._log.streams() if topics.app == app]

    def _late(self, topic: str, newest: int) -> dict[int, int]:
        """Where to begin in order to read about this many of the newest."""
        parts = list(self._log.public_partitions(topic))
        ends = {n: sum(1 for _ in self._log.published(topic, n, start=0)) for n in parts}
        return {n: max(0, end - -(-newest // len(parts))) for n, end in ends.items()}

    def _next(self, topic: str, read: dict[int, int]) -> list[Published]:
        for number in self._log.public_partitions(topic):
            visible = self._log.published(topic, number, start=read.get(number, 0))
            batch = [record for record, _ in zip(visible, range(READ_BATCH), strict=False)]
            if batch:
                read[number] = batch[-1].offset + 1
                return batch
        return []

    async def close(self) -> None:
        """Nothing to close."""


class MemoryProducer:
    """Appends input records to a memory log, which forgets nothing."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def send(
        self,
        topic: str,
        records: Sequence[tuple[Key, Value]],
        *,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> None:
        """Append at once."""
        check_bytes(topic, records, headers)
        self._log.append(topic, records, headers=headers, partition=partition)
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Nothing to close."""


class MemoryAdministrator:
    """Makes and looks into a memory log's topics."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def create(
        self, streams: Sequence[StreamTopics], *, partitions: int
    ) -> Sequence[Finding]:
        """Make the inputs that are missing."""
        return [
            self._grow(topic, partitions if self._missing(topic) else 0)
            for topic in _topics(streams)
        ]

    async def check(self, streams: Sequence[StreamTopics]) -> Sequence[Finding]:
        """Say which inputs are missing."""
        return [
            Finding(
                f"topic {topic}",
                Verdict.PROBLEM if self._missing(topic) else Verdict.GOOD,
                "missing: create it" if self._missing(topic) else "there",
            )
            for topic in _topics(streams)
        ]

    async def mend(self, streams: Sequence[StreamTopics]) -> Sequence[Finding]:
        """Nothing to mend: no setting makes take-overs slow."""
        return await self.check(streams)

    async def expand(
        self, streams: Sequence[StreamTopics], *, partitions: int
    ) -> Sequence[Finding]:
        """Give the inputs more partitions, and share them out."""
        findings = [self._grow(topic, partitions) for topic in _topics(streams)]
        self._log.rebalance()
        return findings

    def commands(self, streams: Sequence[StreamTopics], *, partitions: int) -> str:
        """Nothing to type."""
        return ""

    async def probe(
        self, streams: Sequence[StreamTopics], *, written: Sequence[str] = ()
    ) -> Sequence[Finding]:
        """Memory is always within reach."""
        return [Finding("memory log", Verdict.GOOD, "within reach")]

    async def revise(self, stream: StreamTopics, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace the stream's list."""
        return self._log.revise(stream, change)

    async def peek(
        self, stream: StreamTopics, partition: int, *, entries: LiveEntries | None = None
    ) -> Taken:
        """Read a partition's durable state."""
        return peek(self._log, stream, partition, entries=entries)

    async def last_commits(
        self, stream: StreamTopics, *, marks: Callable[[int], Collection[bytes]]
    ) -> AsyncIterator[LastCommit]:
        """Everything that the state holds."""
        for number in self._log.state_partitions(stream):
            yield LastCommit(number, self._log.state(stream, number))
            await asyncio.sleep(0)

    async def newest(self, stream: StreamTopics, *, count: int) -> Sequence[Records]:
        """The last records of each partition. NOT PRIVATE."""
        total = self._log.partitions(stream.input)
        batches = []
        for number in range(total):
            source = self._log.input(stream.input, number)
            wanted = min(len(source.offsets), -(-count // total))
            start = source.offsets[-wanted] if wanted else source.next
            batches.append(self._log.batch(stream, number, start, source.next, wanted))
        return [records for records in batches if records]

    async def history(
        self, stream: StreamTopics, *, after: Mapping[int, int]
    ) -> AsyncIterator[Records]:
        """The whole input, batch by batch. NOT PRIVATE."""
        for number in range(self._log.partitions(stream.input)):
            source = self._log.input(stream.input, number)
            start, stop = max(source.first, after.get(number, 0)), source.next
            while records := self._log.batch(stream, number, start, stop, READ_BATCH):
                yield records
                start = records.next_offset

    async def close(self) -> None:
        """Nothing to close."""

    def _missing(self, topic: str) -> bool:
        return not self._log.has(topic)

    def _grow(self, topic: str, partitions: int) -> Finding:
        before = 0 if self._missing(topic) else self._log.partitions(topic)
        if partitions > before:
            self._log.create(topic, partitions=partitions)
        grown = Verdict.CHANGED if partitions > before else Verdict.GOOD
        return Finding(f"topic {topic}", grown, counted(max(before, partitions), "partition"))


def _topics(streams: Sequence[StreamTopics]) -> list[str]:
    """What streams read, write or set aside."""
    inputs = [topics.input for topics in streams]
    paired = [name for topics in streams for name in (topics.second_input, topics.output) if name]
    return [*inputs, *paired, *(topics.quarantine for topics in streams if topics.quarantined)]


class MemoryTechnology:
    """The technology: memory logs of this process, by name."""

    logs: dict[str, MemoryLog] = {}  # noqa: RUF012  # a registry is the point

    def __init__(self, log: MemoryLog, *, reached: Reached = no_fault) -> None:
        self.log = log
        self.reached = reached

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, app: str) -> Self:
        """The log of a name, made when it is first asked for: ``log = "name"``."""
        unknown = set(settings) - {"log"}
        if unknown:
            raise InvalidConfig("transport", "unknown key", expected="log", got=sorted(unknown))
        name = str(settings.get("log", app))
        return cls(cls.logs.setdefault(name, MemoryLog()))

    def check_streams(self, streams: Sequence[StreamTopics]) -> None:
        """Refuse nothing: any name will do, and each log has its own largest value."""

    def transport(
        self, *, worker: str, static_membership: StaticMembership = StaticMembership.STRANGERS
    ) -> Transport:
        """A worker over this log."""
        return MemoryTransport(self.log, worker=worker, reached=self.reached)

    def publications(self) -> Publications:
        """A committed reader of this log."""
        return MemoryPublications(self.log)

    def producer(self, *, kept: int | None = None) -> Producer:
        """A writer of input."""
        return MemoryProducer(self.log)

    def administrator(self) -> Administrator:
        """The tools."""
        return MemoryAdministrator(self.log)
