import asyncio
from collections import deque

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import TopicPartition

class BatchBuilder:
    _builder: DefaultRecordBatchBuilder
    _relative_offset: int
    def __init__(self, batch_size: int, compression_type: int) -> None: ...
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
    def _build(self) -> bytearray: ...

class MessageBatch:
    _drain_waiter: asyncio.Future[None]

class MessageAccumulator:
    _batches: dict[TopicPartition, deque[MessageBatch]]
