import asyncio
from collections import deque

from aiokafka.structs import TopicPartition

class BatchBuilder:
    def append(
        self,
        *,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] = ...,
    ) -> object | None: ...
    def record_count(self) -> int: ...
    def close(self) -> None: ...

class MessageBatch:
    _drain_waiter: asyncio.Future[None]

class MessageAccumulator:
    _batches: dict[TopicPartition, deque[MessageBatch]]
