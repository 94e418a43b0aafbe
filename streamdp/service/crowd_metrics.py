"""Metrics of crowds across partitions: what priors have adopted, and what was refused.

They come from the ledger's newest lines; only the number of refused records is this process's own.
Ages are counts of priors, since a clock would tell how fast events come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from streamdp.core.events import CrowdPrior
from streamdp.core.learners import Leader
from streamdp.service.about import About
from streamdp.service.families import counter, gauge
from streamdp.service.history import StreamReleases
from streamdp.service.status import ProcessStatus


def adopting(
    about: Sequence[About], releases: Mapping[str, StreamReleases], process: ProcessStatus | None
) -> Iterator[Metric]:
    """Every family, with samples for the streams whose crowd reaches across partitions."""
    across = [stream_about for stream_about in about if _reaches(stream_about)]
    newest = {
        stream_about.name: _newest(releases[stream_about.name])
        for stream_about in across
        if stream_about.name in releases
    }
    yield gauge(
        "streamdp_crowd_adopted",
        "Other partitions whose votes went into a partition's newest prior: the fewest of any.",
        ["stream"],
        (
            ((name,), min(len(prior.adopted) for prior in priors.values()))
            for name, priors in newest.items()
            if priors
        ),
    )
    yield gauge(
        "streamdp_crowd_priors_behind",
        "Priors that a partition has made since the snapshot that others adopted: the most of all.",
        ["stream"],
        (((name,), max(_behind(priors), default=0)) for name, priors in newest.items()),
    )
    streams = [] if process is None else process.streams
    names = {stream_about.name for stream_about in across}
    read = [stream for stream in streams if stream.name in names]
    yield gauge(
        "streamdp_crowd_unread",
        "1 while this process cannot read what partitions tell each other.",
        ["stream"],
        (((stream.name,), stream.crowd_unread) for stream in read),
    )
    yield counter(
        "streamdp_crowd_snapshots_refused",
        "Refused records of the crowd topic: damaged, or not of the partition that they claim.",
        ["stream"],
        (((stream.name,), stream.snapshots_refused) for stream in read),
    )


def _behind(priors: Mapping[int, CrowdPrior]) -> Iterator[int]:
    """How many priors a partition has made since each of its snapshots that others adopted."""
    for prior in priors.values():
        for name in prior.adopted:
            if (newest := priors.get(name.partition)) is not None:
                yield newest.number - name.number


def _reaches(about: About) -> bool:
    crowd = about.learner.crowd if isinstance(about.learner, Leader) else None
    return crowd is not None and crowd.reach == "stream"


def _newest(releases: StreamReleases) -> dict[int, CrowdPrior]:
    """The newest prior of each partition, among the lines that were read."""
    parts = releases.partitions.items()
    return {number: part.prior for number, part in parts if part.prior is not None}
