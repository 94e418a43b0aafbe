"""The metrics page in Prometheus' text format: a registry of our own, filled with published facts.

1. Three tiers. Public: configuration, charges, slots, blocks, lag, ages, durations of public steps.
   Private estimates: means of what was released with noise, each beside its standard error. The
   operator's exact figures are never here.
2. No process, platform or garbage-collection collectors: what they show depends on content.
3. `most_series` bounds the number of series for any number of keys and partitions: no label is a
   key, and partitions beyond the bound are merged into one, called ``rest``.
4. Every series has the label `application`: one Prometheus may watch several, and a stream's name
   means something in one alone.
5. Names, units, labels and help follow Prometheus' conventions. Gauges are as of the newest
   snapshot from the learning process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from streamdp import __version__
from streamdp.client import Condition
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.learners import PolicyLearner
from streamdp.core.regret import ESTIMATES
from streamdp.service.about import About
from streamdp.service.assembling.metrics import Parts, assembling
from streamdp.service.families import counter, gauge, histogram
from streamdp.service.history import StreamReleases
from streamdp.service.serving_metrics import SERIES, listener
from streamdp.service.status import BUCKETS, STEPS, PartitionStatus, ProcessStatus, StreamStatus
from streamdp.service.traffic import Traffic
from streamdp.service.view import Reason, Status
from streamdp.wire.lines import FALLBACK
from streamdp.wire.published import Mode

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REST = "rest"
LOST_SECONDS = 15.0
"""A transport that has not answered a poll for so many seconds counts as down."""

_A_STREAM = 26  # most series of each stream, without its partitions
_A_PARTITION = 10 + len(Reason)
_A_PROCESS = SERIES + len(STEPS) * (len(BUCKETS) + 3) + 10  # histograms, build, the process

_PRIVATE = {
    "block_regret": (
        "streamdp_private_regret",
        "Mean over keys of the regret of the latest block, in loss; privately estimated, noisy.",
    ),
    "null_share": (
        "streamdp_private_null_share",
        "Share of slots with nothing usable, in latest blocks; privately estimated, noisy.",
    ),
    "mean_loss": (
        "streamdp_private_mean_loss",
        "Mean loss of the actions in force, in latest blocks; privately estimated, noisy.",
    ),
    "regret_vs_uniform": (
        "streamdp_private_regret_vs_uniform",
        "Mean over keys of the latest block's loss beyond a random action's; private, noisy.",
    ),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """The data that a metrics page is made from."""

    about: Sequence[About]
    process: ProcessStatus | None  # None where nothing is learned
    shown: Mapping[str, StreamReleases] = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    assemblies: Mapping[str, int] = field(default_factory=dict)  # the epoch of each configured one

    @property
    def application(self) -> str:
        """The application's name; all streams of a process are of one."""
        return self.about[0].topics.app


