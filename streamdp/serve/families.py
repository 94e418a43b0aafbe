"""Builds metric families for prometheus-client: gauges, counters, histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

Samples = Iterable[tuple[tuple[str, ...], float]]
"""The values of a family's labels, and the measured value."""


def gauge(name: str, help_: str, labels: Sequence[str], samples: Samples) -> GaugeMetricFamily:
    """A value that may go up and down."""
    family = GaugeMetricFamily(name, help_, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def counter(name: str, help_: str, labels: Sequence[str], samples: Samples) -> CounterMetricFamily:
    """A value that only goes up while a process lives."""
    family = CounterMetricFamily(name, help_, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


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
