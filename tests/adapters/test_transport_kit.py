"""Would the conformance kit notice? Transports that break one promise each, and are caught."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from streamdp.ports import (
    Administrator,
    Commit,
    Key,
    LastCommit,
    LiveEntries,
    Partition,
    Publications,
    Published,
    Records,
    StaticMembership,
    StreamTopics,
    Taken,
    Transport,
    Value,
)
from streamdp.testing import transport_room
from streamdp.testing.memory import (
    MemoryAdministrator,
    MemoryPublications,
    MemoryTechnology,
    MemoryTransport,
)
from streamdp.testing.memory_log import Attempt, Isolation, MemoryLog
from streamdp.testing.transport import CHECKS, PAIRED_CHECKS, Broken


class UnfencedLog(MemoryLog):
    def check_owner(self, topics: StreamTopics, number: int, epoch: int) -> None:
        return


class SharedStateLog(MemoryLog):
    """Keeps the state of all partitions in one place."""

    def state(self, topics: StreamTopics, number: int) -> dict[bytes, bytes]:
        return super().state(topics, 0)

    def decide(self, attempt: Attempt) -> None:
        attempt.partition = Partition(attempt.partition.stream, 0)
        super().decide(attempt)


class ForgetfulLog(MemoryLog):
    """Does not remember the group's position."""

    def position(self, topics: StreamTopics, number: int) -> int | None:
        return None


class StateFirst(MemoryTransport):
    """Makes the state durable in one step and publishes in another."""

    async def commit(self, partition: Partition, commit: Commit) -> None:
        await super().commit(partition, replace(commit, actions=(), ledger=()))
        await super().commit(partition, replace(commit, state=()))


class DeafToTombstones(MemoryTransport):
    async def commit(self, partition: Partition, commit: Commit) -> None:
        kept = [(key, value) for key, value in commit.state if value is not None]
        await super().commit(partition, replace(commit, state=kept))


class GoesOnAfterLoss(MemoryTransport):
    """Takes an unknown outcome for a failure and keeps the partition."""

    async def commit(self, partition: Partition, commit: Commit) -> None:
        epoch = self._owned.get(partition)
        try:
            await super().commit(partition, commit)
        except asyncio.CancelledError:
            if epoch is not None:
                self._owned[partition] = epoch
            raise


class ReadsBeforeFencing(MemoryTransport):
    async def take(self, partition: Partition, *, entries: LiveEntries | None = None) -> Taken:
        stale = self._log.state(self._stream(partition), partition.number)
        for _ in range(20):
            await asyncio.sleep(0)
        return replace(await super().take(partition), state=stale)


class AlwaysOwns(MemoryTransport):
    """Believes that what it has taken is its own for ever."""

    async def confirm(self, partition: Partition) -> None:
        return


class LooksTwice(MemoryAdministrator):
    """Looks at the ledger some time after the state."""

    async def peek(
        self, stream: StreamTopics, partition: int, *, entries: LiveEntries | None = None
    ) -> Taken:
        seen = await super().peek(stream, partition, entries=entries)
        for _ in range(20):
            await asyncio.sleep(0)
        later = await super().peek(stream, partition)
        return replace(seen, last_ledger_line=later.last_ledger_line)


class LooksAhead(MemoryAdministrator):
    """Looks at the ledger some time before the state, and not again."""

    async def peek(
        self, stream: StreamTopics, partition: int, *, entries: LiveEntries | None = None
    ) -> Taken:
        earlier = await super().peek(stream, partition)
        for _ in range(20):
            await asyncio.sleep(0)
        seen = await super().peek(stream, partition, entries=entries)
        return replace(seen, last_ledger_line=earlier.last_ledger_line)


class NeverLeaves(MemoryTransport):
    async def leave(self, partition: Partition) -> None:
        return


class NeverSettles(MemoryTransport):
    """Does not say that everything was announced."""

    def settled(self, stream: str) -> None:
        return


class AdvancesEarly(MemoryTransport):
    """Moves its position before it can be sure that the caller gets the records."""

    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        batches = await super().poll(max_records=max_records, timeout=timeout)
        await asyncio.sleep(0)
        return batches


class Boundless(MemoryTransport):
    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        return await super().poll(max_records=10 * max_records, timeout=timeout)


class Stutters(MemoryTransport):
    """Delivers the last record of a poll again."""

    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        batches = await super().poll(max_records=max_records, timeout=timeout)
        for records in batches:
            self.resume(records.partition, max(records.offsets[-1], 1))
        return batches


