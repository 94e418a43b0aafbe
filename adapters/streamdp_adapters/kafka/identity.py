"""Which topic it is: the id that tells a topic from another of its name.

A topic that is deleted and made again begins its offsets anew. Kafka gives each topic an id since
version 2.8 (metadata version 10); the client library (0.14) speaks metadata to version 5, so this
module has a request of its own. A broker that knows no ids answers None: then the service looks for
the last record that it read.

`Watch` asks once a second while partitions are worked on. What it finds halts them: the transport
confirms ownership before, as for any halt. Silence of the brokers is found out elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from io import BytesIO
from uuid import UUID

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from streamdp.core.errors import StateMismatch, complaint
from streamdp.ports import Partition

_SECONDS = 1.0
"""Between two questions; about so long a topic that was made again may go unnoticed."""

_PATIENCE = 5.0
"""How long one question may take."""

_NONE = UUID(int=0)


class Uuid(AbstractType[UUID]):
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: UUID) -> bytes:
        """As they are."""
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> UUID:
        """As they are."""
        return UUID(bytes=data.read(16))


class _MetadataResponse(Response):
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataRequest(RequestStruct):
    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid), ("topic", CompactString("utf-8")), ("tags", TaggedFields)
            ),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _TopicIds(Request[_MetadataRequest]):
    """Asks for topics by name, and makes none."""

    API_KEY = 3

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)

    def build(self, request_struct_class: type[_MetadataRequest]) -> _MetadataRequest:
        """In the one version that there is."""
        topics: list[tuple[UUID, str, dict[int, bytes]]] = [
            (_NONE, name, {}) for name in self._names
        ]
        return request_struct_class(topics, False, False, False, {})


async def topic_ids(client: AIOKafkaClient, names: Iterable[str]) -> dict[str, str]:
    """The ids of topics that are there, as text; none where brokers have no ids."""
    node = client.get_random_node()
    try:
        answer = await client.send(node, _TopicIds(names))
    except (NotImplementedError, IncompatibleBrokerVersion):
        return {}
    return {
        topic: str(topic_id)
        for error, topic, topic_id, *_ in answer.topics
        if not error and topic_id != _NONE
    }


class Watch:
    """Sees whether inputs are still the topics that they were when partitions were taken."""

    def __init__(self) -> None:
        self._known: dict[Partition, tuple[str, str]] = {}  # the topic's name and its id
        self._asked = time.monotonic()
        self._asking: asyncio.Task[dict[str, str]] | None = None

    def begin(self, partition: Partition, topic: str, topic_id: str | None) -> None:
        """A partition was taken while its input was this topic."""
        self._known.pop(partition, None)
        if topic_id is not None:
            self._known[partition] = (topic, topic_id)

    def end(self, partition: Partition) -> None:
        """It is not worked on any more."""
        self._known.pop(partition, None)

    def look(self, client: AIOKafkaClient | None) -> dict[Partition, StateMismatch]:
        """What is wrong by the latest answer; asks again now and then, beside whatever goes on."""
        found: dict[Partition, StateMismatch] = {}
        if self._asking is not None and self._asking.done():
            asking, self._asking = self._asking, None
            if not asking.cancelled() and asking.exception() is None:
                found = self._replaced(asking.result())
        now = time.monotonic()
        if self._asking is None and self._known and client and now - self._asked >= _SECONDS:
            self._asked = now
            names = {name for name, _ in self._known.values()}
            self._asking = asyncio.create_task(_ask(client, names))
        return found

    def _replaced(self, ids: Mapping[str, str]) -> dict[Partition, StateMismatch]:
        """The partitions whose input has another id now; they are watched no longer."""
        found = {}
        for partition, (name, known) in list(self._known.items()):
            now = ids.get(name, known)  # one that is not there may be made again, or come back
            if now != known:
                found[partition] = replaced(partition, known=known, now=now)
                self.end(partition)
        return found

    async def close(self) -> None:
        """Ask nothing more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
            self._asking = None


async def _ask(client: AIOKafkaClient, names: Iterable[str]) -> dict[str, str]:
    """The ids as of now; nothing where nobody answers."""
    try:
        async with asyncio.timeout(_PATIENCE):
            return await topic_ids(client, names)
    except (KafkaError, OSError, TimeoutError):
        return {}


def replaced(partition: Partition, *, known: str, now: str) -> StateMismatch:
    """The error of an input that was deleted and made again while it was read."""
    return StateMismatch(
        complaint(
            f"partition {partition}",
            "the input was deleted and made again; a stream of another name may read what is there",
            expected=f"topic id {known}",
            got=now,
        )
    )
