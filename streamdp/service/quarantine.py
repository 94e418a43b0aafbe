"""NOT PRIVATE: unusable records, kept for an operator to look at. Off by default.

Whether there is an entry depends on content, so a quarantine is as sensitive as the input, and
nothing public may depend on it:

1. It is outside the commit. Noticing comes after the batch was applied, looks at every batch alike,
   waits for nothing and never raises.
2. What waits is bounded in number and bytes. What does not fit is dropped; only the operator's
   listener says how much.
3. A task of its own finds reasons and writes, at the clock's pace, by its own producer, which is
   opened whether there is anything to write or not. On a failure entries are dropped and counted.
4. What client libraries log because of it is kept out of the log (`unheard`).
5. A rebuild notices nothing, and records that are applied again after a lost commit are noticed
   once. Only a new process may write an entry again; partition and offset identify it.
"""

from __future__ import annotations

import asyncio
import warnings
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from streamdp.core.errors import counted
from streamdp.ports import Key, Records, StreamTopics, Technology, Value
from streamdp.wire.formats import Format
from streamdp.wire.quarantined import quarantined

if TYPE_CHECKING:
    from streamdp.core.events import Batch

MOST_WAITING = 500
"""Records that wait to be written."""

MOST_BYTES = 16 << 20
"""Bytes that they may take together: finding a reason needs the whole value."""

MOST_KEPT = 1000
"""Entries of a partition that stay, if the transport has no retention of its own."""

_AT_ONCE = 50  # entries of one turn
_EVERY_SECONDS = 1.0  # between two turns …
_AFTER_FAILURE_SECONDS = 30.0  # … and after one that failed
_SEND_SECONDS = 10.0
_LAST_SECONDS = 1.0  # for what still waits at the end, and as much for closing

unheard: ContextVar[bool] = ContextVar("unheard", default=False)
"""Whether libraries' messages in this context depend on content, and must not be logged."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record with rows of null loss."""

    partition: int
    offset: int
    key: Key = field(repr=False)
    value: Value = field(repr=False)


class Quarantine:
    """What a stream has noticed and not written yet. NOT PRIVATE."""

    def __init__(self, topics: StreamTopics, format_: Format) -> None:
        self.topics = topics
        self.format = format_
        self.written = 0
        self.dropped = 0
        self._waiting: deque[Suspect] = deque()
        self._bytes = 0
        self._noticed: dict[int, int] = {}  # by partition: offsets below were looked at

    def notice(self, partition: int, records: Sequence[Records], batch: Batch) -> None:
        """Look for null losses in a batch that was applied. Never raises."""
        since = self._noticed.get(partition, 0)
        self._noticed[partition] = max(since, records[-1].next_offset)
        try:
            offsets = _suspicious(batch)
            self._set_aside(partition, records, offsets[bisect_left(offsets, since) :])
        except Exception:  # no error may show outside
            self.dropped += 1

    def take(self, most: int) -> list[Suspect]:
        """Take the oldest of what waits."""
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        self._bytes -= sum(map(_size, taken))
        return taken

    def line(self) -> str:
        """For the operator: how many records this process has written and dropped."""
        return f"quarantine: {counted(self.written, 'record')} written, {self.dropped} dropped"

    def _set_aside(
        self, partition: int, records: Sequence[Records], offsets: Sequence[int]
    ) -> None:
        """Let records wait, as far as there is room."""
        for number, offset in enumerate(offsets):
            if len(self._waiting) >= MOST_WAITING:
                self.dropped += len(offsets) - number
                return
            key, value = _at(records, offset)
            suspect = Suspect(partition, offset, key, value)
            if self._bytes + _size(suspect) > MOST_BYTES:
                self.dropped += 1
                continue
            self._waiting.append(suspect)
            self._bytes += _size(suspect)

    def __repr__(self) -> str:
        """Show the stream's name only, not what or how much waits."""
        return f"Quarantine({self.topics.stream})"


def _suspicious(batch: Batch) -> list[int]:
    """The offsets of records whose rows may be unusable, rising; a closer look decides."""
    if batch.unusable is None:
        return []
    offsets: list[int] = np.unique(batch.offsets[batch.unusable]).tolist()
    return offsets


def _at(records: Sequence[Records], offset: int) -> tuple[Key, Value]:
    """The record at an offset."""
    part = next(batch for batch in records if offset < batch.next_offset)
    place = bisect_left(part.offsets, offset)
    return part.keys[place], part.values[place]


def _size(suspect: Suspect) -> int:
    return len(suspect.key or b"") + len(suspect.value or b"")


@asynccontextmanager
async def quarantining(
    quarantines: Iterable[Quarantine | None], technology: Technology
) -> AsyncIterator[None]:
    """Write what these notice for as long as the block lasts, then briefly what still waits."""
    ending = asyncio.Event()
    tasks = {
        asyncio.create_task(_Writer(quarantine, technology).run(ending), name=repr(quarantine))
        for quarantine in quarantines
        if quarantine is not None
    }
    try:
        yield
    finally:
        ending.set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_LAST_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.wait(tasks, timeout=_LAST_SECONDS)


class _Writer:
    """Writes what one quarantine has noticed."""

    def __init__(self, quarantine: Quarantine, technology: Technology) -> None:
        self._quarantine = quarantine
        self._technology = technology
        self._producer = technology.producer(kept=MOST_KEPT)

    async def run(self, ending: asyncio.Event) -> None:
        """Write in turns, and once more at the end."""
        unheard.set(True)
        try:
            while not ending.is_set():
                wait = _EVERY_SECONDS if await self._turn(_AT_ONCE) else _AFTER_FAILURE_SECONDS
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await ending.wait()
            await self._turn(MOST_WAITING)
        finally:
            await self._give_up()

    async def _turn(self, most: int) -> bool:
        """Write the oldest of what waits; return whether that went well, even if it was nothing."""
        suspects = self._quarantine.take(most)
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                entries = await self._entries(suspects)
                await self._producer.send(self._quarantine.topics.quarantine, entries)
        except Exception:  # no error may show outside
            self._quarantine.dropped += len(suspects)
            await self._give_up()
            self._producer = self._technology.producer(kept=MOST_KEPT)
            return False
        self._quarantine.written += len(entries)
        return True

    async def _entries(self, suspects: Sequence[Suspect]) -> list[tuple[Key, Value]]:
        """Each record's fault; other tasks get turns in between."""
        entries: list[tuple[Key, Value]] = []
        for suspect in suspects:
            reason = _explained(self._quarantine.format, suspect.value)
            if reason is not None:
                entry = quarantined(
                    partition=suspect.partition,
                    offset=suspect.offset,
                    reason=reason,
                    value=suspect.value,
                )
                entries.append((suspect.key, entry))
            await asyncio.sleep(0)
        return entries

    async def _give_up(self) -> None:
        """Close the producer within a bounded time; ignore its errors."""
        with suppress(Exception):
            async with asyncio.timeout(_LAST_SECONDS):
                await self._producer.close()


def _explained(format_: Format, value: Value) -> str | None:
    """Why a record is unusable; if the format fails to say so, the error's type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return format_.explain(value)
        except Exception as error:
            return f"{type(error).__name__} while looking for the reason"
