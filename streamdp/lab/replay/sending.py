"""Append a log to a topic: the reverse of `sources.topics`.

Rows are sent in order, each as a record in the topic's wire format, with its key and to its
partition; a null loss becomes a record without a value, which is a null loss live. Offsets are the
topic's own. A Kafka topic must exist; a missing embedded log is created. Losses outside [0, 1] are
refused, as `streamdp send` does, before anything is sent: the log is read once for that.

With a checkpoint an interrupted append can be resumed, and each row is in the topic exactly once.
The checkpoint holds a row up to which everything is durable, and where each partition ended then.
On resuming, the records that the topic has got since are compared with the rows that follow, and
these rows are not sent again. This assumes that nobody else writes to the topic meanwhile (foreign
records are noticed, and refused), and that the broker has finished the requests of the dead
process: a request still in flight, within the first second or so, would be counted too late. The
embedded log has no such requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from streamdp.core.errors import InvalidConfig, StateMismatch, complaint
from streamdp.lab.replay.chunks import Chunk, chunks, nulls
from streamdp.lab.replay.journal import BEGIN, Journal, Milestone, Written
from streamdp.lab.replay.log import START, Log, Position
from streamdp.lab.replay.sources import ReadOptions
from streamdp.lab.replay.sources.topics import ADDRESS, addressed, ends
from streamdp.ports import Key, Producer, StreamTopics, Technology, Value
from streamdp.wire import formats

_RECORDS = 1000  # handed to the producer at once
_BETWEEN_MARKS = 64 * _RECORDS
"""Rows between two checkpoints, and so the most that may have to be read back."""

Record = tuple[Key, Value]


def send_log(
    log: Log,
    target: str,
    how: ReadOptions,
    *,
    checkpoint: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Written:
    """Append a log to the topic at ``technology:address#topic``; return what was appended."""
    if target == log.name:
        expected = "another topic"
        raise InvalidConfig(complaint("target", "is the log", expected=expected, got=target))
    technology, opened, topic = addressed(target, how)
    wire = formats.configure(how.format, actions=log.actions, options=how.format_options)
    topics = StreamTopics(app="replay", stream=topic, input=topic)
    journal = None
    if checkpoint is not None:
        journal = Journal.between(log, f"{target} {dict(wire.settings())}", checkpoint)

    async def send() -> Written:
        if journal is None or journal.load() is None:
            _check_inside(log.name, chunks(log.portions()))
        if ADDRESS.get(technology) == "path":
            administrator = opened.administrator()
            await administrator.create([topics], partitions=1)
            await administrator.close()
        append = _Append(log, wire, opened, topics, journal)
        try:
            return await append.run(progress or (lambda slots: None))
        finally:
            await append.producer.close()

    written = asyncio.run(send())
    if journal is not None:
        journal.remove()
    return written


def _check_inside(log: str, rows: Iterable[Chunk]) -> None:
    """Refuse losses that the service would clip; none of them has been sent."""
    outside = sum(chunk.clipped for chunk in rows)
    if outside:
        expected = "losses in [0, 1] for a topic (to a file, convert clips them and says so)"
        got = f"others in {outside:,} slots"
        raise InvalidConfig(complaint(log, "cannot be sent", expected=expected, got=got))


@dataclass(slots=True)
class _Append:
    """One append, from its beginning or from its checkpoint."""

    log: Log
    wire: formats.Format
    technology: Technology
    topics: StreamTopics
    journal: Journal | None
    producer: Producer = field(init=False)
    there: dict[int, list[Record]] = field(init=False)  # the durable records, by partition

    def __post_init__(self) -> None:
        self.producer, self.there = self.technology.producer(), {}

    async def run(self, progress: Callable[[int], None]) -> Written:
        """Send every row that the topic lacks; return the rows of the log."""
        start = await self._start()
        written = marked = start.written
        position, row = start.position, written.slots - _into(start)  # and the row of that position
        for chunk in chunks(self.log.portions(position), first=row):
            _check_inside(self.log.name, [chunk])  # also what a topic has gained since
            for begin in range(max(0, written.slots - chunk.first), len(chunk), _RECORDS):
                stop = min(begin + _RECORDS, len(chunk))
                await self._send(chunk, begin, stop)
                written = written.after(chunk.losses[begin:stop])
                if written.slots - marked.slots >= _BETWEEN_MARKS:
                    await self._mark(position, written, into=written.slots - row)
                    marked = written
                progress(written.slots)
            if chunk.after is not None:
                position, row = chunk.after, chunk.stop
        return written

    async def _send(self, chunk: Chunk, begin: int, stop: int) -> None:
        """Send rows of a chunk, except those that the topic has."""
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
        losses = chunk.losses[begin:stop]
        null = nulls(losses).tolist()
        return [
            (key, None if null[at] else self.wire.encode(losses[at : at + 1]))
            for at, key in enumerate(chunk.keys[begin:stop])
        ]

    async def _start(self) -> Milestone:
        """The checkpoint and the records since; or the beginning, saved as a checkpoint."""
        milestone = self.journal.load() if self.journal else None
        if milestone is None:
            await self._mark(START, Written(), into=0)
            return BEGIN
        after = {int(number): end for number, end in (milestone.mark or {})["ends"].items()}
        administrator = self.technology.administrator()
        try:
            async for records in administrator.history(self.topics, after=after):
                gained = zip(records.keys, records.values, strict=True)
                self.there.setdefault(records.partition.number, []).extend(gained)
        finally:
            await administrator.close()
        return milestone

    async def _mark(self, position: Position, written: Written, *, into: int) -> None:
        """Save a milestone: rows before a position, and `into` rows after it, are durable."""
        if self.journal is not None:
            administrator = self.technology.administrator()
            try:
                reached = await ends(administrator, self.topics)
            finally:
                await administrator.close()
            self.journal.save(Milestone(position, written, {"into": into, "ends": reached}))


def _into(milestone: Milestone) -> int:
    return 0 if milestone.mark is None else int(milestone.mark["into"])


def is_topic(target: str) -> bool:
    """Whether a target is a topic's address, not a file.

    >>> is_topic("sqlite:home.db#clicks"), is_topic("log.parquet")
    (True, False)
    """
    technology, colon, _ = target.partition(":")
    return bool(colon) and technology.isidentifier()
