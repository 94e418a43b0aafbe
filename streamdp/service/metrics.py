"""Metrics of a process that learns or assembles: its partitions, its steps, its transport.

Public: slots, blocks, lag, ages, durations of public steps, as of the newest snapshot. What was
released and charged is on `streamdp serve`'s page (`streamdp.serve.metrics`, whose rules hold here
too). `most_series` bounds the page for any number of partitions: those beyond it are merged into
one, called ``rest``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from prometheus_client.core import Metric

from streamdp.core.errors import InvalidConfig
from streamdp.serve.about import About
from streamdp.serve.families import counter, gauge, histogram
from streamdp.serve.metrics import certificate, configured
from streamdp.service.assembling.metrics import Parts, assembling
from streamdp.service.status import BUCKETS, STEPS, PartitionStatus, ProcessStatus, StreamStatus
from streamdp.service.view import Reason, Status

REST = "rest"
LOST_SECONDS = 15.0
"""A transport that has not answered a poll for so many seconds counts as down."""

_A_STREAM = 29  # most series of each stream, without its partitions
_A_PARTITION = 14 + len(Reason)
_A_PROCESS = len(STEPS) * (len(BUCKETS) + 3) + 10  # histograms, build, the process, the certificate


@dataclass(frozen=True, slots=True)
class Facts:
    """The data that a metrics page is made from."""

    about: Sequence[About]
    process: ProcessStatus | None  # None before its first snapshot
    assemblies: Mapping[str, int] = field(default_factory=dict)  # the epoch of each configured one
    expires_at: float | None = None  # the listener's certificate, in seconds since 1970


class ProcessMetrics:
    """The families of the page."""

    def __init__(self, facts: Callable[[], Facts], *, most_series: int) -> None:
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
        modes = {about.name: _mode(about, facts.process) for about in facts.about}
        yield from configured(facts.about, facts.assemblies, modes)
        yield from _learning(facts, self._most_partitions)
        yield from certificate(facts.expires_at)


def _learning(facts: Facts, most: int) -> Iterator[Metric]:
    """The partitions of this process, and its steps."""
    process = facts.process
    if process is None:
        return
    parts = _parts(process.work, most)
    learning = _parts(process.streams, most)
    yield from _counters(learning)
    yield from _gauges(learning)
    yield from _ways_back(parts)
    yield gauge(
        "streamdp_clock_ahead_seconds",
        "By which the input's newest timestamp is ahead of this process's clock, in whole hours.",
        ["stream", "partition"],
        (
            ((stream, label), part.clock_ahead * 3600)
            for stream, label, part in parts
            if part.clock_ahead is not None
        ),
    )
    yield from assembling(_parts(process.assemblies, most))
    yield gauge(
        "streamdp_partition_halted",
        "1 if the partition has halted for this reason: somebody must act.",
        ["stream", "partition", "reason"],
        (
            ((stream, label, reason), float(part.reason == reason))
            for stream, label, part in parts
            for reason in map(str, Reason)
        ),
    )
    yield gauge(
        "streamdp_partition_waiting",
        "1 if the partition waits for a process with a later epoch, as in a roll-out.",
        ["stream", "partition"],
        (
            ((stream, label), float(part.status == str(Status.WAITING)))
            for stream, label, part in parts
        ),
    )
    yield gauge(
        "streamdp_access_refused",
        "1 while the transport refuses the partition's rights or certificates, by this error.",
        ["stream", "partition", "error"],
        (((stream, label, part.refused), 1.0) for stream, label, part in parts if part.refused),
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
        "1 for an input topic that does not exist, or may not be described.",
        ["topic"],
        (((topic,), 1.0) for topic in process.missing),
    )
    yield from _process(process)
    for step in process.steps:
        about = f"How long a {step.name} took."
        samples = [((), step.counts, step.seconds)]
        yield histogram(f"streamdp_{step.name}_seconds", about, [], BUCKETS, samples)


def _parts(streams: Sequence[StreamStatus], most: int) -> Parts:
    return [
        (stream.name, label, part)
        for stream in streams
        for label, part in _labelled(stream.partitions, most)
    ]


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


def _counters(parts: Parts) -> Iterator[Metric]:
    labels = ["stream", "partition"]
    yield counter("streamdp_slots", "Slots learned from.", labels, (
        ((stream, label), part.slots) for stream, label, part in parts
    ))  # fmt: skip
    yield counter("streamdp_blocks", "Blocks finished: one private selection each.", labels, (
        ((stream, label), part.blocks) for stream, label, part in parts
    ))  # fmt: skip
    yield counter(
        "streamdp_keys_beyond_limit",
        "Slots of keys that got no learner: beyond the limit, or too long.",
        labels,
        (((stream, label), part.keys_refused) for stream, label, part in parts),
    )


def _gauges(parts: Parts) -> Iterator[Metric]:
    labels = ["stream", "partition"]
    yield gauge("streamdp_keys", "Keys with a learner.", labels, (
        ((stream, label), part.keys) for stream, label, part in parts
    ))  # fmt: skip
    yield gauge("streamdp_lag_records", "Records that wait in the input.", labels, (
        ((stream, label), part.lag) for stream, label, part in parts if part.lag is not None
    ))  # fmt: skip
    yield gauge(
        "streamdp_lag_seconds",
        "Since this process first saw the oldest record that waits; 0 while none does.",
        labels,
        (((stream, label), part.lag_seconds) for stream, label, part in parts),
    )


def _ways_back(parts: Parts) -> Iterator[Metric]:
    """How far the taking of partitions is, and what it needs of the input; assemblies included."""
    labels = ["stream", "partition"]
    yield gauge(
        "streamdp_rebuild_progress_ratio",
        "Progress of taking a partition: 0 while its state is read, 1 once it learns.",
        labels,
        (((stream, label), part.progress) for stream, label, part in parts),
    )
    yield gauge(
        "streamdp_rebuild_window_records",
        "Records that a rebuild would read again.",
        labels,
        (((stream, label), part.position - part.low_water) for stream, label, part in parts),
    )
    yield gauge(
        "streamdp_retention_headroom_records",
        "Records between the oldest that the input keeps and the oldest that a rebuild needs.",
        labels,
        (
            ((stream, label), part.headroom)
            for stream, label, part in parts
            if part.headroom is not None
        ),
    )
    yield gauge(
        "streamdp_input_kept_records",
        "Records that the partition's input keeps, needed or not; where the transport trims it.",
        labels,
        (((stream, label), part.kept) for stream, label, part in parts if part.kept is not None),
    )
    yield gauge(
        "streamdp_input_retain_records",
        "Records that the transport is set to keep beyond what rebuilds need (`retain`).",
        labels,
        (
            ((stream, label), part.retain)
            for stream, label, part in parts
            if part.retain is not None
        ),
    )


def _ages(streams: Sequence[StreamStatus]) -> Iterator[tuple[tuple[str, ...], float]]:
    for stream in streams:
        known = [part.published_ago for part in stream.partitions if part.published_ago is not None]
        if known:
            yield (stream.name,), min(known)


def _mode(about: About, process: ProcessStatus | None) -> str:
    """A stream's mode, as the process works, or as the file says."""
    running = () if process is None else process.streams
    return next((stream.mode for stream in running if stream.name == about.name), about.mode.value)


