"""Metrics of a process that learns or assembles: its partitions, its steps, its transport.

Public: slots, blocks, lag, ages, durations of public steps, as of the newest snapshot. What was
released and charged is on `streamdp serve`'s page (`streamdp.serve.metrics`, whose rules hold here
too). `most_series` bounds the page for any number of partitions: those beyond it are merged into
one, called ``rest``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from streamdp.core.errors import InvalidConfig
from streamdp.serve.about import About
from streamdp.serve.families import counter, gauge, histogram
from streamdp.serve.metrics import certificate, configured, refusals
from streamdp.serve.traffic import Refusal, Traffic
from streamdp.service.view import (
    BUCKETS,
    STEPS,
    PartitionStatus,
    ProcessStatus,
    Reason,
    Status,
    StreamStatus,
)

REST = "rest"
LOST_SECONDS = 15.0
"""A transport that has not answered a poll for so many seconds counts as down."""

Value = Callable[[PartitionStatus], float | None]
"""What a partition shows; None: nothing."""

Together = Callable[[list[float]], float]
"""How several partitions are one."""


@dataclass(frozen=True, slots=True)
class OfPartition:
    """A metric that each partition has a series of."""

    family: Callable[..., Metric]
    name: str
    help: str
    value: Value
    together: Together = sum


def _furthest(hours: list[float]) -> float:
    return max(hours, key=abs)


_OF_LEARNING = (
    OfPartition(counter, "streamdp_slots", "Slots learned from.", lambda part: part.slots),
    OfPartition(
        counter,
        "streamdp_blocks",
        "Blocks finished: one private selection each.",
        lambda part: part.blocks,
    ),
    OfPartition(
        counter,
        "streamdp_keys_beyond_limit",
        "Slots of keys that got no learner: beyond the limit, or too long.",
        lambda part: part.keys_refused,
    ),
    OfPartition(gauge, "streamdp_keys", "Keys with a learner.", lambda part: part.keys),
    OfPartition(
        gauge, "streamdp_lag_records", "Records that wait in the input.", lambda part: part.lag
    ),
    OfPartition(
        gauge,
        "streamdp_lag_seconds",
        "Since this process first saw the oldest record that waits; 0 while none does.",
        lambda part: part.lag_seconds,
        max,
    ),
)
"""Of streams."""

_OF_ASSEMBLING = (
    OfPartition(
        counter,
        "streamdp_events_assembled",
        "Requests that became events.",
        lambda part: part.events,
    ),
    OfPartition(
        gauge,
        "streamdp_requests_open",
        "Requests that wait for their deadline.",
        lambda part: part.open,
    ),
    OfPartition(
        gauge, "streamdp_requests_unread", "Requests that were not read yet.", lambda part: part.lag
    ),
    OfPartition(
        gauge,
        "streamdp_requests_unread_seconds",
        "Since this process first saw the oldest request that was not read; 0 while none waits.",
        lambda part: part.lag_seconds,
        max,
    ),
    OfPartition(
        gauge,
        "streamdp_event_overdue_seconds",
        "For how long the oldest open request should have been an event, in whole minutes.",
        lambda part: part.overdue,
        max,
    ),
)
"""Of assemblies: functions of requests and clocks alone. Nothing counts outcomes or says how far
they were read: that is for operators. A slow reading of outcomes could show only as an overdue
event, so delays are given in whole minutes."""

_OF_BOTH = (
    OfPartition(
        gauge,
        "streamdp_rebuild_progress_ratio",
        "Progress of taking a partition: 0 while its state is read, 1 once it learns.",
        lambda part: part.progress,
        min,
    ),
    OfPartition(
        gauge,
        "streamdp_rebuild_window_records",
        "Records that a rebuild would read again.",
        lambda part: part.position - part.low_water,
        max,
    ),
    OfPartition(
        gauge,
        "streamdp_retention_headroom_records",
        "Records between the oldest that the input keeps and the oldest that a rebuild needs.",
        lambda part: part.headroom,
        min,
    ),
    OfPartition(
        gauge,
        "streamdp_input_kept_records",
        "Records that the partition's input keeps, needed or not; where the transport trims it.",
        lambda part: part.kept,
        max,
    ),
    OfPartition(
        gauge,
        "streamdp_input_retain_records",
        "Records that the transport is set to keep beyond what rebuilds need (`retain`).",
        lambda part: part.retain,
        max,
    ),
    OfPartition(
        gauge,
        "streamdp_clock_ahead_seconds",
        "By which the input's newest timestamp is ahead of this process's clock, in whole hours.",
        lambda part: None if part.clock_ahead is None else part.clock_ahead * 3600,
        _furthest,
    ),
)
"""Of both: the label `stream` holds an assembly's name where a stream has its own."""

