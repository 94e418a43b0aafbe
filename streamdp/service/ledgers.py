"""Finds and reads every ledger that may have charged a configuration's inputs.

A stream that is no longer configured charges nothing from now on, so its ledger is read once by a
process, unless its state was gone or could not be read. Ledgers of running streams are read each
time they are needed: when a partition begins, or an earlier epoch may have charged more. The list
of ledgers is fetched each time too, but at most once in `_FRESH_SECONDS`, since a process takes all
its partitions together. With the ledger of a stream that may have charged more than it does now
goes what its newest commits have recorded; that is fetched first, because what is published in
between leaves the one and enters the other.

A stream's own ledger is read if its state is lost, for its input's id, and for a pair's budget
(`charges_by_others`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from streamdp.core.errors import InvalidConfig
from streamdp.ports import StreamTopics, Technology, closing
from streamdp.service.charges_by_others import (
    ChargesByLedgers,
    ChargesByOthers,
    RecordedLines,
    Scope,
    Tally,
    recorded_lines,
)
from streamdp.service.config import Configuration
from streamdp.service.event_log import EventLog
from streamdp.wire.entries import checkpoints

_FRESH_SECONDS = 10.0


class Ledgers:
    """Answers what other streams have charged, for the streams of one configuration."""

    def __init__(
        self,
        configuration: Configuration,
        technology: Technology,
        *,
        clock: Callable[[], float] = time.monotonic,
        log: EventLog | None = None,
    ) -> None:
        self._configuration = configuration
        self._technology = technology
        self._clock = clock
        self._log = log
        self._turn = asyncio.Lock()
        self._listed: tuple[float, Sequence[StreamTopics]] | None = None
        self._read: dict[str, tuple[float, Tally]] = {}
        self._ledger_alone: set[str] = set()

    async def by_others(self, name: str, scope: Scope) -> ChargesByOthers:
        """The charges of all others on the input of this stream or assembly."""
        charges, tables = ChargesByLedgers(self._configuration), self._configuration.tables
        stream = tables.streams.get(name)
        everybody = stream is not None and scope is not Scope.EARLIER
        async with self._turn:
            own: StreamTopics | None = None
            for topics in await self._list():
                if topics.ledger == f"{self._configuration.app}.{name}.ledger":
                    own = topics
                elif (
                    everybody
                    or topics.stream in tables.assemblies
                    or self._may_have_charged_more(topics)
                ):
                    charges.add(await self._tally(topics))
            if own is not None and stream is not None:
                more = self._may_have_charged_more(own) and charges.concerns(stream.input)
                if scope is Scope.LOST or more:
                    charges.add(await self._tally(own))
        return charges.by_others(name)

    async def retired(self) -> list[StreamTopics]:
        """Every ledger that belongs to no configured stream."""
        async with self._turn:
            return [topics for topics in await self._list() if self._is_retired(topics)]

    @property
    def without_state(self) -> list[str]:
        """The ledgers read so far whose stream's state is gone or may not be read.

        What these streams have recorded and not published is not known.
        """
        return sorted(self._ledger_alone)

    def _may_have_charged_more(self, topics: StreamTopics) -> bool:
        """Whether a ledger may hold charges above what its stream is configured to charge now.

        A former stream charges nothing now. A stream that has had an earlier epoch may have been
        lowered since. In its first epoch a stream has charged what its configuration says.
        """
        if self._is_retired(topics):
            return True
        if topics.stream in self._configuration.tables.assemblies:
            return False  # an assembly charges nothing by itself
        table = self._configuration.streams[topics.stream].table
        return max(table.epoch, *table.partition_epochs.values(), 1) > 1

    def _is_retired(self, topics: StreamTopics) -> bool:
        known = (*self._configuration.topics(), *self._configuration.assembly_topics())
        return topics.ledger not in {configured.ledger for configured in known}

    async def _list(self) -> Sequence[StreamTopics]:
        if self._listed is None or self._clock() - self._listed[0] > _FRESH_SECONDS:
            async with closing(self._technology.publications()) as publications:
                ledgers = await publications.ledgers(self._configuration.app)
            self._listed = self._clock(), ledgers
        return self._listed[1]

    async def _tally(self, topics: StreamTopics) -> Tally:
        """Read one ledger through, and what is recorded for it."""
        at, tally = self._read.get(topics.ledger, (0.0, None))
        lasts = self._is_retired(topics) and topics.ledger not in self._ledger_alone
        fresh = lasts or self._clock() - at < _FRESH_SECONDS
        if tally is not None and fresh:
            return tally
        recorded = await self._recorded(topics) if self._may_have_charged_more(topics) else None
        tally = Tally(topics)
        async with closing(self._technology.publications()) as publications:
            async for batch in publications.ledger(topics, follow=False):
                tally.read(batch)
                await asyncio.sleep(0)
        if recorded is not None:
            self._note_state(topics.ledger, known=tally.read_recorded(recorded))
        self._read[topics.ledger] = self._clock(), tally
        return tally

    async def _recorded(self, topics: StreamTopics) -> RecordedLines:
        """The ledger lines that the newest commit of each partition has recorded."""
        lines, partitions, there = list[bytes](), set[int](), False
        marks = partial(checkpoints, topics.stream)
        async with closing(self._technology.administrator()) as tools:
            try:
                async for commit in tools.last_commits(topics, marks=marks):
                    lines += recorded_lines(commit, topics.stream)
                    if not commit.state.keys().isdisjoint(marks(commit.partition)):
                        partitions.add(commit.partition)
                    there = True
                    await asyncio.sleep(0)
            except InvalidConfig:  # no right to read it
                there = False
        return RecordedLines(lines, frozenset(partitions) if there else None)

    def _note_state(self, ledger: str, *, known: bool) -> None:
        """Remember, and say once, that nothing is known of what a stream has recorded."""
        if known:
            self._ledger_alone.discard(ledger)
        elif ledger not in self._ledger_alone:
            self._ledger_alone.add(ledger)
            if self._log is not None:
                self._log.warning("past_without_state", ledger=ledger)
