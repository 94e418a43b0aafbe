"""The shop: it shows a shelf, sells from it, and writes both down, as a shop of yours would.

It has no event loop, like many shops: `ActionsCache` follows the published policies and `Loop`
writes requests and outcomes, each in a thread of its own. No call waits for the log.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from streamdp.client import (
    ActionsCache,
    Loop,
    LoopTopics,
    Names,
    Request,
    Shown,
    Source,
)
from streamdp.core.evidence.contexts import Contexts
from streamdp.service.config import Configuration

from .world import FIXED, LATER, SHELVES, Product, Segment, reward

STREAM = "shelves"
ASSEMBLY = "visits"
KEY = b"home"
"""The learner's key: a page, never a person."""
YOU, MADE_UP = "you", "made up"  # the kinds of visitors
_KEPT = 10  # visits that the page shows


@dataclass(slots=True)
class Seen:
    """A visit, as the shop knows it. NOT PRIVATE."""

    number: int
    segment: str
    shelf: str
    by: str
    bought: str | None = None


class Store:
    """Shows shelves and sells products."""

    def __init__(
        self, actions: ActionsCache, loop: Loop, contexts: Contexts, *, most: float
    ) -> None:
        self.actions, self.loop, self.contexts, self.most = actions, loop, contexts, most
        self.seen: deque[Seen] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()
        self._visits = 0

    def show(self, segment: Segment, *, by: str) -> tuple[Shown, Seen]:
        """Choose a shelf for a visitor, by device and country."""
        shown = self.loop.choose(KEY, context=segment.context)
        with self._lock:
            self._visits += 1
            seen = Seen(self._visits, segment.name, shown.action, by)
            if by == YOU:
                self.seen.append(seen)
        return shown, seen

    def buy(self, request: Request, product: Product, seen: Seen | None = None) -> None:
        """Write a purchase as the outcome of a request."""
        self.loop.outcome(request, reward(product))
        if seen is not None:
            seen.bought = f"{product.name}, {product.euros:.0f} €"
            if seen.by != YOU:
                self.seen.append(seen)

    @property
    def shelves(self) -> tuple[str, ...]:
        """The shelves that there are, by the list that the shop has read."""
        named = self.actions.condition(STREAM).named
        return named or tuple(shelf for shelf in SHELVES if shelf not in LATER)

    @property
    def paused(self) -> tuple[str, ...]:
        """The shelves that nobody is shown now."""
        return self.actions.condition(STREAM).paused

    def policy(self, segment: Segment) -> dict[str, float] | None:
        """What was learned for a segment: a probability for each shelf, also for a paused one."""
        held = self.actions.answer(STREAM, KEY).held
        if held is None:
            return None
        shelves = held.names.actions  # a new one is not among them before its first policy
        first = self.contexts.cell(segment.context) * len(shelves)
        ends = [0, *held.ends[first : first + len(shelves)]]
        parts = (stop - start for start, stop in pairwise(ends))
        return {shelf: part / ends[-1] for shelf, part in zip(shelves, parts, strict=True)}


@contextmanager
def opened(configuration: Configuration) -> Iterator[Store]:
    """A store on the configured log."""
    technology = configuration.technology()
    table = configuration.tables.assemblies[ASSEMBLY]
    topics = LoopTopics(requests=table.requests, outcomes=table.outcomes)
    stream = configuration.streams[STREAM]
    contexts = stream.contexts
    assert stream.table.feedback is not None, "observes feedback"
    assert contexts is not None, "has a table of fields"
    assert stream.feedback is not None, "observes feedback"
    most = stream.feedback.largest
    source = Source(
        stream.topics,
        fallback=FIXED,
        names=Names(salt=stream.table.feedback.salt),
    )
    with (
        ActionsCache(technology.publications, [source]) as actions,
        Loop(technology.producer, actions, stream=STREAM, topics=topics, most=most) as loop,
    ):
        yield Store(actions, loop, contexts, most=most)


def delay_of(configuration: Configuration) -> float:
    """Seconds until the learner knows a visit's outcome: the window and the grace."""
    table = configuration.tables.assemblies[ASSEMBLY]
    return (table.window + table.grace) / 1000


def product_of(shelf: str, name: str) -> Product | None:
    """A product of a shelf by its name."""
    return next((product for product in SHELVES.get(shelf, ()) if product.name == name), None)


def clock() -> float:
    """Seconds that never go back."""
    return time.monotonic()
