"""The one transactional producer of a partition: whoever holds it owns the partition.

`transactional.id = <app>.<stream>.<partition>`. Initialising it fences every earlier owner (its
next send and its commit are refused) and ends that owner's open transaction. The steps:

1. `take` initialises the producer, then commits an *owner record* to the state partition. All
   earlier records end before its offset F.
2. `confirm` commits another owner record, which is refused if there is a later owner.
3. `commit` sends one transaction: state, actions, ledger lines and the group's offset. Every
   acknowledgement is awaited before the commit is requested, because the client commits even after
   a failed send.
4. After any error, time-out or cancellation the result is unknown: the owner is *lost* for good,
   its producer is abandoned, and only another `take` of the partition goes on. A producer is never
   initialised again. A lost answer to the commit's last request is such an error too: asking again
   could end a later transaction (`internals`).

Every wait is bounded: the client's commit and stop hang while the broker is down.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import TopicAuthorizationFailedError
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from streamdp.core.errors import InvalidConfig, TransportLost, Unexpanded
from streamdp.ports import Commit, Partition, Reached, StreamTopics
from streamdp_adapters.kafka import client_errors
from streamdp_adapters.kafka.internals import (
    AbandonableProducer,
    abandon_producer,
    know_topics,
    sender_error,
)
from streamdp_adapters.kafka.sending import BATCH_BYTES, RECORD_ROOM, Outbox, compacted_key
from streamdp_adapters.kafka.settings import KafkaSettings

OWNER_KEY = b"\x00owner"
"""The key of the owner record in the state topic; the service's entries never have it."""

COMMIT_SECONDS = 30.0
"""Seconds after which the result of a commit or an initialisation counts as unknown."""

TRANSACTION_TIMEOUT_MS = 60_000
"""Milliseconds until the coordinator aborts a dead owner's transaction; longer than any commit."""

_STOP_SECONDS = 2.0


def group(topics: StreamTopics) -> str:
    """The consumer group of a stream."""
    return f"{topics.app}.{topics.stream}"


def transactional_id(topics: StreamTopics, number: int) -> str:
    """The id that fences a partition's owners."""
    return f"{topics.app}.{topics.stream}.{number}"


def owner_of(record: bytes | None) -> str | None:
    """The worker that an owner record names.

    >>> owner_of(b'{"owner": "host-1"}')
    'host-1'
    """
    return None if record is None else str(json.loads(record)["owner"])