_A_STREAM = 31  # most series of each stream, without its partitions
# and waiting, refused, missing, halted
_A_PARTITION = len(_OF_LEARNING) + len(_OF_BOTH) + 3 + len(Reason)
_A_PROCESS = len(STEPS) * (len(BUCKETS) + 3) + 10 + len(Refusal)  # and build, process, certificate

ShownStreams = Sequence[tuple[str, str, Sequence[PartitionStatus]]]
"""A stream's or an assembly's name, a label, and its partition; or all of those of `rest`."""


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """The data that a metrics page is made from."""

    about: Sequence[About]
    process: ProcessStatus | None  # None before its first snapshot
    assemblies: Mapping[str, int] = field(default_factory=dict)  # the epoch of each configured one
    expires_at: float | None = None  # the listener's certificate, in seconds since 1970
    traffic: Traffic = field(default_factory=Traffic)


class ProcessMetrics:
    """The families of the page."""

    def __init__(self, facts: Callable[[], ServiceFacts], *, most_series: int) -> None:
        streams = len(facts().about) + len(facts().assemblies)
        left = most_series - _A_PROCESS - streams * (_A_STREAM + _A_PARTITION)
        if left < 0:
            raise InvalidConfig(
                "operations.most_series",
                f"too few for {streams} streams and assemblies",
                expected=f"at least {most_series - left}",
                got=most_series,
            )
        self._most_partitions = 1 + left // _A_PARTITION // max(1, streams)
        self._facts = facts

    def families(self) -> Iterator[Metric]:
        """Every family."""
        facts = self._facts()
        yield from configured(facts.about, facts.assemblies)
        yield from _learning(facts, self._most_partitions)
        yield from certificate(facts.expires_at)
        yield from refusals(facts.traffic)


