"""A room for one check of a transport: names of its own, workers, and comparisons."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from streamdp.core.errors import StreamdpError, TransportLost
from streamdp.ports import (
    Administrator,
    Commit,
    Headers,
    Key,
    Partition,
    Publications,
    Published,
    Records,
    StreamTopics,
    Taken,
    Technology,
    Transport,
    Value,
)

T = TypeVar("T")

PATIENCE = 120.0  # seconds that anything may take before it counts as hanging
BOUNDED = 20.0  # seconds within which a worker must have given everything up
QUIET = 30.0  # seconds without a record after which no more are expected

Make = Callable[[str], Technology]
"""Opens the technology under test for an application of this name."""


class Broken(AssertionError):
    """A promise of the port that a transport does not keep."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and how to see whether it is kept."""

    number: int
    promise: str
    body: Callable[[Room], Awaitable[None]]

    def __str__(self) -> str:
        """As in test ids and messages."""
        return f"{self.number:02d} {self.promise}"

    async def run(self, make: Make) -> None:
        """Run the check; `Broken` if the promise is not kept."""
        room = Room.fresh(make, self)
        try:
            async with asyncio.timeout(PATIENCE):
                await self.body(room)
        except TimeoutError as error:
            raise Broken(f"promise {self}: not within {PATIENCE} s") from error
        except StreamdpError as error:
            raise Broken(f"promise {self}: {type(error).__name__}: {error}") from error
        finally:
            await room.close()


@dataclass(slots=True)
class Heard:
    """A listener that records its calls."""

    assigned_now: set[Partition] = field(default_factory=set)
    settled_ever: set[str] = field(default_factory=set)
    failures: list[tuple[Partition, StreamdpError]] = field(default_factory=list)

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """Remember what was given."""
        self.assigned_now |= set(partitions)

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """Forget what was taken away."""
        self.assigned_now -= set(partitions)

    def settled(self, stream: str) -> None:
        """Remember the streams whose share is known."""
        self.settled_ever.add(stream)

    def failed(self, partition: Partition, error: StreamdpError) -> None:
        """Remember what could not go on."""
        self.failures.append((partition, error))


@dataclass(slots=True)
class RoomWorker:
    """A transport that has joined, and its listener's record."""

    transport: Transport
    heard: Heard

    async def begin(self, partition: Partition) -> Taken:
        """Take a partition, and have it delivered from its first record on."""
        taken = await self.transport.take(partition)
        self.transport.resume(partition, taken.first_offset)
        return taken

    async def until(self, done: Callable[[Heard], bool]) -> None:
        """Keep polling, as a service does, until the condition holds."""
        while not done(self.heard):
            await self.transport.poll(max_records=1, timeout=0.02)

    async def collect(self, count: int, *, max_records: int = 100) -> list[Records]:
        """Poll until this many records have come, then once more to see that no more do."""
        batches: list[Records] = []
        while sum(map(len, batches)) < count:
            came = await self.transport.poll(max_records=max_records, timeout=QUIET)
            if not came:
                return batches
            batches.extend(came)
        batches.extend(await self.transport.poll(max_records=max_records, timeout=0.05))
        return batches


