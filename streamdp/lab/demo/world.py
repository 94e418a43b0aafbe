"""A made-up shop: three segments of visitors, five shelves, tastes that drift. Pure and seeded.

Each visit says for every shelf whether the visitor would have bought from it (loss 0) or not (loss
1): full information. The shop shows one shelf, the one that streamdp published. What the others
would have earned only the simulator knows, so it can keep an exact score.

Above the shelves is a banner; each visitor sees one and clicks it or not: feedback. Whether a
visitor would have clicked another banner only the simulator knows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SHELVES = ("bestsellers", "new in", "for kids", "outdoor", "second hand")
FALLBACK = "bestsellers"

BANNERS = ("autumn sale", "free delivery", "gift cards", "newsletter")
CLICK_RATES = (0.04, 0.10, 0.05, 0.03)
"""Each banner's probability of a click, the same for all segments."""

PAGE = b"home page"
"""The key of the banners' learner: a placement, never a person."""

Means = tuple[float, ...]
"""Each shelf's probability that the visitor buys nothing."""


class Segment(NamedTuple):
    """A group of visitors with one taste, which may drift."""

    name: str
    share: float  # part of all visits
    before: Means
    after: Means  # from half of the demonstration's time on

    @property
    def key(self) -> bytes:
        """The record key: a segment, never a person."""
        return self.name.encode()

    def means(self, progress: float) -> Means:
        """The taste at a time of the demonstration."""
        return self.before if progress < 0.5 else self.after


_FAMILIES = (0.62, 0.70, 0.44, 0.66, 0.72)
_STUDENTS = (0.60, 0.55, 0.85, 0.64, 0.40)
_CAMPERS = (0.64, 0.68, 0.74, 0.42, 0.63)
_RAINED_IN = (0.66, 0.41, 0.74, 0.72, 0.63)

SEGMENTS = (
    Segment("families", 0.4, _FAMILIES, _FAMILIES),
    Segment("students", 0.35, _STUDENTS, _STUDENTS),
    Segment("campers", 0.25, _CAMPERS, _RAINED_IN),  # autumn comes
)


@dataclass(slots=True)
class Score:
    """One segment's exact score, which only the simulator knows."""

    visits: int = 0
    shown: float = 0.0  # loss of what was shown
    best_then: float = 0.0  # of the best shelf at each moment
    totals: list[float] = field(default_factory=lambda: [0.0] * len(SHELVES))

    def add(self, losses: Sequence[float], *, shown: int, best: int) -> None:
        """One visit."""
        self.visits += 1
        self.shown += losses[shown]
        self.best_then += losses[best]
        for shelf, loss in enumerate(losses):
            self.totals[shelf] += loss

    @property
    def random(self) -> float:
        """The expected loss of showing shelves at random."""
        return sum(self.totals) / len(self.totals)

    @property
    def best_fixed(self) -> float:
        """The loss of the shelf that was best in hindsight."""
        return min(self.totals)

    @property
    def ways(self) -> tuple[float, float, float, float]:
        """The losses of what was shown, a random shelf, the best fixed one and the best then."""
        return self.shown, self.random, self.best_fixed, self.best_then


@dataclass(slots=True)
class Clicks:
    """The banners' exact score, which only the simulator knows, of shown and other ones."""

    visits: int = 0
    clicked: int = 0
    would_have: list[int] = field(default_factory=lambda: [0] * len(BANNERS))

    @property
    def best_fixed(self) -> int:
        """The clicks of the banner that was best in hindsight."""
        return max(self.would_have)

    @property
    def random(self) -> float:
        """The expected clicks of banners shown at random."""
        return sum(self.would_have) / len(BANNERS)


class ShopWorld:
    """Makes visits, and keeps score."""

    def __init__(self, seed: int) -> None:
        self.scores = {segment.name: Score() for segment in SEGMENTS}
        self.clicks = Clicks()
        self._chance = random.Random(seed)  # noqa: S311  # a simulation, no secret

    def clicked(self, shown: Sequence[str]) -> list[bool]:
        """One visit for each shown banner: whether it was clicked."""
        clicks = []
        for banner in shown:
            would = [self._chance.random() < rate for rate in CLICK_RATES]
            click = would[BANNERS.index(banner)]
            self.clicks.visits += 1
            self.clicks.clicked += click
            for at, clicked in enumerate(would):
                self.clicks.would_have[at] += clicked
            clicks.append(click)
        return clicks

    def visits(self, segment: Segment, count: int, *, progress: float, shown: str) -> list[Means]:
        """Visits while a shelf is shown: every shelf's loss at each of them."""
        means, score = segment.means(progress), self.scores[segment.name]
        best, at = means.index(min(means)), SHELVES.index(shown)
        losses_of_visits = []
        for _ in range(count):
            losses = tuple(float(self._chance.random() < mean) for mean in means)
            score.add(losses, shown=at, best=best)
            losses_of_visits.append(losses)
        return losses_of_visits

    def best(self, segment: Segment, progress: float) -> str:
        """The shelf that is truly best at a time."""
        means = segment.means(progress)
        return SHELVES[means.index(min(means))]
