"""A log written to a topic: the other direction of `sources.topics`.

Rows go out in order, each a record of its own in the topic's wire format, with its key and to its
partition; a null loss becomes a record without a value, which is a null loss live. Offsets are the
topic's own. The topic must be there and hold nothing this should not be added to; the embedded log
is made if it is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import groupby

import numpy as np

from streamdp.ports import Key, Producer, StreamTopics, Value
from streamdp.replay.converting import Chunk, chunks
from streamdp.replay.log import Log
from streamdp.replay.sources import Reading
from streamdp.replay.sources.topics import ADDRESS, addressed
from streamdp.wire import formats

_RECORDS = 1000  # handed to the producer at once


def send_log(
    log: Log, target: str, how: Reading, *, progress: Callable[[int], None] | None = None
) -> int:
    """Append a log to the topic at ``technology:address#topic``; how many slots it has."""
    technology, opened, topic = addressed(target, how)
    wire = formats.configure(how.format, actions=log.actions, options=how.format_options)

    async def send() -> int:
        if ADDRESS.get(technology) == "path":
            administrator = opened.administrator()
            topics = StreamTopics(app="replay", stream=topic, input=topic)
            await administrator.create([topics], partitions=1)
            await administrator.close()
        producer, slots = opened.producer(), 0
        try:
            for chunk in chunks(log.portions()):
                await _send(producer, topic, chunk, wire)
                slots += len(chunk.keys)
                if progress is not None:
                    progress(slots)
        finally:
            await producer.close()
        return slots

    return asyncio.run(send())


async def _send(producer: Producer, topic: str, chunk: Chunk, wire: formats.Format) -> None:
    losses = np.clip(chunk.losses, 0, 1)
    null = np.isnan(np.where(np.isfinite(chunk.losses), 0, np.nan).sum(axis=1)).tolist()

    def record(at: int) -> tuple[Key, Value]:
        return chunk.keys[at], None if null[at] else wire.encode(losses[at : at + 1])

    places = range(len(chunk.keys))
    for _, part in groupby(places, key=lambda at: at // _RECORDS):
        records = [record(at) for at in part]
        await producer.send(topic, records, partition=chunk.partition)


def is_topic(target: str) -> bool:
    """Whether a target is a topic's address rather than a file.

    >>> is_topic("sqlite:home.db#clicks"), is_topic("log.parquet")
    (True, False)
    """
    technology, colon, _ = target.partition(":")
    return bool(colon) and technology.isidentifier()
