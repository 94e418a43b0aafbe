"""The input of a stream as a log: a Kafka topic, the embedded log, or another transport.

Transports are found by the entry-point group ``streamdp.transports``; replay imports none of them.
Records are read through `Administrator.history`, which takes no partition and joins no group, and
decoded by the stream's own wire format, so every slot means what it means live: an unusable record
is a null loss, a frame takes as many slots as its length says, and keys, offsets and partitions are
the broker's. Under the live stream's name, epoch and seed a replay makes the live releases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np

from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Batch, numbered
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.clipping import decoded
from streamdp.lab.logs.log import LogPart, Portion, wrong
from streamdp.ports import Administrator, Records, StreamTopics, Technology
from streamdp.service.sources import up_to_date
from streamdp.wire import formats

GROUP = "streamdp.transports"

ADDRESS = {"sqlite": "path", "kafka": "bootstrap"}
"""The setting that a known technology's address sets; others take all settings by name."""


@dataclass(frozen=True, slots=True)
class TopicLog:
    """A stream's input, read through a technology's administrator."""

    name: str
    technology: Technology
    topics: StreamTopics
    format: formats.Format
    slots: int  # by offsets: an upper bound, but for frames
    parts: tuple[LogPart, ...] = ()  # one reader reads it, as the service does

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of the coordinates."""
        return self.format.actions

    def portions(self) -> Iterator[Portion]:
        """The records up to the end as of now."""
        with closing(records_of(self.technology, self.topics)) as batches:
            for records in batches:
                yield Portion(records.partition.number, *self._batch(records))

    def _batch(self, records: Records) -> tuple[Batch, int]:
        """The slots of some records, and how many of them were clipped."""
        decoding, clipped = decoded(self.format, list(records.values))
        slots = decoding.slots
        offsets = np.repeat(np.array(records.offsets, dtype=np.int64), slots)
        keys, index = numbered(records.keys)
        return Batch(keys, np.repeat(index, slots), offsets, decoding.content), clipped


def open_topic(where: str, how: ReadOptions) -> TopicLog:
    """The input topic that an address names: ``technology:address#topic``."""
    technology, _, address = where.partition(":")
    place = address.rpartition("#")[0]
    if ADDRESS.get(technology) == "path" and place and not Path(place).is_file():
        raise wrong(where, "cannot be read", expected="a file", got="none there")
    _, opened, topic = addressed(where, how)
    return topic_log(opened, topic, how, name=where)


def addressed(where: str, how: ReadOptions) -> tuple[str, Technology, str]:
    """The name of a technology, the technology, and the topic: ``technology:address#topic``."""
    technology, _, address = where.partition(":")
    place, mark, topic = address.rpartition("#")
    if not mark or not topic:
        raise wrong(where, "no topic", expected=f"{technology}:address#topic", got=address)
    settings = dict(how.settings)
    if place and technology in ADDRESS:
        settings[ADDRESS[technology]] = place
    return technology, _technology(technology, settings), topic


def topic_log(technology: Technology, topic: str, how: ReadOptions, *, name: str) -> TopicLog:
    """The input topic of a technology that is open already."""
    if how.actions is None:
        raise wrong(name, "a topic does not name actions", expected="--actions", got="none")
    wire = up_to_date(
        formats.configure(how.format, actions=how.actions, options=how.format_options)
    )
    topics = StreamTopics(app="replay", stream=topic, input=topic)
    return TopicLog(name, technology, topics, wire, _length(technology, topics, name))


def _technology(name: str, settings: dict[str, object]) -> Technology:
    for entry in entry_points(group=GROUP, name=name):
        factory: type[Technology] = entry.load()
        return factory.from_settings(settings, app="replay")
    known = sorted({entry.name for entry in entry_points(group=GROUP)})
    raise InvalidConfig("transport", "unknown", expected=" or ".join(known), got=name)


def _length(technology: Technology, topics: StreamTopics, where: str) -> int:
    """How many records there may be, from where each partition ends."""

    async def total(administrator: Administrator) -> int:
        try:
            return sum((await ends(administrator, topics)).values())
        finally:
            await administrator.close()

    slots = asyncio.run(total(technology.administrator()))
    if not slots:
        raise wrong(where, "empty", expected="at least one record", got="none")
    return slots


async def ends(administrator: Administrator, topics: StreamTopics) -> dict[int, int]:
    """Where each partition that has records ends just now."""
    newest = await administrator.newest(topics, count=1)
    return {records.partition.number: records.next_offset for records in newest}


def records_of(technology: Technology, topics: StreamTopics) -> Generator[Records, None, None]:
    """The records of an asynchronous reader, one batch at a time."""
    administrator = technology.administrator()
    with asyncio.Runner() as runner:
        batches: AsyncIterator[Records] = administrator.history(topics, after={})
        try:
            while (records := runner.run(_next(batches))) is not None:
                yield records
        finally:
            runner.run(_close(batches, administrator))


async def _next(batches: AsyncIterator[Records]) -> Records | None:
    return await anext(batches, None)


async def _close(batches: Any, administrator: Administrator) -> None:
    if hasattr(batches, "aclose"):
        await batches.aclose()
    await administrator.close()
