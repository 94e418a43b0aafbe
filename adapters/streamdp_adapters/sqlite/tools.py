"""Readers, producers and the administrator's tools, beside the transport."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import partial

from streamdp.core.errors import InvalidConfig, StateMismatch, StreamdpError, counted
from streamdp.ports import (
    Finding,
    Headers,
    Key,
    LastCommit,
    LiveEntries,
    Published,
    Records,
    StreamTopics,
    Taken,
    Value,
    Verdict,
    check_bytes,
)
from streamdp_adapters.sqlite import looking, published
from streamdp_adapters.sqlite.files import Desk, OpenFile, at_desk, need, open_file, open_to_read
from streamdp_adapters.sqlite.pairing import FilePair, open_pair
from streamdp_adapters.sqlite.published import ACTIONS, LEDGER, PUBLISHED
from streamdp_adapters.sqlite.settings import INTERVAL, Settings
from streamdp_adapters.sqlite.transport import need_input
from streamdp_adapters.sqlite.trusted import TRUSTED

LITTLE_ROOM = 1 << 30  # bytes of free disk below which a check warns


class SqlitePublications:
    """Reads the published file; needs nothing else, and no right to write."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.published
        self.desk = Desk("streamdp-sqlite-read")
        self._opened: OpenFile | None = None

    def actions(self, stream: StreamTopics, *, follow: bool) -> AsyncIterator[Sequence[Published]]:
        """Every action record that is kept."""
        return self._records(ACTIONS, stream, follow=follow)

    def catalogue(
        self, stream: StreamTopics, *, follow: bool
    ) -> AsyncIterator[Sequence[Published]]:
        """The stream's list."""
        return self._records(ACTIONS, stream, follow=follow, lists=True)

    def ledger(
        self, stream: StreamTopics, *, follow: bool, newest: int | None = None
    ) -> AsyncIterator[Sequence[Published]]:
        """Every ledger record, or the newest."""
        return self._records(LEDGER, stream, follow=follow, newest=newest)

    async def _records(
        self,
        table: str,
        stream: StreamTopics,
        *,
        follow: bool,
        newest: int | None = None,
        lists: bool = False,
    ) -> AsyncIterator[Sequence[Published]]:
        starts = {} if newest is None else await self._late(stream, newest)
        while pages := await self._pages(table, stream, starts, lists=lists):
            for page in pages:
                yield page
        if not follow:
            return
        yield ()
        while True:
            for page in await self._pages(table, stream, starts, lists=lists):
                yield page
            await asyncio.sleep(INTERVAL)

    @at_desk
    def ledgers(self, app: str) -> Sequence[StreamTopics]:
        """The ledgers of all applications in this file."""
        return published.streams(self._file())

    @at_desk
    def _late(self, stream: StreamTopics, newest: int) -> dict[int, int]:
        return published.late(self._file(), stream, newest)

    @at_desk
    def _pages(
        self, table: str, stream: StreamTopics, starts: dict[int, int], *, lists: bool
    ) -> list[list[Published]]:
        return published.pages(self._file(), table, stream, starts, lists=lists)

    def _file(self) -> OpenFile:
        if self._opened is None:
            self._opened = open_to_read(self._path, PUBLISHED)
        return self._opened

    async def close(self) -> None:
        """Close the file."""
        await self.desk.close(lambda: self._opened.close() if self._opened else None)


