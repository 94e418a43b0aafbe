"""The topics of a stream: what the promise needs of them, and what exists.

| topic | cleanup | why |
|---|---|---|
| input | delete | compaction removes slots by content (P1) |
| two inputs of one stream | delete, LogAppendTime | the brokers' clocks decide what goes together |
| output | delete | it is another stream's input |
| actions, catalogue, state | compact | only the newest record of each key is needed |
| ledger | delete, kept for ever | the guarantee is recomputed from all of it |
| quarantine, if it is on | delete, a week unless changed | for an operator to look at |

Replication ≥ 3, min ISR ≥ 2 and no unclean election, because a state that rolls back would draw
again what was published. ``single_broker`` accepts one copy, for trials. The derived topics have as
many partitions as the input, and take the largest value of a commit. The catalogue has one.

A take-over reads the whole state topic, and nothing in a compacted topic's newest segment is ever
compacted: with a broker's own settings (segments of a gigabyte or a week) that is everything
written for days. So the state has small segments that are cleaned soon (`_READ_WHOLE`). Larger
bounds cause a warning, and `topics check --mend` sets them: they cost time, not the promise.

A right that this user lacks on a topic is a problem of that topic, listed beside the others.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    NoError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from streamdp.core.errors import InvalidConfig
from streamdp.ports import Finding, StreamTopics, Verdict, check_paired
from streamdp_adapters.kafka import client_errors
from streamdp_adapters.kafka.decoding import missing_codecs
from streamdp_adapters.kafka.internals import client_of, close_first_connection, know_a_broker
from streamdp_adapters.kafka.sending import KEY_ROOM, RECORD_ROOM
from streamdp_adapters.kafka.settings import KafkaSettings

REPLICAS = 3
MIN_IN_SYNC = 2

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LARGEST = "max.message.bytes"
_PARTITIONS = ": partitions"  # ends the subject of a finding about their number
_FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1"}
_WEEK_MS = str(7 * 24 * 3600 * 1000)
_FOR_A_WEEK = {"retention.ms": _WEEK_MS, "retention.bytes": "-1"}  # as brokers do by default
_READ_BY_SLOTS = ("input", "second input", "output")
_READ_WHOLE = {
    "segment.bytes": str(8 << 20),  # beyond the live records, about so much is read
    "segment.ms": "30000",  # or what was written in so long, if that is less
    "min.cleanable.dirty.ratio": "0.3",  # the share that may be superseded before cleaning
    "min.compaction.lag.ms": "0",
    # A tombstone may be deleted before a reader that has seen the entry reaches it. The reader then
    # finds that entry again: a published release behind its saved row, or a row of an earlier
    # epoch. It has no effect, and is deleted again.
    "delete.retention.ms": "1000",
}
"""Upper bounds that keep a takeover's reading within a small multiple of the live records."""

_SEGMENT = "segment.bytes"
_BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}
_AS_PADDED = {"compression.type": "uncompressed"}
"""Where values are filled to a length that does not follow from content: a codec undoes that."""
_SPARINGLY = {"retention.ms": _WEEK_MS, "retention.bytes": str(1 << 30)}


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The largest batch, in bytes, that each topic of a stream takes."""

    input: int
    derived: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic as the promise needs it."""

    name: str
    role: str
    cleanup: str
    kept: Mapping[str, str]  # retention that must be exactly this
    replicas: int
    in_sync: int
    proposed: Mapping[str, str] = field(default_factory=dict)  # settings that may differ
    least: int = 0  # bytes that its largest batch must have room for
    bounds: Mapping[str, str] = field(default_factory=dict)  # settings that should be no larger
    fixed: Mapping[str, str] = field(default_factory=dict)  # other settings that must be so
    partitions: int = 0  # as many as the input if it is 0

    @property
    def settings(self) -> dict[str, str]:
        """The settings that the topic is created with."""
        return {
            "cleanup.policy": self.cleanup,
            "min.insync.replicas": str(self.in_sync),
            "unclean.leader.election.enable": "false",
            **self.kept,
            **self.fixed,
            **self.proposed,
            **self.bounds,
        }


@dataclass(frozen=True, slots=True)
class Described:
    """A topic as it is, as far as this user may see it."""

    partitions: int
    replicas: int
    settings: Mapping[str, str] | None  # None: no right to see them


There = Mapping[str, Described | None]
"""Topics that exist, by name; None for one that this user may not see, and that may be missing."""


