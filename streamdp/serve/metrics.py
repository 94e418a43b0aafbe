"""Metrics of what was published and of who asks, in Prometheus' text format.

1. Public: configuration, charges, known keys, requests. Private estimates: means of what was
   released with noise, each beside its standard error. Exact figures are never here.
2. A registry of our own, without process, platform or garbage-collection collectors: what they show
   depends on content.
3. No label is a key or a partition, so a page is a few dozen series a stream.
4. Every series has the label `application`: one Prometheus may watch several, and a stream's name
   means something in one alone.
5. Names, units, labels and help follow Prometheus' conventions.

`streamdp.service.metrics` builds the page of a process that learns from the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from streamdp import __version__
from streamdp.client import Condition
from streamdp.core.kinds.estimates import ESTIMATES
from streamdp.serve.about import About
from streamdp.serve.families import counter, gauge, histogram
from streamdp.serve.history import StreamReleases
from streamdp.serve.traffic import SECONDS, Refusal, Traffic
from streamdp.wire.lines import FALLBACK, LIVE

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

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
class PublishedFacts:
    """The data that a page is made from."""

    about: Sequence[About]
    shown: Mapping[str, StreamReleases] = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    assemblies: Mapping[str, int] = field(default_factory=dict)  # the epoch of each configured one
    expires_at: float | None = None  # the listener's certificate, in seconds since 1970


class MetricsPage:
    """Builds a page."""

    def __init__(self, families: Callable[[], Iterable[Metric]], *, application: str) -> None:
        self._families = families
        self._application = application
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Every family, in the form that prometheus-client asks for."""
        for family in self._families():
            family.samples = [
                sample._replace(labels={"application": self._application, **sample.labels})
                for sample in family.samples
            ]
            yield family

    def render(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


def published(facts: PublishedFacts) -> Iterator[Metric]:
    """Every family of a process that serves."""
    yield from configured(facts.about, facts.assemblies)
    yield gauge(
        "streamdp_mode",
        "1 for the stream's mode: live, or fallback.",
        ["stream", "mode"],
        (
            ((of.name, mode), float(mode == mode_of(facts.conditions.get(of.name))))
            for of in facts.about
            for mode in (LIVE, FALLBACK)
        ),
    )
    yield from _charges(facts)
    yield from _estimates(facts)
    yield from _look_ups(facts.conditions)
    yield from _traffic(facts.traffic)
    yield from refusals(facts.traffic)
    yield from certificate(facts.expires_at)


def configured(about: Sequence[About], assemblies: Mapping[str, int]) -> Iterator[Metric]:
    """What every process of a configuration shows: version, budgets and epochs."""
    label = ["stream"]
    yield gauge("streamdp_build_info", "The version that runs.", ["version"], [
        ((__version__,), 1)
    ])  # fmt: skip
    yield gauge(
        "streamdp_epsilon_configured",
        "The most that the stream may charge an event: its action and every estimate.",
        label,
        (((stream.name,), float(stream.charge)) for stream in about),
    )
    yield gauge(
        "streamdp_epsilon_budget",
        "The most that all streams of the input topic together may charge an event.",
        label,
        (((stream.name,), float(stream.budget)) for stream in about),
    )
    yield gauge(
        "streamdp_seeded",
        "1 if randomness comes from a seed: a test, in which nothing is protected.",
        label,
        (((stream.name,), float(stream.seeded)) for stream in about),
    )
    epochs = {**{stream.name: stream.epoch for stream in about}, **assemblies}
    yield gauge(
        "streamdp_epoch",
        "The configuration's epoch; of each stream and assembly, whoever works on it.",
        label,
        (((name,), epoch) for name, epoch in epochs.items()),
    )


def mode_of(known: Condition | None) -> str:
    """A stream's mode as readers see it: ``fallback`` if its list says so."""
    return FALLBACK if known is not None and known.fallback_mode else LIVE


def certificate(expires_at: float | None) -> Iterator[Metric]:
    """When the listener's certificate expires, if it has one."""
    yield gauge(
        "streamdp_certificate_expiry_timestamp_seconds",
        "When the first certificate of the listener's chain expires, in seconds since 1970.",
        [],
        [] if expires_at is None else [((), expires_at)],
    )


def refusals(traffic: Traffic) -> Iterator[Metric]:
    """What was refused before it was a request."""
    yield counter(
        "streamdp_http_refused",
        "Connections cut and requests refused before anybody looked at them, by reason.",
        ["reason"],
        (((reason,), traffic.refused[reason]) for reason in Refusal),
    )


def _charges(facts: PublishedFacts) -> Iterator[Metric]:
    """What events were charged."""
    label, releases = ["stream"], facts.shown
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
            ((e.name,), float(releases[e.name].charged_in(e.epoch, e.partition_epochs)))
            for e in facts.about
            if e.name in releases
        ),
    )


def _estimates(facts: PublishedFacts) -> Iterator[Metric]:
    """The released estimates."""
    for kind, (name, help_) in _PRIVATE.items():
        readings = []
        for stream in facts.about:
            releases = facts.shown.get(stream.name)
            total = None if releases is None else releases.latest(kind)
            if total is not None and total.keys:
                number = total.slots if ESTIMATES[kind].a_slot else total.keys
                readings.append((stream.name, total.over(number)))
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


def _bounds(facts: PublishedFacts) -> Iterator[tuple[tuple[str, ...], float]]:
    for stream in facts.about:
        releases = facts.shown.get(stream.name)
        parts = [] if releases is None else list(releases.partitions.values())
        last = max((part.last_slot for part in parts), default=0)
        if last:
            length = max(part.longest_block for part in parts)
            bound = stream.regret_bound(last_slot=last, length=length)
            if bound is not None:
                yield (stream.name,), bound


def _look_ups(known: Mapping[str, Condition]) -> Iterator[Metric]:
    """The cache of published actions that HTTP answers from."""
    yield gauge("streamdp_cache_keys", "Keys that look-ups know.", ["stream"], (
        ((stream,), condition.keys) for stream, condition in known.items()
    ))  # fmt: skip
    yield gauge(
        "streamdp_cache_keys_in_several_partitions",
        "Keys with a learner in several partitions; the learner with most slots answers.",
        ["stream"],
        (((stream,), condition.several) for stream, condition in known.items()),
    )
    yield gauge(
        "streamdp_cache_stale_seconds",
        "Since the published actions could last be followed; 0 while they can.",
        ["stream"],
        (((stream,), condition.stale_seconds) for stream, condition in known.items()),
    )


def _traffic(traffic: Traffic) -> Iterator[Metric]:
    """Requests."""
    yield counter("streamdp_http_requests", "Requests answered, by class of status.", ["code"], (
        ((code,), count) for code, count in sorted(traffic.requests.items())
    ))  # fmt: skip
    yield histogram(
        "streamdp_http_request_seconds",
        "Duration of requests, by kind.",
        ["kind"],
        SECONDS,
        (((kind,), took.counts, took.seconds) for kind, took in traffic.durations.items()),
    )
