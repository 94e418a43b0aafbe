"""A log written to a topic: the other direction of `sources.topics`.

Rows go out in order, each a record of its own in the topic's wire format, with its key and to its
partition; a null loss becomes a record without a value, which is a null loss live. Offsets are the
topic's own. The topic must be there and hold nothing this should not be added to; the embedded log
is made if it is missing.

With a checkpoint an interrupted append goes on, and each row is in the topic exactly once. The
checkpoint holds a row up to which everything is durable, and where each partition ended then. When
the append goes on, what the topic has gained since is read and compared with the rows that follow;
these are not sent again. That rests on two things: that nobody else writes to the topic meanwhile
(records that are not this log's are noticed, and refused), and that the broker has settled what the
dead process had sent. A request that still waits there when the append goes on, within the same
second or so, would be counted too late; the embedded log settles at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from streamdp.core.errors import StateMismatch, complaint
from streamdp.ports import Key, Producer, StreamTopics, Technology, Value
from streamdp.replay.chunks import Chunk, chunks, nulls
from streamdp.replay.journal import BEGIN, Journal, Milestone
from streamdp.replay.log import START, Log, Position
from streamdp.replay.sources import ReadOptions
from streamdp.replay.sources.topics import ADDRESS, addressed, ends
from streamdp.wire import formats

_RECORDS = 1000  # handed to the producer at once
_BETWEEN_MARKS = 64 * _RECORDS
"""Rows after which the checkpoint moves on: what may have to be read back is as much."""

Record = tuple[Key, Value]


def send_log(
    log: Log,
    target: str,
    how: ReadOptions,
    *,
    checkpoint: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Append a log to the topic at ``technology:address#topic``; how many slots it has."""
    technology, opened, topic = addressed(target, how)
    wire = formats.configure(how.format, actions=log.actions, options=how.format_options)
    topics = StreamTopics(app="replay", stream=topic, input=topic)
    journal = None
    if checkpoint is not None:
        journal = Journal.between(log, f"{target} {dict(wire.settings())}", checkpoint)

    async def send() -> int:
        if ADDRESS.get(technology) == "path":
            administrator = opened.administrator()
            await administrator.create([topics], partitions=1)
            await administrator.close()
        append = _Append(log, wire, opened, topics, journal)
        try:
            return await append.run(progress or (lambda slots: None))
        finally:
            await append.producer.close()

    slots = asyncio.run(send())
    if journal is not None:
        journal.remove()
    return slots


@dataclass(slots=True)
class _Append:
    """One append, from its beginning or from its checkpoint."""

    log: Log
    wire: formats.Format
    technology: Technology
    topics: StreamTopics
    journal: Journal | None
    producer: Producer = field(init=False)
    there: dict[int, list[Record]] = field(init=False)  # durable already, by partition

    def __post_init__(self) -> None:
        self.producer, self.there = self.technology.producer(), {}

    async def run(self, progress: Callable[[int], None]) -> int:
        """Send every row that is not there; how many rows the log has."""
        start = await self._start()
        position, row = start.position, start.slots - _into(start)  # and the row that it means
        slots = marked = start.slots
        for chunk in chunks(self.log.portions(position), first=row):
            for begin in range(max(0, slots - chunk.first), len(chunk), _RECORDS):
                stop = min(begin + _RECORDS, len(chunk))
                await self._send(chunk, begin, stop)
                slots = chunk.first + stop
                if slots - marked >= _BETWEEN_MARKS:
                    await self._mark(position, slots=slots, into=slots - row)
                    marked = slots
                progress(slots)
            if chunk.after is not None:
                position, row = chunk.after, chunk.stop
        return slots

    async def _send(self, chunk: Chunk, begin: int, stop: int) -> None:
        """Some rows of a chunk, but for those that are there."""
        records = self._records(chunk, begin, stop)
        there = self.there.get(chunk.partition, [])
        known = min(len(there), len(records))
        if there[:known] != records[:known]:
            where, expected = f"topic {self.topics.input}", "only this log's since it was left"
            raise StateMismatch(complaint(where, "records", expected=expected, got="others"))
        del there[:known]
        if known < len(records):
            topic, left = self.topics.input, records[known:]
            await self.producer.send(topic, left, partition=chunk.partition)

    def _records(self, chunk: Chunk, begin: int, stop: int) -> list[Record]:
        rows = chunk.losses[begin:stop]
        losses, null = np.clip(rows, 0, 1), nulls(rows).tolist()
        return [
            (key, None if null[at] else self.wire.encode(losses[at : at + 1]))
            for at, key in enumerate(chunk.keys[begin:stop])
        ]

    async def _start(self) -> Milestone:
        """The checkpoint, and what the topic has gained since; or the beginning, written down."""
        found = self.journal.load() if self.journal else None
        if found is None:
            await self._mark(START, slots=0, into=0)
            return BEGIN
        after = {int(number): end for number, end in (found.mark or {})["ends"].items()}
        administrator = self.technology.administrator()
        try:
            async for records in administrator.history(self.topics, after=after):
                gained = zip(records.keys, records.values, strict=True)
                self.there.setdefault(records.partition.number, []).extend(gained)
        finally:
            await administrator.close()
        return found

    async def _mark(self, position: Position, *, slots: int, into: int) -> None:
        """So many rows are durable: those before a position and `into` behind it."""
        if self.journal is not None:
            administrator = self.technology.administrator()
            try:
                reached = await ends(administrator, self.topics)
            finally:
                await administrator.close()
            self.journal.save(Milestone(position, slots, {"into": into, "ends": reached}))


def _into(milestone: Milestone) -> int:
    return 0 if milestone.mark is None else int(milestone.mark["into"])


def is_topic(target: str) -> bool:
    """Whether a target is a topic's address rather than a file.

    >>> is_topic("sqlite:home.db#clicks"), is_topic("log.parquet")
    (True, False)
    """
    technology, colon, _ = target.partition(":")
    return bool(colon) and technology.isidentifier()