@dataclass(slots=True)
class Room:
    """A stream of its own for one check, and everything that was opened for it."""

    check: Check
    technology: Technology
    topics: StreamTopics
    opened: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    @classmethod
    def fresh(cls, make: Make, check: Check) -> Room:
        """With names that nothing else uses."""
        app = f"kit{check.number}x{os.urandom(4).hex()}"
        topics = StreamTopics(app=app, stream="home", input=f"{app}.input")
        return cls(check, make(app), topics)

    def expect(self, what: str, *, expected: object, got: object) -> None:
        """Raise `Broken` unless the two values are equal."""
        if expected != got:
            raise Broken(f"promise {self.check}: {what}; expected {expected!r}, got {got!r}")

    async def refuses(
        self, what: str, kind: type[StreamdpError], step: Awaitable[object]
    ) -> StreamdpError:
        """Raise `Broken` unless the step raises this exception."""
        try:
            await step
        except kind as error:
            return error
        except Exception as error:
            raise Broken(
                f"promise {self.check}: {what}; expected {kind.__name__}, got {error!r}"
            ) from error
        raise Broken(f"promise {self.check}: {what}; expected {kind.__name__}, got nothing")

    def administrator(self) -> Administrator:
        """The technology's tools."""
        administrator = self.technology.administrator()
        self.opened.append(administrator.close)
        return administrator

    def reader(self) -> Publications:
        """A committed reader of what was published."""
        reader = self.technology.publications()
        self.opened.append(reader.close)
        return reader

    async def create(self, *, partitions: int = 1) -> None:
        """Make the topics."""
        await self.administrator().create([self.topics], partitions=partitions)

    async def worker(
        self, name: str, *, streams: Sequence[StreamTopics] | None = None
    ) -> RoomWorker:
        """A transport that has joined; it may not have been assigned anything yet."""
        transport = self.technology.transport(worker=name)
        self.opened.append(transport.close)
        heard = Heard()
        await transport.join(streams or [self.topics], heard)
        return RoomWorker(transport, heard)

    async def lone_worker(self, *, partitions: int = 1) -> RoomWorker:
        """A transport that was assigned everything there is."""
        await self.create(partitions=partitions)
        worker = await self.worker("lone")
        await worker.until(lambda heard: len(heard.assigned_now) == partitions)
        return worker

    async def send(
        self,
        records: Sequence[tuple[Key, Value]],
        *,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
        topic: str = "",
    ) -> None:
        """Append to the input, or to another topic."""
        producer, topic = self.technology.producer(), topic or self.topics.input
        try:
            await producer.send(topic, records, headers=headers, partition=partition)
        finally:
            await producer.close()

    async def published(self) -> tuple[list[Published], list[Published]]:
        """All actions and ledger lines published so far."""
        reader, topics = self.technology.publications(), self.topics
        try:
            actions = [r async for batch in reader.actions(topics, follow=False) for r in batch]
            ledger = [r async for batch in reader.ledger(topics, follow=False) for r in batch]
        finally:
            await reader.close()
        return actions, ledger

    def at(self, number: int = 0) -> Partition:
        """A partition of the stream."""
        return Partition(self.topics.stream, number)

    async def close(self) -> None:
        """Give everything up, newest first."""
        for close in reversed(self.opened):
            async with asyncio.timeout(PATIENCE):
                await close()


def step(number: int) -> Commit:
    """A commit that differs from every other one in all of its parts."""
    mark = str(number).encode()
    return Commit(
        next_offset=number,
        state=[(b"checkpoint", b"state " + mark), (b"row " + mark, bytes(range(256)) + mark)],
        actions=[(b"key " + mark, b"action " + mark), (None, b"null key " + mark)],
        ledger=[(b"key " + mark, b"line " + mark + b"/0"), (None, b"line " + mark + b"/1")],
    )


def fold(commits: Iterable[Commit]) -> dict[bytes, bytes]:
    """The state that these commits leave."""
    state: dict[bytes, bytes] = {}
    for commit in commits:
        for key, value in commit.state:
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
    return state


def pairs(records: Iterable[Published]) -> list[tuple[Key, bytes]]:
    """Published records as keys and values."""
    return [(record.key, record.value) for record in records]


async def flatten(batches: AsyncIterator[Records]) -> list[tuple[int, Key, Value]]:
    """Batches of records as rows."""
    return [row async for batch in batches for row in rows([batch])]


def rows(batches: Iterable[Records]) -> list[tuple[int, Key, Value]]:
    """Batches of records as rows."""
    return [
        row
        for batch in batches
        for row in zip(batch.offsets, batch.keys, batch.values, strict=True)
    ]


def records(batches: Iterable[Records]) -> list[tuple[Key, Value]]:
    """Keys and values of batches."""
    return [row[1:] for row in rows(batches)]


def headers_of(batches: Iterable[Records]) -> list[list[tuple[str, bytes | None]]]:
    """The headers of each record."""
    return [list(headers) for batch in batches for headers in batch.headers]


def numbered(count: int, *, start: int = 0) -> list[tuple[Key, Value]]:
    """Input records that can be told apart."""
    return [(b"k%d" % (i % 7), b"record %d" % i) for i in range(start, start + count)]


async def interrupt(task: asyncio.Task[T], turns: int) -> T | None:
    """Cancel a step after some turns of the loop; return its result if it was faster."""
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except (asyncio.CancelledError, TransportLost):
        return None


async def expect_durable(room: Room, commits: list[Commit], worker: RoomWorker) -> None:
    """Expect a new owner and readers to find these commits, and nothing else."""
    taken = await worker.transport.take(room.at())
    room.expect("state", expected=fold(commits), got=dict(taken.state))
    actions, ledger = await room.published()
    lines = [record for commit in commits for record in commit.ledger]
    room.expect("ledger", expected=lines, got=pairs(ledger))
    room.expect("rising ledger offsets", expected=True, got=_rising([r.offset for r in ledger]))
    room.expect("rising action offsets", expected=True, got=_rising([r.offset for r in actions]))
    sent = [record for commit in commits for record in commit.actions]
    room.expect("actions in force", expected=dict(sent), got=dict(pairs(actions)))
    newest = lines[-1][1] if lines else None
    room.expect("last ledger line", expected=newest, got=taken.last_ledger_line)


def _rising(offsets: list[int]) -> bool:
    return all(a < b for a, b in pairwise(offsets))
