"""Append a log to a topic: the reverse of `topics`.

Rows are sent in order, each as a record in the topic's wire format, with its key and to its
partition; a null loss becomes a record without a value, which is a null loss live. Offsets are the
topic's own. A Kafka topic must exist; a missing embedded log is created. Losses outside [0, 1] are
refused, as `streamdp send` does, before anything is sent: the log is read once for that. An append
that is interrupted leaves in the topic what was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamdp.core.errors import InvalidConfig
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.chunks import chunks
from streamdp.lab.logs.converting import Written
from streamdp.lab.logs.log import Log
from streamdp.lab.logs.topics import ADDRESS, addressed
from streamdp.ports import StreamTopics, closing
from streamdp.wire import formats

_RECORDS = 1000  # handed to the producer at once


def send_log(
    log: Log,
    target: str,
    how: ReadOptions,
    *,
    progress: Callable[[int], None] = lambda slots: None,
) -> Written:
    """Append a log to the topic at ``technology:address#topic``; return what was appended."""
    if target == log.name:
        expected = "another topic"
        raise InvalidConfig("target", "is the log", expected=expected, got=target)
    technology, opened, topic = addressed(target, how)
    wire = formats.configure(how.format, actions=log.actions, options=how.format_options)
    topics, written = StreamTopics(app="replay", stream=topic, input=topic), Written()
    outside = sum(chunk.clipped for chunk in chunks(log.portions()))
    if outside:
        expected = "losses in [0, 1] for a topic (to a file, convert clips them and says so)"
        got = f"others in {outside:,} slots"
        raise InvalidConfig(log.name, "cannot be sent", expected=expected, got=got)

    async def send() -> None:
        if ADDRESS.get(technology) == "path":
            administrator = opened.administrator()
            await administrator.create([topics], partitions=1)
            await administrator.close()
        async with closing(opened.producer()) as producer:
            for chunk in chunks(log.portions()):
                null = chunk.nulls().tolist()
                records = [
                    (key, None if null[at] else wire.encode(chunk.losses[at : at + 1]))
                    for at, key in enumerate(chunk.keys)
                ]
                for begin in range(0, len(records), _RECORDS):
                    part = records[begin : begin + _RECORDS]
                    await producer.send(topic, part, partition=chunk.partition)
                    progress(written.slots + begin + len(part))
                written.take(chunk)

    asyncio.run(send())
    return written
