"""Runs the demonstration: it sends visits, runs the service beside them, and draws the screen.

Two streams learn at once: shelves from what every shelf would have sold (losses), banners from
whether the shown one was clicked (feedback).

The shop is a reader like any other: it learns what to show from the published actions, by
`streamdp.client`. When time is up it sends itself SIGTERM, as an operator would.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.live import Live

from streamdp.client import Why
from streamdp.lab.demo import screen
from streamdp.lab.demo.world import (
    BANNERS,
    FALLBACK,
    PAGE,
    SEGMENTS,
    SHELVES,
    Segment,
    ShopWorld,
)
from streamdp.ports import Producer
from streamdp.serve.knowledge import Bounds, Knowledge
from streamdp.service.life import Observe
from streamdp.service.listeners import about_of
from streamdp.service.run import Running
from streamdp.wire.feedback import ACTION_HEADER

PREFIX = "streamdp-demo"
"""What the names of all its topics begin with, so that it writes into no topic of the user's."""

STREAM = "shelves"
INPUT = f"{PREFIX}-visits"
BANNER_STREAM = "banners"
BANNER_INPUT = f"{PREFIX}-impressions"
VISITS_A_SECOND = 900
TICK_SECONDS = 0.1
LINE_SECONDS = 5.0
_SEED = 20260529


def configuration(path: Path, *, transport: str, listen: str) -> str:
    """The demonstration's configuration file."""
    return f"""\
# What `streamdp demo` runs: `streamdp run --with-serve --config {path}` goes on where it stopped.
app = "{PREFIX}"

[transport]
{transport}

[topics.{INPUT}]
budget = "1.0"                # the most ε that one visit may cost, all streams together
partitions = 1

[streams.{STREAM}]
input = "{INPUT}"
start = "earliest"
actions = {json.dumps(SHELVES)}
fallback_action = "{FALLBACK}"

[streams.{STREAM}.learner]
recipe = "incumbent_leader"
epsilon = "0.5"               # what each visit is charged for the action
schedule = "capped 512"       # blocks of at most 512 visits, so that it follows drift

[[streams.{STREAM}.estimates]]
name = "block_regret"         # what the status page draws; released with noise
epsilon = "0.25"              # charged to the same visits, beside the action
min_length = 64

[topics.{BANNER_INPUT}]
budget = "1.0"
partitions = 1

[streams.{BANNER_STREAM}]       # sees only what came of the banner that was shown
input = "{BANNER_INPUT}"
start = "earliest"
observes = "feedback"
actions = {json.dumps(BANNERS)}
fallback_action = "{BANNERS[0]}"

[streams.{BANNER_STREAM}.learner]
recipe = "policy_following"   # publishes a policy: each visitor draws a banner from it
epsilon = "1"

[streams.{BANNER_STREAM}.feedback]
content = "reward"            # 1: clicked, 0: not
salt = "demo"                 # the same for all that draw

[http]
listen = "{listen}"

[log]
format = "json"
"""