class EmptiesTombstones(MemoryTransport):
    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        batches = await super().poll(max_records=max_records, timeout=timeout)
        return [replace(r, values=[value or b"" for value in r.values]) for r in batches]


class ReadsOneMore(MemoryTransport):
    def read(self, partition: Partition, start: int, stop: int) -> AsyncIterator[Records]:
        return super().read(partition, start, stop + 1)


class ReadsUncommitted(MemoryPublications):
    def ledger(
        self, stream: StreamTopics, *, follow: bool, newest: int | None = None
    ) -> AsyncIterator[Sequence[Published]]:
        return self._all(stream)

    async def _all(self, stream: StreamTopics) -> AsyncIterator[Sequence[Published]]:
        yield self._log.ledger(stream, Isolation.UNCOMMITTED)


class BeginsEarly(MemoryPublications):
    """Reads a long ledger from its beginning, however little of it is asked for."""

    def ledger(
        self, stream: StreamTopics, *, follow: bool, newest: int | None = None
    ) -> AsyncIterator[Sequence[Published]]:
        return super().ledger(stream, follow=follow)


class KnowsTheConfigured(MemoryPublications):
    """Lists one ledger alone, as if no stream had ever been renamed."""

    async def ledgers(self, app: str) -> Sequence[StreamTopics]:
        return [topics for topics in await super().ledgers(app) if topics.stream == "home"]


class RemembersTooLittle(MemoryAdministrator):
    """Leaves out the newest batch of each partition."""

    async def history(
        self, stream: StreamTopics, *, after: Mapping[int, int]
    ) -> AsyncIterator[Records]:
        before: Records | None = None
        async for records in super().history(stream, after=after):
            if before is not None and before.partition == records.partition:
                yield before
            before = records


class RemembersTooMuch(MemoryAdministrator):
    """Begins at the beginning, wherever it should."""

    def history(self, stream: StreamTopics, *, after: Mapping[int, int]) -> AsyncIterator[Records]:
        return super().history(stream, after={})


class ShowsTheMarkAlone(MemoryAdministrator):
    """Says that there was a commit, and not what it has recorded."""

    async def last_commits(
        self, stream: StreamTopics, *, marks: Callable[[int], Collection[bytes]]
    ) -> AsyncIterator[LastCommit]:
        async for commit in super().last_commits(stream, marks=marks):
            (key,) = marks(commit.partition)
            yield replace(commit, state={key: commit.state[key]})


class RevisesNothing(MemoryAdministrator):
    """Forgets the stream's list."""

    async def revise(self, stream: StreamTopics, change: Callable[[bytes | None], bytes]) -> bytes:
        return change(None)


class RevisesLate(MemoryAdministrator):
    """Reads the list, and writes the next one later: two at once lose one."""

    async def revise(self, stream: StreamTopics, change: Callable[[bytes | None], bytes]) -> bytes:
        before = list(self._log.published(stream.catalogue, 0, start=0))
        line = change(before[-1].value if before else None)
        await asyncio.sleep(0)
        return self._log.revise(stream, lambda _: line)


class ScattersKeys(MemoryLog):
    def append(self, topic: str, records: Sequence[tuple[Key, Value]], **how: Any) -> None:
        for at, record in enumerate(records):
            home = at % self.partitions(topic) if how.get("partition") is None else how["partition"]
            super().append(topic, [record], partition=home)


class ForgetsHeaders(MemoryLog):
    """Keeps records as they come, without their headers."""

    def append(self, topic: str, records: Sequence[tuple[Key, Value]], **how: Any) -> None:
        super().append(topic, records, partition=how.get("partition"))


class GivesHeadersToAll(MemoryLog):
    """Does not look whether a stream has asked."""

    def batch(
        self, topics: StreamTopics, number: int, start: int, stop: int, limit: int
    ) -> Records:
        return super().batch(replace(topics, headers=True), number, start, stop, limit)


class WritesFirst(MemoryTransport):
    """Writes to the output in one step and moves its positions in another."""

    async def commit(self, partition: Partition, commit: Commit) -> None:
        await super().commit(partition, Commit(next_offset=0, state=(), records=commit.records))
        await super().commit(partition, replace(commit, records=()))


class WritesAtOnce(MemoryTransport):
    """Lets what an attempt writes be seen before it counts."""

    async def commit(self, partition: Partition, commit: Commit) -> None:
        written = [(key, value) for key, value, _ in commit.records]
        headers = [pairs for _, _, pairs in commit.records]
        output = self._stream(partition).output
        self._log.append(output, written, headers=headers, partition=partition.number)
        await super().commit(partition, replace(commit, records=()))


