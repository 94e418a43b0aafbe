from collections.abc import Mapping, Sequence
from typing import TypedDict

from aiokafka.admin.config_resource import ConfigResource
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import OffsetAndMetadata, TopicPartition

class PartitionDescription(TypedDict):
    replicas: list[int]

class TopicDescription(TypedDict):
    error_code: int
    topic: str
    partitions: list[PartitionDescription]

class DeleteTopicsResponse:
    topic_error_codes: Sequence[tuple[str, int]]

class CreateTopicsResponse:
    topic_errors: list[tuple[str, int, str | None]]

class DescribeConfigsResponse:
    resources: list[tuple[int, str | None, int, str, list[tuple[str, str | None]]]]

class DescribeGroupsResponse:
    groups: list[tuple[object, ...]]

class NewTopic:
    def __init__(
        self,
        name: str,
        num_partitions: int,
        replication_factor: int,
        *,
        topic_configs: Mapping[str, str] | None = ...,
    ) -> None: ...

class NewPartitions:
    def __init__(self, total_count: int) -> None: ...

class RecordsToDelete:
    def __init__(self, before_offset: int) -> None: ...

class AIOKafkaAdminClient:
    _client: AIOKafkaClient
    def __init__(self, **configs: object) -> None: ...
    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def create_topics(self, new_topics: Sequence[NewTopic]) -> CreateTopicsResponse: ...
    async def delete_topics(self, topics: Sequence[str]) -> DeleteTopicsResponse: ...
    async def create_partitions(self, topic_partitions: Mapping[str, NewPartitions]) -> object: ...
    async def delete_records(
        self, records_to_delete: Mapping[TopicPartition, RecordsToDelete]
    ) -> object: ...
    async def alter_configs(self, config_resources: Sequence[ConfigResource]) -> object: ...
    async def list_topics(self) -> list[str]: ...
    async def find_coordinator(self, group_id: str, coordinator_type: int = ...) -> int: ...
    async def describe_consumer_groups(
        self, group_ids: list[str], group_coordinator_id: int | None = ...
    ) -> list[DescribeGroupsResponse]: ...
    async def list_consumer_group_offsets(
        self, group_id: str
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...
    async def describe_topics(self, topics: Sequence[str]) -> list[TopicDescription]: ...
    async def describe_configs(
        self, config_resources: Sequence[ConfigResource]
    ) -> list[DescribeConfigsResponse]: ...
