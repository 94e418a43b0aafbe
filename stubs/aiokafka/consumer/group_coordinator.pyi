import asyncio

from aiokafka.structs import OffsetAndMetadata, TopicPartition

class BaseCoordinator:
    async def fetch_committed_offsets(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...

class NoGroupCoordinator(BaseCoordinator):
    _reset_committed_task: asyncio.Task[None] | None

class GroupCoordinator(BaseCoordinator):
    _coordination_task: asyncio.Task[None]
    _heartbeat_task: asyncio.Task[None] | None
    _commit_refresh_task: asyncio.Task[None] | None