class SqliteProducer:
    """Appends input records, each batch in one transaction."""

    def __init__(self, settings: Settings, *, kept: int | None = None) -> None:
        self._settings = settings
        self._kept = kept  # of the newest records of each partition
        self.desk = Desk("streamdp-sqlite-send")
        self._pair: FilePair | None = None

    @at_desk
    def send(
        self,
        topic: str,
        records: Sequence[tuple[Key, Value]],
        *,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> None:
        """Append all records or, if it raises, none."""
        check_bytes(topic, records, headers)
        if self._pair is None:
            self._pair = open_pair(self._settings)
        need_input(self._pair, self._settings, topic)
        self._pair.trusted.append(topic, records, partition, headers=headers, kept=self._kept)

    async def close(self) -> None:
        """Finish what has begun and close the files."""
        await self.desk.close(lambda: self._pair.close() if self._pair else None)


class SqliteAdministrator:
    """Creates the files and inputs, checks them, and inspects them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.desk = Desk("streamdp-sqlite-admin")
        self._pair: FilePair | None = None

    @at_desk
    def create(self, streams: Sequence[StreamTopics], *, partitions: int) -> Sequence[Finding]:
        """Create missing inputs and quarantines."""
        if partitions < 1:
            raise InvalidConfig("partitions", "too few", expected="≥ 1", got=partitions)
        there = {name: len(self._files().trusted.heads(name)) for name in _names(streams)}
        made = self._grow([name for name in there if not there[name]], partitions)
        kept = [
            Finding(f"topic {name}", Verdict.GOOD, counted(count, "partition"))
            for name, count in there.items()
            if count
        ]
        return made + kept

    async def mend(self, streams: Sequence[StreamTopics]) -> Sequence[Finding]:
        """Nothing to correct: no setting of a file makes take-overs slow."""
        return await self.check(streams)

    @at_desk
    def expand(self, streams: Sequence[StreamTopics], *, partitions: int) -> Sequence[Finding]:
        """Give the inputs more partitions; never fewer."""
        return self._grow(_names(streams), partitions)

    def _grow(self, names: Sequence[str], partitions: int) -> list[Finding]:
        findings = []
        for topic in names:
            before = self._files().trusted.create(topic, partitions)
            verdict = Verdict.CHANGED if before < partitions else Verdict.GOOD
            findings.append(
                Finding(f"topic {topic}", verdict, counted(max(before, partitions), "partition"))
            )
        return findings

    @at_desk
    def check(self, streams: Sequence[StreamTopics]) -> Sequence[Finding]:
        """Check that the inputs exist and the disk has room; create nothing."""
        for path in (self._settings.path, self._settings.published):
            if not path.exists():
                return [Finding(f"{path}", Verdict.PROBLEM, "there is no such file: create it")]
        free = shutil.disk_usage(self._settings.path.absolute().parent).free
        verdict = Verdict.GOOD if free >= LITTLE_ROOM else Verdict.WARNING
        findings = [Finding(f"{self._settings.path}: disk", verdict, f"{free >> 20} MiB free")]
        for topic in _names(streams):
            there = len(self._files().trusted.heads(topic))
            findings.append(
                Finding(
                    f"topic {topic}",
                    Verdict.GOOD if there else Verdict.PROBLEM,
                    counted(there, "partition") if there else "missing: create it",
                )
            )
        return findings

    def commands(self, streams: Sequence[StreamTopics], *, partitions: int) -> str:
        """A comment: there are no commands of another tool, streamdp creates its own files."""
        return f"# SQLite: `streamdp topics create` makes {self._settings.path} and what is in it"

    @at_desk
    def probe(
        self, streams: Sequence[StreamTopics], *, written: Sequence[str] = ()
    ) -> Sequence[Finding]:
        """Whether both files can be opened, written to and trusted."""
        findings = []
        for path, kind in ((self._settings.path, TRUSTED), (self._settings.published, PUBLISHED)):
            if not path.exists():
                writable = os.access(path.absolute().parent, os.W_OK)
                verdict = Verdict.WARNING if writable else Verdict.PROBLEM
                findings.append(Finding(f"{path}", verdict, "not made yet"))
                continue
            try:
                open_file(path, kind).close()
            except StreamdpError as error:
                findings.append(Finding(f"{path}", Verdict.PROBLEM, str(error)))
            else:
                findings.append(Finding(f"{path}", Verdict.GOOD, kind.name))
        if {finding.verdict for finding in findings} == {Verdict.GOOD}:
            pair = self._files()
            for part in pair.parts():
                try:
                    pair.check(part)
                except StateMismatch as error:
                    subject = f"partition {part.topics.stream}/{part.number}"
                    findings.append(Finding(subject, Verdict.PROBLEM, str(error)))
        return findings

    @at_desk
    def revise(self, stream: StreamTopics, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace the stream's list, in one transaction."""
        pair = self._to_look_into()
        part, line = pair.trusted.revise(stream, change)
        pair.copy(part)
        return line

    @at_desk
    def peek(
        self, stream: StreamTopics, partition: int, *, entries: LiveEntries | None = None
    ) -> Taken:
        """Read a partition's durable state without fencing its owner."""
        return self._to_look_into().trusted.durable(stream, partition, entries=entries)

    async def last_commits(
        self, stream: StreamTopics, *, marks: Callable[[int], Collection[bytes]]
    ) -> AsyncIterator[LastCommit]:
        """The whole state, and the ledger lines that are not published yet."""
        for number in await self._partitions(stream):
            yield await self._last_commit(stream, number)

    @at_desk
    def _partitions(self, stream: StreamTopics) -> list[int]:
        return self._to_look_into().trusted.partitions(stream)

    @at_desk
    def _last_commit(self, stream: StreamTopics, number: int) -> LastCommit:
        pair = self._to_look_into()
        published = pair.last_published(stream, number)
        return pair.trusted.last_commit(stream, number, published=published)

    @at_desk
    def newest(self, stream: StreamTopics, *, count: int) -> Sequence[Records]:
        """The last records of each partition. NOT PRIVATE."""
        return looking.newest(self._to_look_into().trusted.file, stream, count)

    async def history(
        self, stream: StreamTopics, *, after: Mapping[int, int]
    ) -> AsyncIterator[Records]:
        """The whole input, batch by batch, from the trusted file alone. NOT PRIVATE."""
        need(self._settings.path, TRUSTED)
        file = await self.desk.run(partial(open_file, self._settings.path, TRUSTED))
        try:
            heads = await self.desk.run(partial(looking.heads, file, stream))
            for partition, head in sorted(heads.items()):
                start = max(head.first, after.get(partition.number, 0))
                look = partial(looking.stretch, file, stream, partition)
                while start < head.next:
                    records = await self.desk.run(partial(look, start, head.next))
                    if not records:
                        break
                    yield records
                    start = records.next_offset
        finally:
            await self.desk.run(file.close)

    def _files(self) -> FilePair:
        if self._pair is None:
            self._pair = open_pair(self._settings)
        return self._pair

    def _to_look_into(self) -> FilePair:
        need(self._settings.path, TRUSTED)
        need(self._settings.published, PUBLISHED)
        return self._files()

    async def close(self) -> None:
        """Close the files."""
        await self.desk.close(lambda: self._pair.close() if self._pair else None)


def _names(streams: Sequence[StreamTopics]) -> list[str]:
    """The topics in the trusted file: inputs and quarantines."""
    inputs = [topics.input for topics in streams]
    paired = [name for topics in streams for name in (topics.second_input, topics.output) if name]
    aside = [topics.quarantine for topics in streams if topics.quarantined]
    return list(dict.fromkeys(inputs + paired + aside))
