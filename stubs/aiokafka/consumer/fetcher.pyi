import asyncio
from collections import OrderedDict
from collections.abc import Callable

from aiokafka.structs import TopicPartition

class PartitionRecords:
    _consumer_record: Callable[[TopicPartition, object], object]

class FetchResult:
    _partition_records: PartitionRecords | None

class FetchError: ...

class Fetcher:
    _fetch_task: asyncio.Task[None]
    _pending_tasks: set[asyncio.Task[None]]
    _records: OrderedDict[TopicPartition, FetchResult | FetchError]
