import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

READ_COMMITTED: int

class Unpacking(Protocol):
    @property
    def next_fetch_offset(self) -> int: ...

class Batches(Protocol):
    def has_next(self) -> bool: ...
    def next_batch(self) -> DefaultRecordBatch: ...

class PartitionRecords:
    _check_crcs: bool
    _records: Batches
    _records_iterator: object | None
    _consumer_record: Callable[[TopicPartition, object], object]
    _contains_abort_marker: Callable[[DefaultRecordBatch], bool]
    next_fetch_offset: int
    def __init__(
        self,
        tp: TopicPartition,
        records: MemoryRecords,
        aborted_transactions: Iterable[tuple[int, int]] | None,
        fetch_offset: int,
        key_deserializer: None,
        value_deserializer: None,
        check_crcs: bool,
        isolation_level: int,
    ) -> None: ...
    def __iter__(self) -> Iterator[DefaultRecord]: ...
    def _unpack_records(self) -> Iterator[Any]: ...

class FetchResult:
    _topic_partition: TopicPartition
    _partition_records: Unpacking | None
    getall: Callable[[int | None], list[DefaultRecord]]
    def __init__(
        self,
        tp: TopicPartition,
        *,
        assignment: object,
        partition_records: PartitionRecords,
        backoff: float,
    ) -> None: ...
    def check_assignment(self, tp: TopicPartition) -> bool: ...
    def _update_position(self) -> None: ...

class FetchError: ...

class Fetcher:
    _fetch_task: asyncio.Task[None]
    _pending_tasks: set[asyncio.Task[None]]
    _records: OrderedDict[TopicPartition, FetchResult | FetchError]