def check_topic_names(streams: Sequence[StreamTopics]) -> None:
    """Refuse names that no topic can have; derived ones are right if the configuration's are."""
    for topics in streams:
        for name in filter(None, (topics.input, topics.second_input, topics.output)):
            if not _TOPIC.fullmatch(name) or name in (".", ".."):
                raise InvalidConfig(
                    f"stream {topics.stream}",
                    "no topic of Kafka can have this name",
                    expected="1 to 249 of A-Z, a-z, 0-9, '.', '_' and '-', not only dots",
                    got=repr(name),
                )


def wanted(topics: StreamTopics, settings: KafkaSettings) -> list[Wanted]:
    """The topics of a stream, the input first, and the quarantine if it is on."""
    if topics.output:
        return _wanted_in_pairs(topics, settings)
    replicas, in_sync = (1, 1) if settings.single_broker else (REPLICAS, MIN_IN_SYNC)
    shapes = [
        (topics.input, "input", "delete", {}),
        (topics.actions, "actions", "compact", {}),
        (topics.ledger, "ledger", "delete", _FOR_EVER),
        (topics.state, "state", "compact", {}),
    ]
    least = topics.largest_value + KEY_ROOM + RECORD_ROOM
    shaped = [Wanted(*shape, replicas=replicas, in_sync=in_sync, least=least) for shape in shapes]
    segment = max(int(_READ_WHOLE[_SEGMENT]), 2 * least)
    shaped[0] = replace(shaped[0], proposed=_FOR_A_WEEK, least=0)
    bounds = {**_READ_WHOLE, _SEGMENT: str(segment)}
    shaped[3] = replace(shaped[3], bounds=bounds, proposed=_AS_PADDED)
    if topics.quarantined:
        aside = replace(shaped[0], name=topics.quarantine, role="quarantine", proposed=_SPARINGLY)
        shaped.append(aside)
    name = topics.catalogue
    return [*shaped, replace(shaped[1], name=name, role="catalogue", least=0, partitions=1)]


def _wanted_in_pairs(topics: StreamTopics, settings: KafkaSettings) -> list[Wanted]:
    """Two inputs, an output, the ledger and the state: no actions are published.

    With producers' own timestamps, one far in the future would close every window; so the inputs
    use the brokers' time.
    """
    single = replace(topics, second_input="", output="")
    first, _, ledger, state, *_ = wanted(single, settings)
    inputs = [
        replace(first, name=name, role=role, fixed=_BROKERS_TIME)
        for name, role in ((topics.input, "input"), (topics.second_input, "second input"))
    ]
    output = replace(
        first,
        name=topics.output,
        role="output",
        least=state.least,
        proposed={**first.proposed, **_AS_PADDED},
    )
    return [*inputs, output, ledger, state]


