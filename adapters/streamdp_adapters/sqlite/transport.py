"""The SQLite transport: one worker on a pair of files.

The steps of a commit:

1. in one transaction of the trusted file: check the owner, write the state and the position, and
   append the actions and ledger lines;
2. in one transaction of the published file: copy the rows that it lacks (`pairing`).

WAL does not commit two files as one, so a crash may come between the two: then the next take copies
before anything else. So does the next `join`, for every stream in the file: whoever looks what
others have charged, and charges the same records, must find these lines, and a stream that is back
under its old name must not publish them later (P11). Where the published file is ahead for any
stream in the file, nobody takes the partitions that it read. The steps at which a test may crash
it:

        take: fenced         earlier owners are fenced
        take: copied         the published file has what earlier owners recorded
        commit: begun        nothing is done yet
        commit: recorded     the trusted file has it
        commit: published    the published file has it, the worker does not know it yet

Fencing is by number, as on a broker: the newest taker owns a partition, wherever it runs. There is
no group: a worker that joins gets every partition, and nothing is ever given back. So a second
process is refused when it joins (`lock`), and a worker that is fenced all the same hears `revoked`
at once and its next `poll` raises `Fenced`: it must end, not idle. One thread reads (`poll`,
`read`) and another writes, so that a commit in flight stops nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from streamdp.core.errors import Fenced, InvalidConfig, StateMismatch, TransportLost
from streamdp.ports import (
    Commit,
    LastKnown,
    Listener,
    LiveEntries,
    Partition,
    Reached,
    Records,
    StreamTopics,
    Taken,
    check_names,
    check_paired,
    no_fault,
)
from streamdp_adapters.sqlite import looking
from streamdp_adapters.sqlite.files import Desk, OpenFile, open_file
from streamdp_adapters.sqlite.lock import Lock, Release, locked
from streamdp_adapters.sqlite.looking import Sight
from streamdp_adapters.sqlite.pairing import FilePair, open_pair
from streamdp_adapters.sqlite.settings import INTERVAL, Settings
from streamdp_adapters.sqlite.trusted import (
    TRUSTED,
    Head,
    Ownership,
    TakenPart,
    fenced,
    missing,
)

STEPS = (
    "take: fenced",
    "take: copied",
    "poll: found",
    "commit: begun",
    "commit: recorded",
    "commit: published",
)
LARGEST_VALUE = 64 << 20  # bytes; SQLite's own limit is a billion


class SqliteTransport:
    """One worker on a pair of files."""

    def __init__(
        self, settings: Settings, *, worker: str, reached: Reached = no_fault, lock: Lock = locked
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._reached = reached
        self._lock = lock
        self._unlock: Release | None = None
        self._writing = Desk("streamdp-sqlite-write")
        self._looking = Desk("streamdp-sqlite-look")
        self._pair: FilePair | None = None
        self._looked_at: OpenFile | None = None
        self._listener: Listener | None = None
        self._topics: dict[str, StreamTopics] = {}
        self._heads: dict[Partition, Head] = {}
        self._positions: dict[Partition, int] = {}
        self._owned: dict[Partition, Ownership] = {}
        self._in_flight: dict[Partition, Ownership] = {}
        self._fenced: dict[Partition, Fenced] = {}
        self._ahead: dict[tuple[str, int], StateMismatch] = {}  # by topic and partition
        self._turn = 0

    async def join(self, streams: Sequence[StreamTopics], listener: Listener) -> None:
        """Open and lock the files, check the inputs, and assign every partition."""
        check_names(streams)
        pair = await self._writing.run(self._open)
        if self._looked_at is None:
            opening = partial(open_file, self._settings.path, TRUSTED)
            self._looked_at = await self._looking.run(opening)
        for topics in streams:
            await self._writing.run(partial(need_topics, pair, self._settings, topics))
        self._topics = {topics.stream: topics for topics in streams}
        await self._writing.run(self._copy_all)
        self._listener = listener
        self._notice(await self._look({}, 0))
        for topics in streams:
            listener.settled(topics.stream)

    def _open(self) -> FilePair:
        if self._pair is None:
            self._pair = open_pair(self._settings)
        if self._unlock is None:
            self._unlock = self._lock(self._settings.path, self._worker)
        return self._pair

    def _copy_all(self) -> None:
        """Publish what was recorded for all streams in the file, also for those that are gone.

        Where the published file is ahead for a stream, nobody can tell what was charged after the
        trusted file's last line: no stream may take the partitions that it read (`_take`). If the
        trusted file is from before its first take, nobody knows its input: then it is any.
        """
        pair, self._ahead = self._files(), {}
        for part in pair.parts():
            try:
                pair.copy(part)
            except StateMismatch as error:
                for topic in (part.topics.input, part.topics.second_input or part.topics.input):
                    self._ahead[topic, part.number] = error

    # --- taking and committing --------------------------------------------------------------

    async def take(self, partition: Partition, *, entries: LiveEntries | None = None) -> Taken:
        """Fence, publish what was recorded, and read what is durable."""
        self._forget(partition)
        topics = self._stream(partition)
        self._fenced.pop(partition, None)
        try:
            take = partial(self._take, topics, partition, entries)
            self._owned[partition], taken = await self._writing.run(take)
        except Fenced as error:
            self._lose(partition, error)
            raise
        return taken

    def _take(
        self,
        topics: StreamTopics,
        partition: Partition,
        entries: LiveEntries | None,
    ) -> tuple[Ownership, Taken]:
        pair, number = self._files(), partition.number
        for topic in ("", topics.input, topics.second_input, topics.output):
            if (topic, number) in self._ahead:
                raise StateMismatch(str(self._ahead[topic, number]))
        owner = pair.trusted.claim(topics, number, self._worker)
        self._reached("take: fenced", partition)
        pair.copy(TakenPart(topics, number, owner.part))
        self._reached("take: copied", partition)
        return owner, pair.trusted.durable(topics, number, owner=owner, entries=entries)

    async def confirm(self, partition: Partition) -> None:
        """Check in the trusted file that this process still owns the partition."""
        owner = self._owned.get(partition)
        if owner is None:
            return
        topics = self._stream(partition)
        try:
            await self._writing.run(
                lambda: self._files().trusted.confirm(topics, partition.number, owner)
            )
        except Fenced as error:
            self._lose(partition, error)
            raise

    async def newest_list(self, stream: str) -> bytes | None:
        """The stream's list, as the trusted file has it."""
        topics = self._topics[stream]
        return await self._looking.run(partial(looking.newest_list, self._file(), topics))

    async def commit(self, partition: Partition, commit: Commit) -> None:
        """Record, then publish; after any failure the partition has to be taken again."""
        topics = self._stream(partition)
        check_sizes(partition, commit)
        owner = self._owned.pop(partition, None)
        if owner is None:
            raise TransportLost(
                f"{partition}",
                "commit refused",
                expected="a partition that was taken",
                got="one that was lost or never taken",
            )
        self._in_flight[partition] = owner
        try:
            await self._writing.run(partial(self._commit, topics, partition, owner, commit))
        except Fenced as error:
            self._lose(partition, error)
            raise
        except BaseException:
            self._in_flight.pop(partition, None)
            raise
        if self._in_flight.pop(partition, None) is owner:  # not left or taken in the meantime
            self._owned[partition] = owner

    def _commit(
        self, topics: StreamTopics, partition: Partition, owner: Ownership, commit: Commit
    ) -> None:
        pair = self._files()
        self._reached("commit: begun", partition)
        pair.trusted.record(topics, partition.number, owner, commit, retain=self._settings.retain)
        self._reached("commit: recorded", partition)
        if commit.actions or commit.ledger:
            pair.copy(TakenPart(topics, partition.number, owner.part))
            self._reached("commit: published", partition)

    # --- input ------------------------------------------------------------------------------

    async def read(self, partition: Partition, start: int, stop: int) -> AsyncIterator[Records]:
        """The input again, batch by batch."""
        topics = self._stream(partition)
        look = partial(looking.stretch, self._file(), topics, partition)
        while True:
            records = await self._looking.run(partial(look, start, stop))
            if not records:
                return
            yield records
            start = records.next_offset

    async def end_now(self, partition: Partition) -> int:
        """The end of the first input."""
        topics = self._stream(partition)
        return (await self._looking.run(partial(looking.heads, self._file(), topics)))[
            partition
        ].next

    async def stop_second_input(self, partition: Partition, start: int, *, timestamp: int) -> int:
        """The offset at which the second input is no longer older than this."""
        topics = self._stream(partition)
        look = partial(looking.since, self._file(), topics, partition.number, start, timestamp)
        return await self._looking.run(look)

    async def read_second_input(
        self, partition: Partition, start: int, stop: int
    ) -> AsyncIterator[Records]:
        """The second input, batch by batch."""
        topics = self._stream(partition)
        topics = replace(topics, input=topics.second_input, headers=True)
        look = partial(looking.stretch, self._file(), topics, partition, every=False)
        while start < stop:
            records = await self._looking.run(partial(look, start, stop))
            if records.next_offset <= start:
                return
            yield records
            start = records.next_offset

    def resume(self, partition: Partition, offset: int) -> None:
        """Deliver from `offset` on."""
        self._stream(partition)
        self._positions[partition] = offset

    def pause(self, partition: Partition) -> None:
        """Stop delivering."""
        self._positions.pop(partition, None)

    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        """New records, the partitions in turn; look at the file again while there are none."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        while True:
            asked = self._in_turn()
            batches = self._deliver(asked, await self._look(asked, max_records))
            left = deadline - clock()
            if batches or left <= 0:
                return batches
            await asyncio.sleep(min(INTERVAL, left))

    def _in_turn(self) -> dict[Partition, int]:
        """The positions, starting with another partition each time."""
        partitions = sorted(self._positions)
        self._turn += 1
        turn = self._turn % max(1, len(partitions))
        return {p: self._positions[p] for p in partitions[turn:] + partitions[:turn]}

    async def _look(self, positions: dict[Partition, int], limit: int) -> Sight:
        streams = tuple(self._topics.values())
        return await self._looking.run(
            partial(looking.look, self._file(), streams, positions, limit)
        )

    def _deliver(self, asked: dict[Partition, int], sight: Sight) -> list[Records]:
        """The records of partitions that are still resumed; runs in the caller's step."""
        self._notice(sight)
        for fencing in self._fenced.values():
            raise Fenced(str(fencing))
        unchanged = {p for p, offset in asked.items() if self._positions.get(p) == offset}
        for partition, error in sight.gone:
            if partition in unchanged and self._listener is not None:
                self.pause(partition)
                self._listener.failed(partition, error)
        batches = [records for records in sight.records if records.partition in unchanged]
        for records in batches:
            self._reached("poll: found", records.partition)
        self._positions.update((records.partition, records.next_offset) for records in batches)
        return batches

    def _notice(self, sight: Sight) -> None:
        """Announce new partitions, and those that another worker has taken."""
        new = sorted(set(sight.heads) - set(self._heads))
        self._heads.update(sight.heads)
        if new and self._listener is not None:
            self._listener.assigned(new)
        for partition, owner in [*self._owned.items(), *self._in_flight.items()]:
            now = sight.owners.get(partition)
            if now is not None and now.number > owner.number:
                self._lose(partition, fenced(f"{partition}", was=owner, now=now))

    # --- lag and limits ---------------------------------------------------------------------

    def largest_value(self, stream: str) -> int:
        """The most bytes that one value of a commit may have."""
        return LARGEST_VALUE

    def last_known(self, partition: Partition) -> LastKnown:
        """By the newest look; the group's offset is known once a partition is taken."""
        head = self._heads.get(partition)
        if head is None:
            return LastKnown(retain=self._settings.retain)
        return LastKnown(head.first, head.next, retain=self._settings.retain)

    def missing(self) -> Mapping[str, str]:
        """None: an input is never deleted here."""
        return {}

    async def leave(self, partition: Partition) -> None:
        """Leave one partition."""
        self._forget(partition)

    async def close(self) -> None:
        """Close everything within a bounded time; finish work that has begun."""
        for partition in {*self._owned, *self._in_flight, *self._positions}:
            self._forget(partition)
        await self._looking.close(lambda: self._looked_at.close() if self._looked_at else None)
        await self._writing.close(self._give_up)

    def _give_up(self) -> None:
        """Close the files, and release the lock."""
        if self._pair is not None:
            self._pair.close()
        if self._unlock is not None:
            self._unlock()

    def _lose(self, partition: Partition, error: Fenced) -> None:
        """Note that another worker has the partition; the next poll reports it."""
        self._forget(partition)
        self._fenced[partition] = error
        if self._listener is not None:
            self._listener.revoked([partition])

    def _forget(self, partition: Partition) -> None:
        self._owned.pop(partition, None)
        self._in_flight.pop(partition, None)
        self._positions.pop(partition, None)

    def _file(self) -> OpenFile:
        """The trusted file, as it is looked at while commits go on."""
        if self._looked_at is None:
            raise _not_joined()
        return self._looked_at

    def _files(self) -> FilePair:
        if self._pair is None:
            raise _not_joined()
        return self._pair

    def _stream(self, partition: Partition) -> StreamTopics:
        if partition.stream not in self._topics:
            raise InvalidConfig(
                f"{partition}",
                "unknown stream",
                expected=sorted(self._topics),
                got=partition.stream,
            )
        return self._topics[partition.stream]


