"""A membership in a stream's consumer group: it only learns this process's partitions.

Rules:

- The group's consumer never fetches: every partition that it gets is paused at once. From the first
  word of a rebalance until its end the client stops everything, and a rebalance lasts as long as
  the slowest member, up to a session time-out. Another consumer (`membership`) goes on fetching.
- A rebalance callback only takes notes; no heartbeat is sent while it runs.
- At each rebalance the group revokes everything and gives most of it back. Until the new assignment
  comes, the old one counts: a process that took a partition meanwhile has fenced us, and the next
  commit finds out.
- A consumer that is never polled leaves the group, and its errors (missing rights, an unusable
  coordinator) show only in a poll. So it is polled once a second, in a task of its own, because a
  poll waits for the end of a rebalance. After two errors in a row a new consumer takes its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.structs import TopicPartition

from streamdp.ports import StreamTopics
from streamdp_adapters.kafka import client_errors
from streamdp_adapters.kafka.internals import client_of
from streamdp_adapters.kafka.owner import group
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.static_membership import Name

_REBALANCE_MS = 60_000
_METADATA_MS = 60_000  # how soon new partitions are noticed
_HEARTBEAT_MS = 1000  # heartbeats announce a rebalance, so this bounds the time of a hand-over
_ASK_SECONDS = 1.0
_COMPLAINTS = 2
_RESTART_SECONDS = 30.0


class Group:
    """One process's seat in the group of one stream."""

    def __init__(
        self,
        topics: StreamTopics,
        *,
        settings: KafkaSettings,
        client_id: str,
        assigned: Callable[[set[int]], None],
        name: Name | None = None,
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._client_id = client_id
        self._assigned = assigned
        self._name = name
        self._watching: asyncio.Task[None] | None = None
        self._complaints = 0
        self._asking: asyncio.Task[None] | None = None
        self._asked = 0.0
        self._consumer = self._new_consumer()

    async def start(self) -> None:
        """Connect and ask for a share; `assigned` receives it later."""
        if self._name is not None:
            self._name.hold()
        await client_errors.start(self._consumer, self._settings)
        if self._name is not None:
            await self._name.succeed(client_of(self._consumer))
        self._consumer.subscribe([self._topics.input], listener=_Callbacks(self))
        if self._name is not None:
            await self._end_watch()
            self._watching = asyncio.create_task(self._name.watch(client_of(self._consumer)))

    async def stop(self) -> None:
        """Leave the group, within a bounded time."""
        await self._end_watch()
        if self._asking is not None:
            asking, self._asking = self._asking, None
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await client_errors.stop(self._consumer)
        if self._name is not None:
            self._name.release()

    async def _end_watch(self) -> None:
        """Stop looking for dead members with our name."""
        if self._watching is not None:
            watching, self._watching = self._watching, None
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def attend(self) -> None:
        """Prove that we are alive, and raise the group's errors; never waits."""
        if self._watching is not None and self._watching.done():
            watching, self._watching = self._watching, None
            watching.result()
        if self._asking is not None and self._asking.done():
            asking, self._asking = self._asking, None
            self._complaints += 1
            asking.result()
            self._complaints = 0
        if self._asking is None and time.monotonic() - self._asked >= _ASK_SECONDS:
            self._asked = time.monotonic()
            self._asking = asyncio.create_task(self._ask())

    async def committed(self, places: Iterable[TopicPartition]) -> dict[int, int]:
        """The group's offsets of partitions that it has any of."""
        offsets = {place.partition: await self._consumer.committed(place) for place in places}
        return {number: int(offset) for number, offset in offsets.items() if offset is not None}

    def partitions(self) -> set[int]:
        """Every partition of the input that is known now."""
        return set(self._consumer.partitions_for_topic(self._topics.input) or ())

    def assigned(self, given: set[int]) -> None:
        """Take a new assignment from the group."""
        for number in given:
            place = TopicPartition(self._topics.input, number)
            self._consumer.pause(place)
            # Seeking at once keeps the client from asking for a position, which it may not have.
            self._consumer.seek(place, 0)
        self._assigned(given)
        if self._name is not None:
            self._name.joined()

    async def _ask(self) -> None:
        """Poll, though no record ever comes; after errors use a new consumer."""
        if self._complaints >= _COMPLAINTS:
            await client_errors.stop(self._consumer)
            self._consumer = self._new_consumer()
            async with asyncio.timeout(_RESTART_SECONDS):
                await self.start()
        await self._consumer.getmany(timeout_ms=0)

    def _new_consumer(self) -> AIOKafkaConsumer:
        """A consumer of the group, not yet connected."""
        session = self._settings.session_timeout_ms
        return self._settings.consumer(
            group_id=group(self._topics),
            client_id=self._client_id,
            session_timeout_ms=session,
            heartbeat_interval_ms=min(session // 3, _HEARTBEAT_MS),
            rebalance_timeout_ms=_REBALANCE_MS,
            metadata_max_age_ms=_METADATA_MS,
            partition_assignment_strategy=(_assignor(),),
        )


class _Callbacks(ConsumerRebalanceListener):
    """Passes the group's messages on; the client would swallow exceptions in here."""

    def __init__(self, seat: Group) -> None:
        self._seat = seat

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Ignored: comes before each rebalance, and the old assignment counts until its end."""

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Comes after each rebalance, with the whole assignment."""
        self._seat.assigned({place.partition for place in assigned})


def _assignor() -> type[StickyPartitionAssignor]:
    """An assignor of our own: the client's keeps its memory in the class, one for all groups."""

    class Sticky(StickyPartitionAssignor):
        """Remembers the assignment of one consumer."""

    return Sticky