class Show:
    """The demonstration as a face of the service."""

    def __init__(self, console: Console, *, seconds: float, address: str) -> None:
        self.world = ShopWorld(_SEED)
        self.frame: screen.Frame | None = None
        self.first_action: float | None = None  # seconds until one was published
        self._console = console
        self._seconds = seconds
        self._address = address
        self._begun = time.monotonic()

    @asynccontextmanager
    async def observer(self, running: Running) -> AsyncIterator[Observe | None]:
        """Send visits and draw the screen for as long as the service runs."""
        names = (STREAM, BANNER_STREAM)
        about = [about_of(running.configuration, name) for name in names]
        publications = running.technology.publications
        knowledge = Knowledge(about, publications, bounds=Bounds())
        producer = running.technology.producer()
        performing = asyncio.get_running_loop().create_task(
            self._perform(running, knowledge, producer)
        )
        try:
            yield None
        finally:
            performing.cancel()
            with suppress(asyncio.CancelledError):
                await performing
            await producer.close()

    async def _perform(self, running: Running, knowledge: Knowledge, producer: Producer) -> None:
        """Send visits until time is up or an error ends the show."""
        try:
            await running.joined.wait()
            async with knowledge.following():
                with _drawing(self._console) as draw:
                    await self._visits(running, knowledge, producer, draw)
        finally:
            signal.raise_signal(signal.SIGTERM)

    async def _visits(
        self, running: Running, knowledge: Knowledge, producer: Producer, draw: Draw
    ) -> None:
        encode = next(spec for spec in running.specs if spec.name == STREAM).format.encode
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < self._seconds:
            progress = passed / self._seconds
            records: list[tuple[bytes | None, bytes | None]] = []
            for segment in SEGMENTS:
                shown = knowledge.cache.action(STREAM, segment.key).action
                count = round(VISITS_A_SECOND * TICK_SECONDS * segment.share)
                visits = self.world.visits(segment, count, progress=progress, shown=shown)
                rows = np.array(visits, dtype=np.float32)
                records += [(segment.key, encode(rows[at : at + 1])) for at in range(count)]
            await producer.send(INPUT, records)
            await self._banners(knowledge, producer)
            self._look(knowledge, progress)
            assert self.frame is not None
            draw(self.frame)
            await asyncio.sleep(max(0.0, TICK_SECONDS - (time.monotonic() - begun - passed)))

    async def _banners(self, knowledge: Knowledge, producer: Producer) -> None:
        """Each visitor is shown one banner, drawn from the policy, and clicks it or does not."""
        first = self.world.clicks.visits
        count = round(VISITS_A_SECOND * TICK_SECONDS)
        choices = [
            knowledge.cache.choose(BANNER_STREAM, PAGE, f"visit-{first + at}")
            for at in range(count)
        ]
        clicked = self.world.clicked([choice.action for choice in choices])
        await producer.send(
            BANNER_INPUT,
            [(PAGE, b'{"reward": %d}' % click) for click in clicked],
            headers=[
                [(ACTION_HEADER, choice.action.encode()),
                 ("pscore", repr(choice.probability).encode())]
                for choice in choices
            ],
        )  # fmt: skip

    def _look(self, knowledge: Knowledge, progress: float) -> None:
        """A frame of what can be seen now."""
        about, releases = knowledge.about[STREAM], knowledge.histories[STREAM].shown
        rows = [_row(segment, knowledge, self.world, progress) for segment in SEGMENTS]
        if self.first_action is None and any(row.action for row in rows):
            self.first_action = time.monotonic() - self._begun
        self.frame = screen.Frame(
            rows=rows,
            charged=releases.charged(),
            budget=about.budget,
            visits=sum(score.visits for score in self.world.scores.values()),
            progress=progress,
            seconds=self._seconds * (1 - progress),
            address=self._address,
            banners=_banners_of(knowledge),
            banner_charged=knowledge.histories[BANNER_STREAM].shown.charged(),
        )


Draw = Callable[[screen.Frame], None]


@contextmanager
def _drawing(console: Console) -> Iterator[Draw]:
    """Draw a live picture on a terminal; elsewhere print a line now and then."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            yield lambda frame: live.update(screen.drawn(frame))
        return
    told_at = -LINE_SECONDS

    def tell(frame: screen.Frame) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= LINE_SECONDS:
            told_at = time.monotonic()
            console.print(screen.as_line(frame), soft_wrap=True)

    yield tell


def _row(segment: Segment, knowledge: Knowledge, world: ShopWorld, progress: float) -> screen.Row:
    answer = knowledge.cache.action(STREAM, segment.key)
    known = answer.why is Why.PUBLISHED
    learners = list(knowledge.histories[STREAM].shown.of_key(segment.key).values())
    points = [
        (point.value / length, point.standard_error / length)
        for history in learners
        for point in history.points or ()
        if (length := point.stop - point.start)
    ]
    return screen.Row(
        name=segment.name,
        action=answer.action if known else None,
        block=answer.block,
        slots=answer.slots,
        regrets=[value for value, _ in points],
        standard_error=points[-1][1] if points else 0.0,
        is_best=answer.action == world.best(segment, progress) if known else None,
    )


def _banners_of(knowledge: Knowledge) -> list[screen.Banner]:
    """The published banners: the policy, and each one's private share of clicks."""
    held = knowledge.cache.answer(BANNER_STREAM, PAGE).held
    learners = knowledge.histories[BANNER_STREAM].shown.of_key(PAGE).values()
    experiment = next((key.experiment for key in learners if key.experiment is not None), None)
    arms = None if experiment is None or experiment.blocks == 0 else experiment.arms()
    banners = []
    for arm, name in enumerate(BANNERS):
        start = held.ends[arm - 1] if held is not None and arm else 0
        share = None if held is None else (held.ends[arm] - start) / held.ends[-1]
        shown = 0 if arms is None else int(arms.shown[arm])
        clicks = None
        if arms is not None and shown:
            clicks = 100 * (1 - float(arms.high[arm])), 100 * (1 - float(arms.low[arm]))
        banners.append(screen.Banner(name, share, shown, clicks))
    return banners