def need_topics(pair: FilePair, settings: Settings, topics: StreamTopics) -> None:
    """Create the missing topics of a stream, or refuse if that is not allowed."""
    names = [name for name in (topics.input, topics.second_input, topics.output) if name]
    counts = {name: need_input(pair, settings, name) for name in names}
    if len(names) > 1:
        check_paired(topics, counts)


def need_input(pair: FilePair, settings: Settings, topic: str) -> int:
    """The partitions of an input; create or refuse a missing one."""
    there = len(pair.trusted.heads(topic))
    if there:
        return there
    if settings.partitions < 1:
        raise missing(topic)
    pair.trusted.create(topic, settings.partitions)
    return settings.partitions


def check_sizes(partition: Partition, commit: Commit) -> None:
    """Refuse a value that is too large, before anything is done."""
    written = [(key, value) for key, value, _ in commit.records]
    for records in (commit.state, commit.actions, commit.ledger, written):
        for _, value in records:
            if value is not None and len(value) > LARGEST_VALUE:
                raise InvalidConfig(
                    f"{partition}: commit",
                    "a value is too large",
                    expected=f"≤ {LARGEST_VALUE} bytes",
                    got=len(value),
                )


def _not_joined() -> TransportLost:
    return TransportLost(
        "sqlite", "not joined", expected="`join` first", got="another call before it"
    )