@asynccontextmanager
async def administration(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    """The client's administration for as long as the block lasts."""
    with client_errors.translated("kafka"):
        await client_errors.reach(settings)
        client = AIOKafkaAdminClient(**settings.client())
        try:
            try:
                await client.start()
            except BaseException as error:
                close_first_connection(error)
                await client_of(client).close()  # its own is for a client that has started
                raise
            await know_a_broker(client_of(client))
            yield client
        finally:
            await client.close()


async def describe(client: AIOKafkaAdminClient, names: Sequence[str]) -> There:
    """The partitions and settings of these topics; a topic that does not exist is left out."""
    shapes = await seen_shapes(client, names)
    by_name = await _settings(client, [name for name, shape in shapes.items() if shape is not None])
    return {
        name: None if shape is None else Described(*shape, by_name[name])
        for name, shape in shapes.items()
    }


async def describe_shapes(
    client: AIOKafkaAdminClient, names: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """The partitions and replicas of these topics; a topic that does not exist is left out."""
    shapes: dict[str, tuple[int, int]] = {}
    for name, shape in (await seen_shapes(client, names)).items():
        if shape is None:
            raise TopicAuthorizationFailedError(name)
        shapes[name] = shape
    return shapes


async def shapes_of(settings: KafkaSettings, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The partitions and replicas of topics; `InvalidConfig` if one is missing."""
    async with administration(settings) as client:
        there = await describe_shapes(client, names)
    for name in names:
        if name not in there:
            raise InvalidConfig(
                f"topic {name}", "missing", expected="`streamdp topics create`", got="no such topic"
            )
    return {name: there[name] for name in names}


def no_such_partition(name: str, number: int, *, count: int) -> InvalidConfig:
    """The error for a number beyond a topic's partitions."""
    return InvalidConfig(
        f"topic {name}", "no such partition", expected=f"below {count}", got=number
    )


async def seen_shapes(
    client: AIOKafkaAdminClient, names: Sequence[str]
) -> dict[str, tuple[int, int] | None]:
    """Like `describe_shapes`, with None for a topic that this user may not describe."""
    shapes: dict[str, tuple[int, int] | None] = {}
    for topic in await client.describe_topics(list(dict.fromkeys(names))):
        error, parts = for_code(topic["error_code"]), topic["partitions"]
        if error is TopicAuthorizationFailedError:
            shapes[topic["topic"]] = None
        elif error is NoError:
            shapes[topic["topic"]] = (len(parts), min(len(part["replicas"]) for part in parts))
        elif error is not UnknownTopicOrPartitionError:
            raise error(topic["topic"])
    return shapes


async def _settings(
    client: AIOKafkaAdminClient, names: Sequence[str]
) -> dict[str, Mapping[str, str] | None]:
    """The settings in force of these topics; None without the right to see them."""
    if not names:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    by_topic: dict[str, Mapping[str, str] | None] = {}
    for answer in await client.describe_configs(resources):
        for code, message, _, name, entries in answer.resources:
            error = for_code(code)
            if error not in (NoError, TopicAuthorizationFailedError):
                raise error(f"describing the settings of {name}: {message}")
            may = error is NoError
            by_topic[name] = {entry[0]: entry[1] or "" for entry in entries} if may else None
    return by_topic


def findings(stream: StreamTopics, settings: KafkaSettings, there: There) -> Iterator[Finding]:
    """One finding for each property of a stream's topics, good or bad."""
    for topic in wanted(stream, settings):
        if topic.name in there:
            yield from compared(topic, there, source=stream.input)
        else:
            yield Finding(
                f"topic {topic.name}",
                Verdict.PROBLEM,
                f"missing: `streamdp topics create` makes the {topic.role}",
            )


def compared(topic: Wanted, there: There, *, source: str) -> Iterator[Finding]:
    """Compare an existing topic with what it must be."""
    subject, is_there, input_ = f"topic {topic.name}", there[topic.name], there.get(source)
    if is_there is None:
        yield _hidden(subject, "Describe")
        return
    if is_there.settings is None:
        yield _hidden(subject, "DescribeConfigs")
    else:
        yield from _compared(subject, topic, is_there.settings)
    yield _judged(
        f"{subject}: replication", f"at least {topic.replicas}", is_there.replicas,
        is_there.replicas >= topic.replicas, _trial(topic),
    )  # fmt: skip
    if topic.partitions and is_there.partitions != topic.partitions:
        detail = f"expected {topic.partitions}, got {is_there.partitions}; make it anew"
        yield Finding(f"{subject}: number of partitions", Verdict.PROBLEM, detail)
    elif not topic.partitions and input_ is not None and is_there.partitions != input_.partitions:
        yield Finding(
            subject + _PARTITIONS,
            Verdict.PROBLEM,
            f"expected as many as the input, {input_.partitions}, got {is_there.partitions}; "
            f"`streamdp topics expand --partitions {input_.partitions}` adds them",
        )


def _hidden(subject: str, right: str) -> Finding:
    """The finding for a missing right."""
    detail = f"no right to {right}: grant it to this user, so that the topic can be checked"
    return Finding(f"{subject}: {right}", Verdict.PROBLEM, detail)


def _compared(subject: str, topic: Wanted, settings: Mapping[str, str]) -> Iterator[Finding]:
    """Compare a topic's settings with what they must be."""
    policy = ",".join(sorted(settings.get("cleanup.policy", "").split(",")))
    compacted = topic.role in _READ_BY_SLOTS and "compact" in policy
    why = "; compaction removes slots by content" if compacted else ""
    yield _judged(f"{subject}: cleanup.policy", topic.cleanup, policy, policy == topic.cleanup, why)
    in_sync = int(settings.get("min.insync.replicas") or 0)
    yield _judged(
        f"{subject}: min.insync.replicas", f"at least {topic.in_sync}", in_sync,
        in_sync >= topic.in_sync, _trial(topic),
    )  # fmt: skip
    if topic.role in _READ_BY_SLOTS:
        yield from _compression(subject, settings.get("compression.type", ""))
    unclean = settings.get("unclean.leader.election.enable", "")
    yield _judged(
        f"{subject}: unclean.leader.election.enable", "false", unclean, unclean == "false",
        "; it would roll back what was published",
    )  # fmt: skip
    for name, value in {**topic.kept, **topic.fixed}.items():
        got, why = settings.get(name, ""), "; it is kept for good"
        if name in topic.fixed:
            why = "; a producer's own time could close windows that are open, or never close them"
        yield _judged(f"{subject}: {name}", value, got, got == value, why)
    if topic.least:
        for name in (_LARGEST, _SEGMENT):
            largest = int(settings.get(name) or 0)
            yield _judged(
                f"{subject}: {name}", f"at least {topic.least}", largest, largest >= topic.least,
                "; a commit would not fit",
            )  # fmt: skip
    for name in beyond(topic, settings):
        yield Finding(
            f"{subject}: {name}",
            Verdict.WARNING,
            f"expected at most {topic.bounds[name]}, got {settings.get(name, 'nothing')}; a"
            " takeover reads much more than is live: `streamdp topics check --mend` sets it",
        )


def _compression(subject: str, codec: str) -> Iterator[Finding]:
    """Whether what producers write can be decompressed here: an outcome that cannot is none."""
    missing = missing_codecs()
    subject, remedy = f"{subject}: compression.type", 'pip install "streamdp[compression]"'
    if codec in missing:
        yield Finding(subject, Verdict.PROBLEM, f"{codec} is not installed: {remedy}")
    elif codec == "producer" and missing:
        yield Finding(
            subject,
            Verdict.WARNING,
            f"expected one that is installed, got producer, which may be {' or '.join(missing)}:"
            f" {remedy}, or set another",
        )
    else:
        yield Finding(subject, Verdict.GOOD, codec)


def beyond(topic: Wanted, settings: Mapping[str, str]) -> list[str]:
    """The settings that are larger than they should be."""
    return [
        name
        for name, most in topic.bounds.items()
        if not settings.get(name) or float(settings[name]) > float(most)
    ]


def _trial(topic: Wanted) -> str:
    """The remedy for too few brokers."""
    return "; `single_broker = true` accepts it for a trial" if topic.replicas > 1 else ""


def _judged(subject: str, expected: object, got: object, good: bool, why: str) -> Finding:
    """One comparison as a finding."""
    if good:
        return Finding(subject, Verdict.GOOD, str(got))
    return Finding(subject, Verdict.PROBLEM, f"expected {expected}, got {got}{why}")


async def examine(
    settings: KafkaSettings, streams: Sequence[StreamTopics]
) -> dict[str, BatchLimits]:
    """Refuse topics that break the promise; return how large records may be.

    A quarantine with wrong settings stops nothing, and who learns needs no catalogue. Topics with
    fewer partitions than the input keep only the partitions that they lack from being taken
    (`owner`): another tool has expanded the input, and the others go on.
    """
    streams = [replace(stream, quarantined=False) for stream in streams]
    lists = {stream.catalogue for stream in streams}
    names = [topic.name for stream in streams for topic in wanted(stream, settings)]
    names = [name for name in names if name not in lists]
    async with administration(settings) as client:
        there = await describe(client, names)
    problems = [
        finding
        for stream in streams
        for finding in findings(stream, settings, there)
        if finding.verdict is Verdict.PROBLEM
        and not finding.subject.endswith(_PARTITIONS)
        and finding.subject != f"topic {stream.catalogue}"
    ]
    if problems:
        listed = "; ".join(f"{problem.subject}: {problem.detail}" for problem in problems)
        raise InvalidConfig(
            "kafka",
            "the topics are not as the promise needs them",
            expected="topics that `streamdp topics check` finds good",
            got=listed,
        )
    for stream in streams:
        if stream.output:
            check_paired(stream, {name: of.partitions for name, of in there.items() if of})
    return {stream.stream: _limits(stream, settings, there) for stream in streams}


def _limits(stream: StreamTopics, settings: KafkaSettings, there: There) -> BatchLimits:
    """The largest batches of a stream's topics, once nothing is wrong with them."""
    sizes: dict[str, int] = {}
    for topic in wanted(stream, settings):
        if topic.name == stream.catalogue:
            continue
        is_there = there[topic.name]
        assert is_there is not None, "a hidden topic is a problem"
        assert is_there.settings is not None, "hidden settings are a problem"
        sizes[topic.role] = min(int(is_there.settings[name]) for name in (_LARGEST, _SEGMENT))
    largest_input = sizes.pop("input")
    sizes.pop("second input", None)
    return BatchLimits(input=largest_input, derived=min(sizes.values()))
