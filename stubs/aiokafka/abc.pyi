from collections.abc import Awaitable

from aiokafka.structs import TopicPartition

class AbstractTokenProvider:
    async def token(self) -> str: ...

class ConsumerRebalanceListener:
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> Awaitable[None] | None: ...
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> Awaitable[None] | None: ...