def is_up(process: ProcessStatus) -> bool:
    """Whether the transport answers: polls return, and no lost partition waits for it.

    A partition that is merely being taken, as in every rebalance, says nothing of the transport.
    """
    lost = any(part.lost for stream in process.work for part in stream.partitions)
    ago = process.polled_ago
    return not lost and ago is not None and ago < LOST_SECONDS


def _labelled(parts: Sequence[PartitionStatus], most: int) -> Iterator[tuple[str, PartitionStatus]]:
    """Each partition by its number; those beyond the bound as one, in the worst of their states."""
    shown = parts if len(parts) <= most else parts[: most - 1]
    for part in shown:
        yield str(part.number), part
    if len(shown) < len(parts):
        yield REST, reduce(_together, parts[len(shown) :])


def _together(one: PartitionStatus, other: PartitionStatus) -> PartitionStatus:
    """Merge two partitions: counts add up, and of states the worse one is shown."""
    worse = max(one, other, key=_badness)
    near, far = sorted((one, other), key=lambda part: part.headroom or 0)
    ages = [age for age in (one.published_ago, other.published_ago) if age is not None]
    return PartitionStatus(
        number=one.number,
        status=worse.status,
        reason=worse.reason,
        message=worse.message,
        progress=min(one.progress, other.progress),
        position=near.position if near.headroom is not None else far.position,
        low_water=near.low_water if near.headroom is not None else far.low_water,
        lag=(one.lag or 0) + (other.lag or 0),
        headroom=near.headroom if near.headroom is not None else far.headroom,
        keys=one.keys + other.keys,
        keys_refused=one.keys_refused + other.keys_refused,
        slots=one.slots + other.slots,
        blocks=one.blocks + other.blocks,
        published_ago=min(ages, default=None),
        lag_seconds=max(one.lag_seconds, other.lag_seconds),
        lost=one.lost or other.lost,
        refused=one.refused or other.refused,
        clock_ahead=max((one.clock_ahead, other.clock_ahead), key=lambda hours: abs(hours or 0)),
        open=one.open + other.open,
        events=one.events + other.events,
        overdue=max(one.overdue, other.overdue),
        kept=max((part.kept for part in (one, other) if part.kept is not None), default=None),
        retain=one.retain,
    )


def _badness(part: PartitionStatus) -> tuple[bool, bool]:
    """Sorts partitions: those that wait are worse than those that work, and halted ones worst."""
    return part.reason is not None, part.status == str(Status.WAITING)
