"""Families of the metrics page about assemblies: functions of requests and clocks alone.

The label `stream` holds the assembly's name, so that a partition's life (halted, waiting, rebuild,
retention) has the same metrics for streams and assemblies. Nothing here counts outcomes or says how
far they were read: that is for operators. A slow reading of outcomes could show only as an overdue
event, so delays are given in whole minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from streamdp.serve.families import counter, gauge
from streamdp.service.status import PartitionStatus

Parts = Sequence[tuple[str, str, PartitionStatus]]
"""A stream's or an assembly's name, a partition's label, and the partition."""

_LABELS = ["stream", "partition"]


def assembling(parts: Parts) -> Iterator[Metric]:
    """What partitions of assemblies have done, and what waits."""
    if not parts:
        return
    yield counter("streamdp_events_assembled", "Requests that became events.", _LABELS, (
        ((name, label), part.events) for name, label, part in parts
    ))  # fmt: skip
    yield gauge("streamdp_requests_open", "Requests that wait for their deadline.", _LABELS, (
        ((name, label), part.open) for name, label, part in parts
    ))  # fmt: skip
    yield gauge("streamdp_requests_unread", "Requests that were not read yet.", _LABELS, (
        ((name, label), part.lag) for name, label, part in parts if part.lag is not None
    ))  # fmt: skip
    yield gauge(
        "streamdp_requests_unread_seconds",
        "Since this process first saw the oldest request that was not read; 0 while none waits.",
        _LABELS,
        (((name, label), part.lag_seconds) for name, label, part in parts),
    )
    yield gauge(
        "streamdp_event_overdue_seconds",
        "For how long the oldest open request should have been an event, in whole minutes.",
        _LABELS,
        (((name, label), part.overdue) for name, label, part in parts),
    )
