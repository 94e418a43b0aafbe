"""Builds metric families for prometheus-client: gauges, counters, histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

F = TypeVar("F", GaugeMetricFamily, CounterMetricFamily)

Samples = Iterable[tuple[tuple[str, ...], float]]
"""The values of a family's labels, and the measured value."""


def _family(kind: type[F], name: str, help_: str, labels: Sequence[str], samples: Samples) -> F:
    family = kind(name, help_, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


gauge = partial(_family, GaugeMetricFamily)
"""A value that may go up and down: its name, help, labels and samples."""

counter = partial(_family, CounterMetricFamily)
"""A value that only goes up while a process lives."""


Durations = tuple[tuple[str, ...], Sequence[int], float]
"""The values of a histogram's labels, the counts of its buckets, and the sum of seconds."""


def histogram(
    name: str,
    help_: str,
    labels: Sequence[str],
    bounds: Sequence[float],
    samples: Iterable[Durations],
) -> HistogramMetricFamily:
    """A distribution of durations; the last count is of those above every bound."""
    family = HistogramMetricFamily(name, help_, labels=labels)
    upper = [*map(str, bounds), "+Inf"]
    for values, counts, seconds in samples:
        total, buckets = 0, []
        for bound, count in zip(upper, counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(values, buckets, seconds)
    return family
