import asyncio
from collections.abc import Sequence, Set
from enum import IntEnum

class CoordinationType(IntEnum):
    GROUP = 0
    TRANSACTION = 1

class ClusterMetadata:
    def brokers(self) -> Set[object]: ...

class AIOKafkaClient:
    cluster: ClusterMetadata
    async def close(self) -> None: ...
    def set_topics(self, topics: Sequence[str]) -> asyncio.Future[bool]: ...
    async def coordinator_lookup(self, kind: CoordinationType, key: str) -> int: ...
