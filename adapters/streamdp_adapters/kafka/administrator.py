"""Creates, checks, expands and inspects what streams need on a cluster; owns no partition."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import (
    InvalidReplicationFactorError,
    NoError,
    TopicAlreadyExistsError,
    for_code,
)
from aiokafka.structs import TopicPartition

from streamdp.core.errors import InvalidConfig, counted
from streamdp.ports import (
    Finding,
    LastCommit,
    LiveEntries,
    Partition,
    Records,
    StreamTopics,
    Taken,
    Verdict,
)
from streamdp_adapters.kafka import catalogue, doctor, reading
from streamdp_adapters.kafka.internals import ask_any_node
from streamdp_adapters.kafka.requests import AlterSettings
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.topics import (
    REPLICAS,
    Described,
    There,
    Wanted,
    administration,
    beyond,
    compared,
    describe,
    describe_shapes,
    findings,
    no_such_partition,
    shapes_of,
    wanted,
)

_SEEN_SECONDS = 20.0  # within which every broker knows a new topic
_SEEN_AGAIN = 0.02


class KafkaAdministrator:
    """The administrator's tools; each call makes its own connection."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    async def create(
        self, streams: Sequence[StreamTopics], *, partitions: int
    ) -> Sequence[Finding]:
        """Create what is missing, the input included; change no existing topic.

        An existing input decides how many partitions its derived topics get. An existing topic with
        wrong settings is a problem; one that this user may not inspect is only mentioned.
        """
        done: list[Finding] = []
        async with administration(self._settings) as client:
            shapes = await describe_shapes(client, self._names(streams))
            there = await describe(client, list(shapes)) if shapes else {}
            for stream in streams:
                of_input = shapes.get(stream.input, (partitions, 0))[0]
                for topic in wanted(stream, self._settings):
                    if topic.name in there:
                        done += _was_there(topic, there, source=stream.input)
                    if topic.name in shapes:
                        continue
                    count = topic.partitions or of_input
                    new = NewTopic(topic.name, count, topic.replicas, topic_configs=topic.settings)
                    answer = await client.create_topics([new])
                    _raise_first(answer.topic_errors)
                    shapes[topic.name] = (count, topic.replicas)
                    shape = f"{counted(count, 'partition')}, {counted(topic.replicas, 'replica')}"
                    done.append(
                        Finding(
                            f"topic {topic.name}",
                            Verdict.CHANGED,
                            f"made with {shape}, {topic.cleanup}",
                        )
                    )
            await _until_seen(client, {name: shape[0] for name, shape in shapes.items()})
        return done

    async def check(self, streams: Sequence[StreamTopics]) -> Sequence[Finding]:
        """Compare what exists with what the promise needs; change nothing."""
        async with administration(self._settings) as client:
            there = await describe(client, self._names(streams))
        return [
            finding for stream in streams for finding in findings(stream, self._settings, there)
        ]

    async def mend(self, streams: Sequence[StreamTopics]) -> Sequence[Finding]:
        """Set the settings that bound a takeover's reading, one by one; then check.

        It changes nothing that the promise rests on: what is kept and how often it is copied is for
        the cluster's owners.
        """
        mended: dict[str, Finding] = {}
        async with administration(self._settings) as client:
            there = await describe(client, self._names(streams))
            for stream in streams:
                for topic in wanted(stream, self._settings):
                    mended |= await _mend(client, topic, there.get(topic.name))
        checked = {finding.subject: finding for finding in await self.check(streams)}
        return list((checked | mended).values())

    async def expand(
        self, streams: Sequence[StreamTopics], *, partitions: int
    ) -> Sequence[Finding]:
        """Give the input and its derived topics more partitions; never fewer.

        The input comes last: when a partition of it first appears, its state must exist.
        """
        done: list[Finding] = []
        async with administration(self._settings) as client:
            names = [topic.name for topic in self._topics(streams) if not topic.partitions]
            there = await describe_shapes(client, names)
            for name in names:  # before anything is changed
                if name not in there or there[name][0] > partitions:
                    raise InvalidConfig(
                        f"topic {name}",
                        "cannot be made smaller",
                        expected=f"a topic with at most {counted(partitions, 'partition')}",
                        got=there[name][0] if name in there else "no such topic",
                    )
            inputs = {stream.input for stream in streams}
            for name in sorted(dict.fromkeys(names), key=lambda name: name in inputs):
                if there[name][0] == partitions:
                    done.append(Finding(f"topic {name}", Verdict.GOOD, f"has {partitions}"))
                    continue
                await client.create_partitions({name: NewPartitions(partitions)})
                done.append(
                    Finding(
                        f"topic {name}", Verdict.CHANGED, f"from {there[name][0]} to {partitions}"
                    )
                )
            await _until_seen(client, dict.fromkeys(names, partitions))
        return done

    async def existing(self, streams: Sequence[StreamTopics]) -> Sequence[str]:
        """The topics of these streams that exist."""
        async with administration(self._settings) as client:
            return sorted(await describe_shapes(client, self._names(streams)))

    async def remove(self, streams: Sequence[StreamTopics]) -> None:
        """Delete the topics of these streams, with all that they hold."""
        async with administration(self._settings) as client:
            answer = await client.delete_topics(sorted(await self.existing(streams)))
            _raise_first([(name, code, None) for name, code in answer.topic_error_codes])

    def commands(self, streams: Sequence[StreamTopics], *, partitions: int) -> str:
        """The commands of Kafka's own tools, and the same as a manifest in comments."""
        topics = list(
            {
                topic.name: topic for stream in streams for topic in wanted(stream, self._settings)
            }.values()
        )
        lines = [self._command(topic, partitions) for topic in topics]
        manifest = [
            {
                "topic": topic.name,
                "partitions": topic.partitions or partitions,
                "replicas": topic.replicas,
                "config": topic.settings,
            }
            for topic in topics
        ]
        as_comments = ["# the same as a manifest:", *(f"# {json.dumps(item)}" for item in manifest)]
        return "\n".join([*lines, "", *as_comments, ""])

    async def probe(
        self, streams: Sequence[StreamTopics], *, written: Sequence[str] = ()
    ) -> Sequence[Finding]:
        """Try reachability, credentials and rights; leave nothing behind that counts."""
        return await doctor.probe(self._settings, streams, written)

    async def revise(self, stream: StreamTopics, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace the list in the catalogue, as its only writer; fenced by another, try again."""
        await shapes_of(self._settings, [stream.catalogue])
        return await catalogue.revise(self._settings, stream, change)

    async def peek(
        self, stream: StreamTopics, partition: int, *, entries: LiveEntries | None = None
    ) -> Taken:
        """Read a partition's durable state without fencing its owner."""
        await self._require(stream, partition)
        return await reading.durable(
            self._settings, stream, partition, owned_at=None, entries=entries
        )

    async def last_commits(
        self, stream: StreamTopics, *, marks: Callable[[int], Collection[bytes]]
    ) -> AsyncIterator[LastCommit]:
        """The newest records of the state topic, if this user may see it."""
        async with administration(self._settings) as client:
            there = await describe_shapes(client, [stream.state])
        if stream.state in there:
            async for commit in reading.last_commits(self._settings, stream.state, marks=marks):
                yield commit

    async def newest(self, stream: StreamTopics, *, count: int) -> Sequence[Records]:
        """About the `count` newest input records. NOT PRIVATE."""
        partitions = await self._partitions(stream)
        share = -(-count // partitions)
        newest = self._input(stream, partitions, lambda _, end: end - share)
        return [batch async for batch in newest]

    async def history(
        self, stream: StreamTopics, *, after: Mapping[int, int]
    ) -> AsyncIterator[Records]:
        """The whole retained input, batch by batch. NOT PRIVATE."""
        partitions = await self._partitions(stream)
        async for records in self._input(stream, partitions, lambda at, _: after.get(at, 0)):
            yield records

    async def _input(
        self, stream: StreamTopics, partitions: int, start_of: Callable[[int, int], int]
    ) -> AsyncIterator[Records]:
        """The retained input from an offset that is computed from the partition and its end."""
        async with reading.reader(
            self._settings, (stream.input,), where=f"topic {stream.input}"
        ) as look:
            for number in range(partitions):
                first, end = await look.bounds(TopicPartition(stream.input, number))
                start = max(first, start_of(number, end))
                if start < end:
                    partition = Partition(stream.stream, number)
                    async for records in look.input(stream, partition, start, end):
                        yield records

    async def _partitions(self, stream: StreamTopics) -> int:
        """The number of the input's partitions; `InvalidConfig` if there is none."""
        return (await shapes_of(self._settings, [stream.input]))[stream.input][0]

    async def _require(self, stream: StreamTopics, partition: int) -> None:
        """Refuse a partition that does not exist: a client would ask until its time is up."""
        second_input = [stream.second_input] if stream.output else []
        there = await shapes_of(
            self._settings, [stream.input, stream.state, stream.ledger, *second_input]
        )
        for name, (count, _) in there.items():
            if partition >= count:
                raise no_such_partition(name, partition, count=count)

    async def close(self) -> None:
        """Do nothing: each call makes its own connection."""

    def _topics(self, streams: Sequence[StreamTopics]) -> list[Wanted]:
        """All topics of these streams."""
        return [topic for stream in streams for topic in wanted(stream, self._settings)]

    def _names(self, streams: Sequence[StreamTopics]) -> list[str]:
        """The names of all topics of these streams."""
        return [topic.name for topic in self._topics(streams)]

    def _command(self, topic: Wanted, partitions: int) -> str:
        """Kafka's own command for one topic."""
        parts = [
            "kafka-topics.sh", "--bootstrap-server", self._settings.servers[0], "--create",
            "--topic", topic.name, "--partitions", str(topic.partitions or partitions),
            "--replication-factor", str(topic.replicas),
        ]  # fmt: skip
        for name, value in topic.settings.items():
            parts += ["--config", f"{name}={value}"]
        return shlex.join(parts)


async def _mend(
    client: AIOKafkaAdminClient, topic: Wanted, is_there: Described | None
) -> dict[str, Finding]:
    """Lower settings that are larger than they should be; return what was set, by subject."""
    if is_there is None or is_there.settings is None:
        return {}
    names = beyond(topic, is_there.settings)
    if not names:
        return {}
    request = AlterSettings(topic.name, {name: topic.bounds[name] for name in names})
    answer = await ask_any_node(client, request)
    for code, message, *_ in answer.resources:
        error = for_code(code)
        if error is not NoError:
            raise error(f"{topic.name}: {message}")
    return {
        f"topic {topic.name}: {name}": Finding(
            f"topic {topic.name}: {name}",
            Verdict.CHANGED,
            f"from {is_there.settings.get(name, 'nothing')} to {topic.bounds[name]}",
        )
        for name in names
    }


def _was_there(topic: Wanted, there: There, *, source: str) -> list[Finding]:
    """The faults of a topic that existed already."""
    is_there = there[topic.name]
    if is_there is None or is_there.settings is None:
        detail = "was there, unchecked: no right to DescribeConfigs"
        return [Finding(f"topic {topic.name}", Verdict.WARNING, detail)]
    findings = compared(topic, there, source=source)
    wrong = [finding for finding in findings if finding.verdict is not Verdict.GOOD]
    return wrong or [Finding(f"topic {topic.name}", Verdict.GOOD, "was there")]


async def _until_seen(client: AIOKafkaAdminClient, partitions: dict[str, int]) -> None:
    """Wait until brokers know what the controller has just decided."""
    async with asyncio.timeout(_SEEN_SECONDS):
        while True:
            there = await describe_shapes(client, list(partitions))
            if all(there.get(name, (0, 0))[0] >= count for name, count in partitions.items()):
                return
            await asyncio.sleep(_SEEN_AGAIN)


def _raise_first(errors: Sequence[tuple[str, int, str | None]]) -> None:
    """Raise the first error of an answer; a topic that somebody else just created is no error."""
    for name, code, message in errors:
        error = for_code(code)
        if error is InvalidReplicationFactorError:
            expected = f"{REPLICAS} brokers, or `single_broker = true` for a trial with one copy"
            raise InvalidConfig(f"topic {name}", "too few brokers", expected=expected, got=message)
        if error not in (NoError, TopicAlreadyExistsError):
            raise error(f"{name}: {message}")