class WritesElsewhere(MemoryLog):
    """Writes where the key belongs, not where the unit of work is."""

    def decide(self, attempt: Attempt) -> None:
        for key, value, headers in attempt.commit.records:
            self.append(attempt.topics.output, [(key, value)], headers=[headers])
        attempt.commit = replace(attempt.commit, records=())
        super().decide(attempt)


class StopsShort(MemoryTransport):
    """Takes the moment itself for older than itself."""

    async def stop_second_input(self, partition: Partition, start: int, *, timestamp: int) -> int:
        return await super().stop_second_input(partition, start, timestamp=timestamp - 1)


class ReadsOneLess(MemoryTransport):
    def read_second_input(
        self, partition: Partition, start: int, stop: int
    ) -> AsyncIterator[Records]:
        return super().read_second_input(partition, start, stop - 1)


class PairsAnything(MemoryLog):
    """Every topic seems to have as many partitions as are asked for."""

    def partitions(self, topic: str) -> int:
        return 2


class Bent:
    """The memory technology with one of its parts exchanged."""

    def __init__(
        self,
        *,
        log: type[MemoryLog] = MemoryLog,
        transport: type[MemoryTransport] = MemoryTransport,
        publications: type[MemoryPublications] = MemoryPublications,
        administrator: type[MemoryAdministrator] = MemoryAdministrator,
    ) -> None:
        self.parts = log, transport, publications, administrator

    def __call__(self, app: str) -> MemoryTechnology:
        log, transport, publications, administrator = self.parts

        class BentMemory(MemoryTechnology):
            def transport(
                self,
                *,
                worker: str,
                static_membership: StaticMembership = StaticMembership.STRANGERS,
            ) -> Transport:
                return transport(self.log, worker=worker)

            def publications(self) -> Publications:
                return publications(self.log)

            def administrator(self) -> Administrator:
                return administrator(self.log)

        return BentMemory(log())


@pytest.mark.parametrize(
    ("bent", "number"),
    [
        (Bent(log=UnfencedLog), 14),
        (Bent(log=SharedStateLog), 19),
        (Bent(log=ForgetfulLog), 11),
        (Bent(log=ScattersKeys), 23),
        (Bent(transport=StateFirst), 16),
        (Bent(transport=DeafToTombstones), 10),
        (Bent(transport=GoesOnAfterLoss), 17),
        (Bent(transport=ReadsBeforeFencing), 18),
        (Bent(transport=NeverLeaves), 15),
        (Bent(transport=NeverSettles), 2),
        (Bent(transport=AdvancesEarly), 6),
        (Bent(transport=Boundless), 5),
        (Bent(transport=Stutters), 4),
        (Bent(transport=EmptiesTombstones), 4),
        (Bent(transport=ReadsOneMore), 8),
        (Bent(publications=ReadsUncommitted), 16),
        (Bent(publications=BeginsEarly), 31),
        (Bent(administrator=RemembersTooLittle), 30),
        (Bent(administrator=RemembersTooMuch), 30),
        (Bent(log=ForgetsHeaders), 32),
        (Bent(log=GivesHeadersToAll), 33),
        (Bent(transport=AlwaysOwns), 35),
        (Bent(administrator=LooksTwice), 36),
        (Bent(administrator=LooksAhead), 36),
        (Bent(publications=KnowsTheConfigured), 37),
        (Bent(administrator=ShowsTheMarkAlone), 38),
        (Bent(administrator=RevisesNothing), 39),
        (Bent(administrator=RevisesLate), 39),
        (Bent(log=PairsAnything), 61),
        (Bent(transport=ReadsOneLess), 62),
        (Bent(transport=StopsShort), 63),
        (Bent(log=WritesElsewhere), 64),
        (Bent(transport=WritesFirst), 65),
        (Bent(transport=WritesAtOnce), 66),
    ],
    ids=lambda value: (
        "-".join(p.__name__ for p in value.parts) if isinstance(value, Bent) else str(value)
    ),
)
def test_a_broken_promise_is_named(
    bent: Bent, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_room, "QUIET", 0.2)  # a record that is lost never comes
    (check,) = [check for check in (*CHECKS, *PAIRED_CHECKS) if check.number == number]
    with pytest.raises(Broken, match=f"^promise {number:02d}"):
        asyncio.run(check.run(bent))
