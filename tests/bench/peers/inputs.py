"""The input of a benchmark: batches made once, then sent again and again.

A broker stores a batch as it comes, so the same bytes may be sent many times: that fills a topic
at the speed of the disk, while the keys of a topic repeat after some hundred thousand records.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Literal

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.producer.message_accumulator import BatchBuilder

from streamdp.ports import Headers
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import configure
from tests.support.batches import headers_of

PARTITIONS = 2

_BATCH_BYTES = 400_000
"""What a batch holds about: two of them are under way at once, one for each partition."""
_FRAME_VALUES = 16  # different frames; what is in them does not matter
_CLICKED = 0.05  # of what is shown
_MOST_BYTES = 1_000_000  # a batch must fit under a broker's usual limit


_numbers = itertools.count(1)


def new_name() -> str:
    """A name that nobody had on this broker, which may be an outside one."""
    return f"bench-{os.getpid()}-{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Input:
    """What the records of a topic are like."""

    format: str
    actions: int
    keys: int
    rows: int = 1  # in a record: frames have many
    observes: Literal["losses", "feedback"] = "losses"
    partitions: int = PARTITIONS

    @property
    def name(self) -> str:
        """For tables and topics."""
        parts = f"-{self.partitions}-partitions" if self.partitions != PARTITIONS else ""
        frames = f"-{self.rows}-rows" if self.rows > 1 else ""
        seen = "feedback-" if self.observes == "feedback" else ""
        return f"{seen}{self.format}-K{self.actions}{frames}-{self.keys}-keys{parts}"

    @property
    def labels(self) -> list[str]:
        """The actions' names."""
        return [f"a{number}" for number in range(self.actions)]

    @property
    def options(self) -> dict[str, object]:
        """The options of the stream's format."""
        if self.format == "json":
            return {"layout": "list"} if self.observes == "losses" else {}
        return {"frames": True} if self.rows > 1 else {}

    def records(self, count: int) -> Iterator[tuple[bytes, Headers]]:
        """Values and headers of that many records; rewards are 0 or 1, as clicks are."""
        if self.observes == "losses":
            for value in self.values(count):
                yield value, ()
            return
        of = Feedback(tuple(self.labels), content="reward")
        format_ = configure(self.format, feedback=of, options=self.options)
        encoded = [format_.encode(np.full(1, reward, np.float32), played=[0]) for reward in (0, 1)]
        headers = [headers_of(format_, [arm]) for arm in range(self.actions)]
        generator = np.random.default_rng(5)
        shown = generator.integers(0, self.actions, count).tolist()
        clicked = (generator.random(count) < _CLICKED).astype(int).tolist()
        for arm, reward in zip(shown, clicked, strict=True):
            yield encoded[reward], headers[arm]

    def values(self, count: int) -> Iterator[bytes]:
        """Values of that many records of losses, numbers with four digits."""
        generator = np.random.default_rng(5)
        encode = configure(self.format, actions=self.labels, options=self.options).encode
        if self.rows > 1:
            shape = (_FRAME_VALUES, self.rows, self.actions)
            frames = [encode(frame) for frame in generator.random(shape).astype(np.float32)]
            for frame, _ in zip(cycle(frames), range(count), strict=False):
                yield frame
            return
        for _ in range(count):
            yield encode(generator.random((1, self.actions)).astype(np.float32).round(4))


@dataclass(frozen=True, slots=True)
class Batches:
    """Ready batches of each partition."""

    parts: list[list[BatchBuilder]] = field(repr=False)
    records: int  # in one batch
    record_bytes: int

    @classmethod
    def of(
        cls, producer: AIOKafkaProducer, input_: Input, *, records: int | None = None
    ) -> Batches:
        """Every key once, then at random; a key's number decides its partition."""
        ((probe, headers),) = input_.records(1)
        size = len(probe) + 16 + sum(len(name) + len(value or b"") + 4 for name, value in headers)
        at_once = records or max(1, min(1000, _BATCH_BYTES // size))
        rounds = 1 if input_.rows > 1 else max(2, 10_000 * input_.partitions // input_.keys)
        generator = np.random.default_rng(6)
        some = generator.integers(0, input_.keys, (rounds - 1) * input_.keys)
        keys = np.r_[generator.permutation(input_.keys), some].tolist()
        pool = cls([[] for _ in range(input_.partitions)], at_once, len(probe))
        content = input_.records(rounds * input_.keys)
        waiting: list[list[tuple[bytes, bytes, Headers]]] = [[] for _ in pool.parts]
        for number, (value, headers) in zip(keys, content, strict=True):
            part = number % input_.partitions
            waiting[part].append((b"key-%d" % number, value, headers))
            if len(waiting[part]) == at_once:
                pool.parts[part].append(_built(producer, waiting[part]))
                waiting[part] = []
        return pool

    def in_turn(self) -> Iterator[tuple[int, BatchBuilder]]:
        """Partition and batch, for ever."""
        parts = [cycle(part) for part in self.parts]
        while True:
            for number, part in enumerate(parts):
                yield number, next(part)


def _built(producer: AIOKafkaProducer, records: list[tuple[bytes, bytes, Headers]]) -> BatchBuilder:
    """One batch."""
    batch = producer.create_batch()
    for key, value, headers in records:
        if batch.append(timestamp=None, key=key, value=value, headers=list(headers)) is None:
            raise AssertionError("a batch is too small for its records")
    batch.close()
    return batch


def filler(bootstrap: str) -> AIOKafkaProducer:
    """A producer for ready batches: no idempotence, whose numbers would be written into them."""
    return AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=_MOST_BYTES, acks=1)


async def create(bootstrap: str, *topics: str, partitions: int = PARTITIONS) -> None:
    """New topics."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(name, partitions, 1) for name in topics])
        if any(error for _, error, _ in answer.topic_errors):
            raise RuntimeError(f"could not create topics: {answer.topic_errors}")
    finally:
        await admin.close()


async def delete(bootstrap: str, *topics: str) -> None:
    """Give the disk back."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics(list(topics))
    finally:
        await admin.close()


async def preload(bootstrap: str, topic: str, input_: Input, *, records: int) -> int:
    """Fill a new topic with at least so many records; returns the bytes of a value."""
    await create(bootstrap, topic, partitions=input_.partitions)
    producer = filler(bootstrap)
    await producer.start()
    try:
        pool = Batches.of(producer, input_)
        needed = -(-records // pool.records)
        for partition, batch in islice(pool.in_turn(), needed):
            await producer.send_batch(batch, topic, partition=partition)
        await producer.flush()
        return pool.record_bytes
    finally:
        await producer.stop()
