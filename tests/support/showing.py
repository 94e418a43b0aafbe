"""What the faces are shown in tests: a process with one stream in good health, and its ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from msgspec import convert
from prometheus_client.core import Metric

import streamdp as sd
from streamdp.client import Condition, Feed
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.ports import Published
from streamdp.serve import metrics as published
from streamdp.serve.about import About
from streamdp.serve.history import StreamReleases
from streamdp.serve.traffic import Traffic
from streamdp.service import metrics as learning
from streamdp.service.view import PartitionStatus, ProcessStatus, Steps, StreamStatus
from tests.golden_wire import ACTIONS as FOUR
from tests.support.publishing import HOME, charge, release
from tests.support.streams import ACTIONS, spec

ESTIMATES = (
    sd.estimate("block_regret", epsilon="1/4", min_length=2),
    sd.estimate("null_share", epsilon="1/4", min_length=2),
)
LINES = spec(estimates=ESTIMATES).lines
ABOUT = About(
    topics=HOME,
    learner=sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"),
    estimates=ESTIMATES,
    budget=Fraction(2),
    epoch=1,
    seeded=False,
    actions=ACTIONS,
    fallback="a",
)
UNIT = 1 << 20


def partition(number: int = 0, **other: object) -> PartitionStatus:
    """A partition in good health, but for what is said."""
    good: dict[str, object] = {
        "number": number, "status": "running", "reason": None, "message": "", "progress": 1.0,
        "position": 1000, "low_water": 900, "lag": 0, "headroom": 10_000, "keys": 3,
        "keys_refused": 0, "slots": 1000, "blocks": 9, "published_ago": 12.0,
        "kept": 20_000, "retain": 1_000_000, "clock_ahead": 0.0,
    }  # fmt: skip
    return convert({**good, **other}, PartitionStatus)


def process(*partitions: PartitionStatus) -> ProcessStatus:
    """A learning process."""
    steps = Steps(lambda: 0.0)
    for step, seconds in (("poll", 0.05), ("commit", 0.004), ("commit", 2.0), ("commit", 60.0)):
        steps.observe(step, seconds)
    parts = list(partitions) or [partition()]
    return ProcessStatus([StreamStatus("home", parts)], steps.statuses(), 0.1)


def block(
    key: bytes | None,
    number: int,
    start: int,
    stop: int,
    *,
    regret: float,
    share: float,
    at: int = 0,
    action: int = 0,
) -> Sequence[Published]:
    """The ledger's lines of one block: an action and two estimates."""
    length = stop - start
    values = (("action", action), ("block_regret", regret * UNIT),
              ("null_share", share * length * UNIT))  # fmt: skip
    return [
        charge(
            release(key, int(value), block=number, start=start, stop=stop, partition=at, kind=kind,
                    epsilon="1/2" if kind == "action" else "1/4"),
            lines=LINES,
        )
        for kind, value in values
    ]  # fmt: skip


def releases() -> StreamReleases:
    """A ledger of two keys in one partition."""
    releases = StreamReleases()
    for key, regret in ((b"fr", 6.0), (b"de", 2.0)):
        releases.apply([charge(release(key, 0), lines=LINES)])
        releases.apply(block(key, 1, 1, 3, regret=1, share=0.5))
        releases.apply(block(key, 2, 3, 11, regret=regret, share=0.25))
    return releases


@dataclass(frozen=True)
class Facts:
    """All that the two metrics pages are made from."""

    about: Sequence[About]
    process: ProcessStatus | None = None
    shown: Mapping[str, StreamReleases] = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    assemblies: Mapping[str, int] = field(default_factory=dict)
    expires_at: float | None = 2e9

    def families(self, *, most_series: int = 5000) -> Iterator[Metric]:
        """Those of the process that learns, and those of the process that serves beyond them."""
        mine = learning.ServiceFacts(self.about, self.process, self.assemblies, self.expires_at)
        names = set()
        for family in learning.ProcessMetrics(lambda: mine, most_series=most_series).families():
            names.add(family.name)
            yield family
        theirs = published.PublishedFacts(
            self.about, self.shown, self.conditions, self.traffic, self.assemblies, self.expires_at
        )
        yield from (one for one in published.published(theirs) if one.name not in names)

    def render(self, *, most_series: int = 5000) -> bytes:
        """Both pages as one."""
        page = published.MetricsPage(
            lambda: self.families(most_series=most_series), application=self.about[0].topics.app
        )
        return page.render()


def traffic() -> Traffic:
    """A listener that was asked a little."""
    asked = Traffic()
    for _ in range(5):
        asked.answered(200, method="GET", path=b"/v1/streams/home/keys/fr/action", seconds=0.0002)
    asked.answered(404, method="GET", path=b"/nothing", seconds=0.02)
    return asked


def facts(*partitions: PartitionStatus) -> Facts:
    """Two processes in good health."""
    condition = Condition(Feed.CURRENT, 0.0, "", keys=3, several=1, beyond=0, refused=0)
    return Facts(
        about=[ABOUT],
        process=process(*partitions),
        shown={"home": releases()},
        conditions={"home": condition},
        traffic=traffic(),
    )


LEARNER = policy_blocks(actions=FOUR, epsilon="1/2")

CLICKS = About(
    topics=replace(ABOUT.topics, headers=True),
    learner=LEARNER,
    estimates=(),
    budget=Fraction(1),
    epoch=2,
    seeded=False,
    actions=FOUR,
    fallback="a",
    salt="pepper",
    unit="clicks",
)
