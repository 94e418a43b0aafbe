"""Topic ids, which distinguish a topic from an earlier one with its name.

A topic that is deleted and recreated starts its offsets again. Kafka gives each topic an id since
version 2.8; `requests` has the question. From a broker without ids there is none: then the service
looks for the last record that it read.

`TopicWatch` asks once a second while partitions are worked on, and once more before a partition
that was taken is delivered: a taking may be long, and what is recreated meanwhile must never be
read. A changed id halts its partitions; as for any halt, the transport confirms ownership first. It
ignores brokers that do not answer: other code notices them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Set

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError

from streamdp.core.errors import OTHER_TOPIC, OTHER_TOPICS, StateMismatch
from streamdp.ports import Partition, StreamTopics, Taken
from streamdp_adapters.kafka.requests import NO_ID, TopicIds

_SECONDS = 1.0
"""Seconds between two questions; about so long a recreated topic may go unnoticed."""

_PATIENCE = 5.0
"""Seconds that one question may take."""


async def topic_ids(client: AIOKafkaClient, names: Iterable[str]) -> dict[str, str]:
    """The ids of existing topics, as text; empty if brokers have no ids."""
    node = client.get_random_node()
    try:
        answer = await client.send(node, TopicIds(names))
    except (NotImplementedError, IncompatibleBrokerVersion):
        return {}
    return {
        topic: str(topic_id)
        for error, topic, topic_id, *_ in answer.topics
        if not error and topic_id != NO_ID
    }


class TopicWatch:
    """Checks whether inputs, also second ones, are still the topics that they were when taken."""

    def __init__(self) -> None:
        self._topics: dict[Partition, StreamTopics] = {}
        self._known: dict[Partition, dict[str, str]] = {}  # the ids of its inputs, by topic
        self._new: set[Partition] = set()  # not asked about since they were taken
        self._asked = time.monotonic()
        self._asking: asyncio.Task[dict[str, str]] | None = None

    def begin(self, partition: Partition, topics: StreamTopics, taken: Taken) -> None:
        """Start to watch the inputs of a partition that was taken, as far as they have ids."""
        self.end(partition)
        ids = {topics.input: taken.input_id, topics.second_input: taken.second_input.id}
        known = {name: topic_id for name, topic_id in ids.items() if topic_id is not None}
        if known:
            self._topics[partition], self._known[partition] = topics, known
            self._new.add(partition)

    def end(self, partition: Partition) -> None:
        """Stop watching this partition's topics."""
        self._topics.pop(partition, None)
        self._known.pop(partition, None)
        self._new.discard(partition)

    def is_new(self, partition: Partition) -> bool:
        """Whether to ask before this partition is delivered."""
        return partition in self._new

    async def ask(
        self, partitions: Set[Partition], client: AIOKafkaClient | None
    ) -> dict[Partition, StateMismatch]:
        """Ask now, so that these are new no longer, and wait for the answer."""
        await self.close()  # an older question
        self._new -= partitions
        self._asked = time.monotonic()
        return self._replaced(await _ask(client, self._names()) if client else {})

    def look(self, client: AIOKafkaClient | None) -> dict[Partition, StateMismatch]:
        """The errors in the newest answer; asks again once a second, in the background."""
        errors: dict[Partition, StateMismatch] = {}
        if self._asking is not None and self._asking.done():
            asking, self._asking = self._asking, None
            if not asking.cancelled() and asking.exception() is None:
                errors = self._replaced(asking.result())
        now = time.monotonic()
        if self._asking is None and self._known and client and now - self._asked >= _SECONDS:
            self._asked = now
            self._asking = asyncio.create_task(_ask(client, self._names()))
        return errors

    def _names(self) -> set[str]:
        return {name for known in self._known.values() for name in known}

    def _replaced(self, ids: Mapping[str, str]) -> dict[Partition, StateMismatch]:
        """The partitions with an input of another id now: again and again, until they are left."""
        errors = {}
        for partition, inputs in self._known.items():
            for name, known in inputs.items():
                now = ids.get(name, known)  # a missing topic may be recreated, or come back
                if now != known:
                    topics = self._topics[partition]
                    errors[partition] = recreated(topics, partition, name, known=known, now=now)
        return errors

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
            self._asking = None


async def _ask(client: AIOKafkaClient, names: Iterable[str]) -> dict[str, str]:
    """The topics' ids now; empty if no broker answers."""
    try:
        async with asyncio.timeout(_PATIENCE):
            return await topic_ids(client, names)
    except (KafkaError, OSError, TimeoutError):
        return {}


def recreated(
    topics: StreamTopics, partition: Partition, name: str, *, known: str, now: str
) -> StateMismatch:
    """The error for an input that was deleted and recreated while it was read; says no offset."""
    what = f"the input was deleted and recreated; {OTHER_TOPIC}"
    if topics.second_input:
        what = f"requests or outcomes were deleted and recreated; {OTHER_TOPICS}"
    return StateMismatch(
        f"partition {partition}", what, expected=f"{name} with topic id {known}", got=now
    )