class MetricsPage:
    """Builds the page."""

    def __init__(self, facts: Callable[[], Facts], *, most_series: int) -> None:
        streams = len(facts().about) + len(facts().assemblies)
        left = most_series - _A_PROCESS - streams * (_A_STREAM + _A_PARTITION)
        if left < 0:
            raise InvalidConfig(
                complaint(
                    "http.most_series",
                    f"too few for {streams} streams and assemblies",
                    expected=f"at least {most_series - left}",
                    got=most_series,
                )
            )
        self._most_partitions = 1 + left // _A_PARTITION // max(1, streams)
        self._facts = facts
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Every family, in the form that prometheus-client asks for."""
        facts = self._facts()
        for family in _families(facts, self._most_partitions):
            family.samples = [
                sample._replace(labels={"application": facts.application, **sample.labels})
                for sample in family.samples
            ]
            yield family

    def render(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


def _families(facts: Facts, most_partitions: int) -> Iterator[Metric]:
    """Every family; none of its series says of which application it is."""
    yield gauge("streamdp_build_info", "The version that runs.", ["version"], [
        ((__version__,), 1)
    ])  # fmt: skip
    yield from _streams(facts)
    yield from _learning(facts, most_partitions)
    yield from _estimates(facts)
    yield from listener(facts.conditions, facts.traffic)


def _streams(facts: Facts) -> Iterator[Metric]:
    """What an event costs, the budgets, and the epochs."""
    label, releases = ["stream"], facts.shown
    yield gauge(
        "streamdp_epsilon_configured",
        "The most that the stream may charge an event: its action and every estimate.",
        label,
        (((stream.name,), float(stream.charge)) for stream in facts.about),
    )
    yield gauge(
        "streamdp_epsilon_charged_max",
        "The most that any event was charged, by the ledger's newest lines; it does not grow.",
        label,
        (((e.name,), float(releases[e.name].charged())) for e in facts.about if e.name in releases),
    )
    yield gauge(
        "streamdp_epsilon_charged_in_epoch",
        "The same of the configured epoch alone: earlier ones may have had another budget.",
        label,
        (
            ((e.name,), float(releases[e.name].charged_in(e.epoch_of)))
            for e in facts.about
            if e.name in releases
        ),
    )
    yield gauge(
        "streamdp_epsilon_budget",
        "The most that all streams of the input topic together may charge an event.",
        label,
        (((stream.name,), float(stream.budget)) for stream in facts.about),
    )
    yield gauge(
        "streamdp_seeded",
        "1 if randomness comes from a seed: a test, in which nothing is protected.",
        label,
        (((stream.name,), float(stream.seeded)) for stream in facts.about),
    )
    modes = {
        stream.name: mode_of(stream, facts.process, facts.conditions.get(stream.name))
        for stream in facts.about
    }
    yield gauge(
        "streamdp_mode",
        "1 for the stream's mode: live, shadow, or fallback.",
        ["stream", "mode"],
        (
            ((name, mode), float(mode == now))
            for name, now in modes.items()
            for mode in (*map(str, Mode), FALLBACK)
        ),
    )
    epochs = {**{stream.name: stream.epoch for stream in facts.about}, **facts.assemblies}
    yield gauge(
        "streamdp_epoch",
        "The configuration's epoch; of each stream and assembly, whoever works on it.",
        label,
        (((name,), epoch) for name, epoch in epochs.items()),
    )


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
    yield counter(
        "streamdp_http_restarts",
        "How often the serving process ended unexpectedly and was started again.",
        [],
        [((), process.listener_restarts)],
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


def _ages(streams: Sequence[StreamStatus]) -> Iterator[tuple[tuple[str, ...], float]]:
    for stream in streams:
        known = [part.published_ago for part in stream.partitions if part.published_ago is not None]
        if known:
            yield (stream.name,), min(known)


def mode_of(about: About, process: ProcessStatus | None, known: Condition | None) -> str:
    """A stream's mode: by its own line ``fallback``, else what the process or the file says."""
    if known is not None and known.fallback_mode:
        return FALLBACK
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
        open=one.open + other.open,
        events=one.events + other.events,
        overdue=max(one.overdue, other.overdue),
    )


def _badness(part: PartitionStatus) -> tuple[bool, bool]:
    """Sorts partitions: those that wait are worse than those that work, and halted ones worst."""
    return part.reason is not None, part.status == str(Status.WAITING)


def _estimates(facts: Facts) -> Iterator[Metric]:
    """The released estimates of this process's partitions; when only serving, of all."""
    for kind, (name, help_) in _PRIVATE.items():
        readings = []
        for stream in facts.about:
            releases = facts.shown.get(stream.name)
            total = None if releases is None else releases.latest(kind, _own(facts, stream.name))
            if total is not None and total.keys:
                a_slot = ESTIMATES[kind].a_slot
                readings.append((stream.name, total.per_slot() if a_slot else total.per_block()))
        yield gauge(name, help_, ["stream"], (((s,), r.value) for s, r in readings))
        yield gauge(
            f"{name}_stderr",
            f"Standard error of the noise in {name}.",
            ["stream"],
            (((s,), r.standard_error) for s, r in readings),
        )
    yield gauge(
        "streamdp_regret_bound",
        "The regret that theorems allow the longest block of a stationary world, in loss.",
        ["stream"],
        _bounds(facts),
    )


def _bounds(facts: Facts) -> Iterator[tuple[tuple[str, ...], float]]:
    for stream in facts.about:
        if isinstance(stream.learner, PolicyLearner):
            continue  # no theorem applies
        releases = facts.shown.get(stream.name)
        parts = [] if releases is None else list(releases.partitions.values())
        last = max((part.last_slot for part in parts), default=0)
        if last:
            length = max(part.longest_block for part in parts)
            yield (stream.name,), stream.regret_bound(last_slot=last, length=length)


def _own(facts: Facts, stream: str) -> list[int] | None:
    """The partitions whose estimates this process shows; None for all."""
    if facts.process is None:
        return None
    streams = (status for status in facts.process.streams if status.name == stream)
    return [part.number for status in streams for part in status.partitions]