class PartitionOwner:
    """Holds one partition until it is lost or closed."""

    def __init__(
        self,
        topics: StreamTopics,
        number: int,
        *,
        settings: KafkaSettings,
        worker: str,
        largest: int,
        reached: Reached,
    ) -> None:
        self._topics = topics
        self._number = number
        self._partition = Partition(topics.stream, number)
        self._where = f"partition {self._partition}"
        self._settings = settings
        self._worker = worker
        self._largest = largest
        self._reached = reached
        self._commit: asyncio.Future[None] | None = None
        self._closing = False
        self.lost = False
        self._producer = AbandonableProducer(
            **settings.client(),
            transactional_id=transactional_id(topics, number),
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_batch_size=min(BATCH_BYTES, largest + RECORD_ROOM),
            client_id=f"streamdp-{worker}",
        )

    @property
    def client(self) -> AIOKafkaClient:
        """A client whose connection lasts until the partition is lost."""
        return self._producer.client

    async def take(self) -> int:
        """Fence every earlier owner, leave the owner record, and return its offset."""
        with client_errors.translated(self._where), self._root_cause():
            async with asyncio.timeout(COMMIT_SECONDS):
                await client_errors.start(self._producer, self._settings)
                self._reached("take: fenced", self._partition)
                await self._check_partition()
                owned_at = await self._leave_record()
        self._reached("take: owned", self._partition)
        return owned_at

    async def confirm(self) -> None:
        """Commit another owner record: the broker takes it from the last owner only."""
        if self.lost:
            return
        self.lost = True  # until the result is known
        with client_errors.translated(self._where), self._root_cause():
            async with asyncio.timeout(COMMIT_SECONDS):
                await self._leave_record()
        self.lost = False

    async def _leave_record(self) -> int:
        """Commit an owner record; return its offset."""
        await self._producer.begin_transaction()
        value = json.dumps({"owner": self._worker}).encode()  # `owner_of` reads it
        with Outbox(self._producer) as out:
            await out.put(self._topics.state, self._number, [(OWNER_KEY, value)])
            (record,) = await out.acknowledged()
        await self._producer.commit_transaction()
        return int(record.offset)

    async def _check_partition(self) -> None:
        """Wait for a partition that the input has but a topic beside it has not.

        Another tool has expanded the input alone. The topics are asked for anew at each taking.
        """
        topics = self._topics
        paired = [topics.second_input, topics.output] if topics.output else [topics.actions]
        names = [topics.input, topics.state, topics.ledger, *paired]
        await know_topics(self._producer, names)
        counts = {name: len(await self._producer.partitions_for(name)) for name in names}
        for name, count in counts.items():
            if count <= self._number:
                expected = max(counts[topics.input], self._number + 1)
                raise Unexpanded(self._where, name, expected=expected, got=count)

    async def commit(self, commit: Commit) -> None:
        """Make one step durable and visible, all or nothing."""
        if self.lost:
            raise TransportLost(
                self._where,
                "commit refused",
                expected="a partition that was taken",
                got="one that was lost or never taken",
            )
        assert self._commit is None, "at most one commit of a partition is in flight"
        self._check_sizes(commit)
        self.lost = True  # until the result is known, also on cancellation
        self._commit = asyncio.ensure_future(self._transaction(commit))
        try:
            with client_errors.translated(self._where), self._root_cause():
                async with asyncio.timeout(COMMIT_SECONDS):
                    await self._commit
            self.lost = False
        except asyncio.CancelledError:
            if not self._closing:
                raise
            raise TransportLost(
                self._where,
                "the process left while a commit was in flight",
                expected="its outcome",
                got="none: the commit may or may not be durable",
            ) from None
        finally:
            self._commit = None

    async def _transaction(self, commit: Commit) -> None:
        """Send all records, wait for every acknowledgement, then commit."""
        topics = self._topics
        await self._producer.begin_transaction()
        self._reached("commit: begun", self._partition)
        position = {
            TopicPartition(topics.input, self._number): OffsetAndMetadata(
                commit.next_offset, commit.remark
            )
        }
        if commit.second_input is not None:
            second_input = TopicPartition(topics.second_input, self._number)
            position[second_input] = OffsetAndMetadata(commit.second_input, "")
        actions = [(compacted_key(key), value) for key, value in commit.actions]
        with Outbox(self._producer) as out:
            await out.put(topics.state, self._number, commit.state)
            await out.put(topics.actions, self._number, actions)
            await out.put(topics.ledger, self._number, commit.ledger)
            if commit.records:
                written = [(key, value) for key, value, _ in commit.records]
                headers = [pairs for _, _, pairs in commit.records]
                await out.put(topics.output, self._number, written, headers)
            await out.acknowledged(
                self._producer.send_offsets_to_transaction(position, group(topics))
            )
        self._reached("commit: sent", self._partition)
        await self._producer.commit_transaction()
        self._reached("commit: decided", self._partition)

    @contextmanager
    def _root_cause(self) -> Iterator[None]:
        """Raise the error that ended the producer's sender, not the errors that it caused."""
        try:
            yield
        except client_errors.CLIENTS as error:
            cause = sender_error(self._producer)
            if isinstance(cause, TopicAuthorizationFailedError) and not cause.args:
                # The client names every topic but that of offsets.
                cause = TopicAuthorizationFailedError(self._topics.input)
            if cause is not None:
                raise cause from error
            raise

    def _check_sizes(self, commit: Commit) -> None:
        """Refuse what the broker would refuse, before anything is sent."""
        sizes = {
            what: [len(key or b"") + len(value or b"") for key, value in records]
            for what, records in (
                ("state", commit.state),
                ("action", commit.actions),
                ("ledger line", commit.ledger),
            )
        }
        sizes[f"record to {self._topics.output}"] = [
            len(key or b"")
            + len(value or b"")
            + sum(len(name.encode()) + len(content or b"") + 10 for name, content in pairs)
            for key, value, pairs in commit.records
        ]
        for what, of in sizes.items():
            if (largest := max(of, default=0)) > self._largest:
                raise InvalidConfig(
                    f"{self._where}: {what}",
                    "larger than the topic takes; raise max.message.bytes",
                    expected=f"at most {self._largest} bytes",
                    got=largest,
                )
        if any(key == OWNER_KEY for key, _ in commit.state):
            raise InvalidConfig(
                f"{self._where}: state", "a reserved key", expected="another key", got=OWNER_KEY
            )

    async def close(self) -> None:
        """Close the producer: in order if nothing is open, else by force; always bounded."""
        orderly, self.lost, self._closing = not self.lost, True, True
        if self._commit is not None:
            self._commit.cancel()
        if orderly:
            stopping = asyncio.ensure_future(self._producer.stop())
            await asyncio.wait([stopping], timeout=_STOP_SECONDS)
            if stopping.done():
                stopping.exception()  # nothing depends on its error
                return
            stopping.cancel()
        await abandon_producer(self._producer)
