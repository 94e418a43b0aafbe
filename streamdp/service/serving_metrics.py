"""Metrics of the listener: known keys, requests, and refused connections.

Public: they depend on who asks and on what was published. Durations are those of HTTP answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from streamdp.client import Condition
from streamdp.service.families import counter, gauge, histogram
from streamdp.service.traffic import SECONDS, Refusal, RequestKind, Traffic

SERIES = 5 + len(Refusal) + 2 + len(RequestKind) * (len(SECONDS) + 3)
"""Series of a listener, beside those of each stream."""


def listener(known: Mapping[str, Condition], traffic: Traffic) -> Iterator[Metric]:
    """Every family of the listener."""
    yield from _look_ups(known)
    yield from _traffic(traffic)


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
    """Requests and connections."""
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
    yield counter(
        "streamdp_http_connections_refused",
        "Connections that were refused or cut off: no room, no TLS in time, too slow.",
        ["reason"],
        (((reason,), traffic.refused[reason]) for reason in Refusal),
    )
    yield gauge("streamdp_http_connections", "Connections that are open.", [], [
        ((), traffic.open)
    ])  # fmt: skip
    yield gauge(
        "streamdp_http_connections_limit",
        "Connections that may be open at once; beyond them only probes and metrics are answered.",
        [],
        [((), traffic.most)],
    )
