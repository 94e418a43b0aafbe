import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence, Set
from enum import IntEnum
from typing import Any

from aiokafka.conn import AIOKafkaConnection

class CoordinationType(IntEnum):
    GROUP = 0
    TRANSACTION = 1

class ConnectionGroup(IntEnum):
    DEFAULT = 0
    COORDINATION = 1

class BrokerMetadata:
    host: str
    port: int

class ClusterMetadata:
    def brokers(self) -> Set[object]: ...
    def broker_metadata(self, broker_id: int) -> BrokerMetadata | None: ...
    unauthorized_topics: set[str]

class AIOKafkaClient:
    cluster: ClusterMetadata
    def force_metadata_update(self) -> asyncio.Future[bool]: ...
    _get_conn: Callable[..., Coroutine[Any, Any, AIOKafkaConnection | None]]
    _metadata_update: Callable[[ClusterMetadata, Collection[str] | None], Coroutine[Any, Any, bool]]
    async def close(self) -> None: ...
    def get_random_node(self) -> int | None: ...
    send: Callable[..., Coroutine[Any, Any, Any]]
    def set_topics(self, topics: Sequence[str]) -> asyncio.Future[bool]: ...
    async def coordinator_lookup(self, kind: CoordinationType, key: str) -> int: ...
