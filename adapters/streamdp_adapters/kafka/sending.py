"""Records in flight to one topic partition: few batches, in order, keys that every topic takes.

Batches are filled by hand, because the client's own way costs 10 µs a record, makes a future for
each, and logs keys and values at its debug level. A batch is cut by its bytes before compression,
and nothing is compressed: its size must not depend on content (P5).

A compacted topic takes no record without a key, but the null key is a key like others (P1). So in
the actions topic a key that begins with a zero byte gets one more in front, and a single zero byte
is the null key; every other key is unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Self

from aiokafka import AIOKafkaProducer
from aiokafka.structs import RecordMetadata

from streamdp.ports import Headers, Key, Value
from streamdp_adapters.kafka.internals import fill

NULL_KEY = b"\x00"
BATCH_BYTES = 512 * 1024
"""Bytes at which a batch is cut; a larger record travels alone."""

RECORD_ROOM = 256
"""Bytes that a batch of one record needs beyond key and value: 61 + at most 36, rounded up."""


def compacted_key(key: Key) -> bytes:
    """A key in the form of the actions topic.

    >>> [compacted_key(key) for key in (None, b"", b"fr", b"\\x00")]
    [b'\\x00', b'', b'fr', b'\\x00\\x00']
    """
    if key is None:
        return NULL_KEY
    return NULL_KEY + key if key.startswith(NULL_KEY) else key


def learner_key(key: Key) -> Key:
    """The key behind `compacted_key`'s form.

    >>> [learner_key(compacted_key(key)) for key in (None, b"", b"fr", b"\\x00")]
    [None, b'', b'fr', b'\\x00']
    """
    if key is None or not key.startswith(NULL_KEY):
        return key
    return None if key == NULL_KEY else key[1:]


KEY_ROOM = 4096
"""Bytes that are reserved for the key beside the largest value."""


class Outbox:
    """Batches in flight; the acknowledgement of each must be waited for, and none is left pending.

    After an error those that are pending are dropped, and errors in them are ignored.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._acknowledgements: list[asyncio.Future[RecordMetadata]] = []

    def __enter__(self) -> Self:
        """Begin with none."""
        return self

    def __exit__(self, *_: object) -> None:
        """Drop the pending ones."""
        for acknowledgement in self._acknowledgements:
            if not acknowledgement.cancel() and not acknowledgement.cancelled():
                acknowledgement.exception()

    async def put(
        self,
        topic: str,
        partition: int,
        records: Sequence[tuple[Key, Value]],
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Queue records in this order, with the headers of each if there are any.

        A further batch of the same partition waits until the one before is in flight, which keeps
        the order.
        """
        at = 0
        while at < len(records):
            batch = self._producer.create_batch()
            at = fill(batch, records, headers, start=at)
            self._acknowledgements.append(
                await self._producer.send_batch(batch, topic, partition=partition)
            )

    async def acknowledged(self, *others: Awaitable[None]) -> list[RecordMetadata]:
        """Wait for every acknowledgement and for `others`; raise the first failure."""
        outcomes = await asyncio.gather(*self._acknowledgements, *others, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, RecordMetadata)]