def _learning(facts: ServiceFacts, most: int) -> Iterator[Metric]:
    """The partitions of this process, and its steps."""
    process = facts.process
    if process is None:
        return
    labels, parts = ["stream", "partition"], _shown(process.work, most)
    yield from _families(_OF_LEARNING, process.streams, most)
    yield from _families(_OF_BOTH, process.work, most)
    if process.assemblies:
        yield from _families(_OF_ASSEMBLING, process.assemblies, most)
    yield gauge(
        "streamdp_partition_halted",
        "1 if the partition has halted for this reason: somebody must act.",
        [*labels, "reason"],
        (
            ((name, label, str(reason)), float(any(part.reason is reason for part in of)))
            for name, label, of in parts
            for reason in Reason
        ),
    )
    yield gauge(
        "streamdp_partition_waiting",
        "1 if the partition waits for a process with a later epoch, as in a roll-out.",
        labels,
        (
            (
                (name, label),
                float(
                    any(part.status is Status.WAITING for part in of)
                    and all(part.reason is None for part in of)
                ),
            )
            for name, label, of in parts
        ),
    )
    yield gauge(
        "streamdp_access_refused",
        "1 while the transport refuses the partition's rights or certificates, by this error; of no"
        " partition where the input itself may not be seen.",
        [*labels, "error"],
        [
            *(
                ((name, label, refused), 1.0)
                for name, label, of in parts
                if (refused := next((part.refused for part in of if part.refused), ""))
            ),
            *(((name, "", refused), 1.0) for name, refused in process.hidden),
        ],
    )
    yield gauge(
        "streamdp_partition_missing",
        "1 while this topic lacks a partition that the input has.",
        [*labels, "topic"],
        (
            ((name, label, lacking), 1.0)
            for name, label, of in parts
            if (lacking := next((part.lacking for part in of if part.lacking), ""))
        ),
    )
    yield gauge(
        "streamdp_action_age_seconds",
        "Since this process last published for the stream. It grows as blocks grow.",
        ["stream"],
        _ages(process.streams),
    )
    yield gauge("streamdp_transport_up", "1 while the transport answers when asked.", [], [
        ((), float(is_up(process)))
    ])  # fmt: skip
    yield gauge(
        "streamdp_transport_error",
        "1 for an error by which the transport does not answer: its class, and the topic if known.",
        ["topic", "error"],
        ((tuple(error), 1.0) for error in process.errors),
    )
    yield gauge(
        "streamdp_input_missing",
        "1 for an input topic that does not exist.",
        ["topic"],
        (((topic,), 1.0) for topic in process.missing),
    )
    yield gauge(
        "streamdp_registry_silent_seconds",
        "Since the registry of this subject stopped answering; 0 while it answers.",
        ["subject"],
        (((subject,), seconds) for subject, seconds in process.registries.items()),
    )
    yield from _process(process)
    for step in process.steps:
        about = f"How long a {step.name} took."
        samples = [((), step.counts, step.seconds)]
        yield histogram(f"streamdp_{step.name}_seconds", about, [], BUCKETS, samples)


def _families(
    metrics: Sequence[OfPartition], streams: Sequence[StreamStatus], most: int
) -> Iterator[Metric]:
    """What is now, of the partitions that are here; what was counted, of those that have left too:
    a total of a process never falls."""
    now, ever = _shown(streams, most), _shown(streams, most, left=True)
    for metric in metrics:
        values = (
            ((name, label), [value for part in of if (value := metric.value(part)) is not None])
            for name, label, of in (ever if metric.family is counter else now)
        )
        samples = ((labels, metric.together(known)) for labels, known in values if known)
        yield metric.family(metric.name, metric.help, ["stream", "partition"], samples)


def _shown(streams: Sequence[StreamStatus], most: int, *, left: bool = False) -> ShownStreams:
    """Each partition by its number, at will also of those that have left; those beyond the bound
    as one."""
    shown: list[tuple[str, str, Sequence[PartitionStatus]]] = []
    for stream in streams:
        parts = [*stream.partitions, *(stream.left if left else ())]
        alone = len(parts) if len(parts) <= most else most - 1
        shown += [(stream.name, str(part.number), [part]) for part in parts[:alone]]
        if parts[alone:]:
            shown.append((stream.name, REST, parts[alone:]))
    return shown


def _process(process: ProcessStatus) -> Iterator[Metric]:
    """The learning process itself: only facts that content cannot change."""
    yield gauge(
        "streamdp_start_time_seconds",
        "When the learning process started, in seconds since 1970.",
        [],
        [((), process.started_at)],
    )
    yield counter(
        "streamdp_partitions_assigned",
        "Partitions that were assigned to this process.",
        [],
        [((), process.assigned)],
    )
    yield counter(
        "streamdp_partitions_revoked",
        "Partitions that were revoked from this process.",
        [],
        [((), process.revoked)],
    )


def _ages(streams: Sequence[StreamStatus]) -> Iterator[tuple[tuple[str, ...], float]]:
    for stream in streams:
        known = [part.published_ago for part in stream.partitions if part.published_ago is not None]
        if known:
            yield (stream.name,), min(known)


def is_up(process: ProcessStatus) -> bool:
    """Whether the transport answers: polls return, and no lost partition waits for it.

    A partition that is merely being taken, as in every rebalance, says nothing of the transport.
    """
    lost = any(part.lost for _, part in process.parts)
    ago = process.polled_ago
    return not lost and ago is not None and ago < LOST_SECONDS
