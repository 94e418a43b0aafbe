"""Metric families, as prometheus-client wants them built: gauges, counters, histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

Samples = Iterable[tuple[tuple[str, ...], float]]
"""The values of a family's labels, and what is measured."""


def gauge(name: str, help_: str, labels: Sequence[str], samples: Samples) -> GaugeMetricFamily:
    """What may go up and down."""
    family = GaugeMetricFamily(name, help_, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def counter(name: str, help_: str, labels: Sequence[str], samples: Samples) -> CounterMetricFamily:
    """What only goes up while a process lives."""
    family = CounterMetricFamily(name, help_, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


Durations = tuple[tuple[str, ...], Sequence[int], float]
"""The values of a histogram's labels, the counts of its buckets, and all seconds together."""


def histogram(
    name: str,
    help_: str,
    labels: Sequence[str],
    bounds: Sequence[float],
    samples: Iterable[Durations],
) -> HistogramMetricFamily:
    """How long something took; the last count is of what took longer than every bound."""
    family = HistogramMetricFamily(name, help_, labels=labels)
    upper = [*map(str, bounds), "+Inf"]
    for values, counts, seconds in samples:
        total, buckets = 0, []
        for bound, count in zip(upper, counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(values, buckets, seconds)
    return family
