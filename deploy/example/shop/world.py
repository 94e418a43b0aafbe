"""A made-up shop: shelves with products, and visitors whose taste only this file knows.

Pure and seeded. A visit says for every shelf what the visitor would buy from it, if anything. The
shop shows one shelf and sees the result of that one. Only this file knows what the others would
have sold, so that the score can compare: no real shop has that knowledge.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_EUROS = 50.0
"""Euros of a purchase with the reward 1; a dearer one counts the same."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product."""

    name: str
    euros: float


SHELVES: Mapping[str, Sequence[Product]] = {
    "bestsellers": (Product("Rain jacket", 39), Product("Water bottle", 12),
                    Product("Day pack", 45), Product("Head torch", 24)),
    "new in": (Product("Wool cap", 19), Product("Linen shirt", 42),
               Product("City bag", 36), Product("Running belt", 23)),
    "for kids": (Product("Rubber boots", 25), Product("Kite", 18),
                 Product("Kids' tent", 49), Product("Rain suit", 32)),
    "outdoor": (Product("Sleeping mat", 38), Product("Camp stove", 44),
                Product("Hiking poles", 34), Product("Mosquito net", 16)),
    "second hand": (Product("Old boots", 35), Product("Fleece", 22),
                    Product("Old map", 9), Product("Frame pack", 48)),
}  # fmt: skip
FIXED = "bestsellers"
"""The shelf that everybody saw before the shop learned, and where nothing is known yet."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Visitors who share a taste: how many in a hundred buy from each shelf."""

    name: str
    share: float  # of all visitors
    buy: Mapping[str, float]

    @property
    def key(self) -> bytes:
        """The learner's key: a segment, never a person."""
        return self.name.encode()


SEGMENTS = (
    Segment("families", 0.4, {"bestsellers": 0.12, "new in": 0.08, "for kids": 0.34,
                              "outdoor": 0.10, "second hand": 0.09}),
    Segment("students", 0.35, {"bestsellers": 0.11, "new in": 0.14, "for kids": 0.02,
                               "outdoor": 0.10, "second hand": 0.36}),
    Segment("hikers", 0.25, {"bestsellers": 0.14, "new in": 0.06, "for kids": 0.04,
                             "outdoor": 0.37, "second hand": 0.13}),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Visit:
    """One visitor: what would be bought from each shelf, and after how many seconds."""

    segment: Segment
    would_buy: Mapping[str, Product | None]
    seconds: float


class World:
    """Makes up visitors."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311  # a simulation, no secret

    def visits(self, count: int) -> list[Visit]:
        """The next visitors."""
        shares = [segment.share for segment in SEGMENTS]
        chosen = self._chance.choices(SEGMENTS, shares, k=count)
        return [self._visit(segment) for segment in chosen]

    def _visit(self, segment: Segment) -> Visit:
        chance = self._chance
        would_buy = {
            shelf: chance.choice(products) if chance.random() < segment.buy[shelf] else None
            for shelf, products in SHELVES.items()
        }
        return Visit(segment, would_buy, chance.uniform(0.2, 1.5))


def reward(product: Product | None) -> float:
    """The reward of a purchase for the learner, from 0 to 1.

    >>> reward(Product("Day pack", 45)), reward(None)
    (0.9, 0.0)
    """
    return 0.0 if product is None else min(1.0, product.euros / MOST_EUROS)


def worth(segment: Segment, shelf: str) -> float:
    """Mean euros of a visit when this shelf is shown."""
    products = SHELVES[shelf]
    return segment.buy[shelf] * sum(product.euros for product in products) / len(products)


def best(segment: Segment) -> str:
    """The shelf that is truly best.

    >>> [best(segment) for segment in SEGMENTS]
    ['for kids', 'second hand', 'outdoor']
    """
    return max(SHELVES, key=lambda shelf: worth(segment, shelf))
