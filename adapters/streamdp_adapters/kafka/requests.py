"""Our own requests, for versions that the client library (0.14) does not speak.

| request | version | for | the client's own |
|---|---|---|---|
| Metadata | 10 | topic ids and this user's rights (Kafka 2.8) | up to 5 |
| IncrementalAlterConfigs | 0 | settings changed one by one (Kafka 2.3) | replaces all at once |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from uuid import UUID

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    String,
    TaggedFields,
)

NO_ID = UUID(int=0)
"""Stands for an id where there is none."""

WRITE = 1 << 4
"""The right to write, in the rights of an answer."""

_TOPIC, _SET = 2, 0  # kind of resource; what to do with a setting


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


class MetadataResponse(Response):
    """Brokers, and each topic's error, name and id."""

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


class MetadataRequest(RequestStruct):
    """Topics by name."""

    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = MetadataResponse
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


class TopicIds(Request[MetadataRequest]):
    """Asks for topics by name, with this user's rights on them if wanted; creates none."""

    API_KEY = 3

    def __init__(self, names: Iterable[str], *, rights: bool = False) -> None:
        self._names = list(names)
        self._rights = rights

    def build(self, request_struct_class: type[MetadataRequest]) -> MetadataRequest:
        """The request, in its one version."""
        topics: list[tuple[UUID, str, dict[int, bytes]]] = [
            (NO_ID, name, {}) for name in self._names
        ]
        return request_struct_class(topics, False, False, self._rights, {})


class AlterSettingsResponse(Response):
    """The error of each topic."""

    API_KEY = 44
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "resources",
            Array(
                ("error_code", Int16),
                ("error_message", String("utf-8")),
                ("kind", Int8),
                ("name", String("utf-8")),
            ),
        ),
    )


class AlterSettingsRequest(RequestStruct):
    """Settings to change, by topic."""

    API_KEY = 44
    API_VERSION = 0
    RESPONSE_TYPE = AlterSettingsResponse
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("kind", Int8),
                ("name", String("utf-8")),
                (
                    "settings",
                    Array(
                        ("name", String("utf-8")), ("operation", Int8), ("value", String("utf-8"))
                    ),
                ),
            ),
        ),
        ("validate_only", Boolean),
    )


class AlterSettings(Request[AlterSettingsRequest]):
    """Sets some settings of a topic; leaves its others alone."""

    API_KEY = 44

    def __init__(self, topic: str, settings: Mapping[str, str]) -> None:
        self._topic = topic
        self._settings = dict(settings)

    def build(self, request_struct_class: type[AlterSettingsRequest]) -> AlterSettingsRequest:
        """The request, in its one version."""
        changes = [(name, _SET, value) for name, value in self._settings.items()]
        return request_struct_class([(_TOPIC, self._topic, changes)], False)
