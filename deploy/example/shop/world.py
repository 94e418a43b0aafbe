"""A made-up shop: shelves with products, and visitors whose taste only this file knows.

Pure and seeded. A visit says for every shelf what the visitor would buy from it, if anything. The
shop shows one shelf and sees the result of that one. Only this file knows what the others would
have sold, so that the score can compare: no real shop has that knowledge.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
    "gifts": (Product("Lantern", 33), Product("Pocket knife", 46),
              Product("Enamel mugs", 27), Product("Star chart", 18)),
}  # fmt: skip
LATER = ("gifts",)
"""The shelves that come while the shop is open (`streamdp actions shelves add`)."""
FIXED = "bestsellers"
"""The shelf that everybody saw before the shop learned, and where nothing is known yet."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Visitors with one device, from one country: how many in a hundred buy from each shelf."""

    device: str
    country: str
    share: float  # of all visitors
    buy: Mapping[str, float]

    @property
    def name(self) -> str:
        """As the page names them."""
        return f"{self.country} · {self.device}"

    @property
    def context(self) -> dict[str, str]:
        """What the shop knows of a visitor when it chooses: public for good."""
        return {"device": self.device, "country": self.country}


def _segment(device: str, country: str, share: float, *percent: int) -> Segment:
    """A segment, with one number for each of `SHELVES`."""
    buy = {shelf: of / 100 for shelf, of in zip(SHELVES, percent, strict=True)}
    return Segment(device, country, share, buy)


SEGMENTS = (
    _segment("phone", "de", 0.25, 12, 8, 4, 11, 36, 14),
    _segment("desktop", "de", 0.20, 14, 9, 5, 37, 12, 10),
    _segment("phone", "fr", 0.18, 11, 36, 5, 7, 14, 9),
    _segment("desktop", "fr", 0.12, 13, 35, 8, 12, 9, 12),
    _segment("phone", "it", 0.15, 10, 8, 37, 6, 13, 60),
    _segment("desktop", "it", 0.10, 13, 9, 34, 12, 8, 13),
)


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
    """The reward of a purchase for the learner, in euros.

    >>> reward(Product("Day pack", 45)), reward(None)
    (45, 0.0)
    """
    return 0.0 if product is None else product.euros


def worth(segment: Segment, shelf: str) -> float:
    """Mean euros of a visit when this shelf is shown."""
    products = SHELVES[shelf]
    return segment.buy[shelf] * sum(product.euros for product in products) / len(products)


def best(segment: Segment, shelves: Sequence[str]) -> str:
    """The one of these shelves that is truly best.

    >>> first = [shelf for shelf in SHELVES if shelf not in LATER]
    >>> [best(segment, first) for segment in SEGMENTS]
    ['second hand', 'outdoor', 'new in', 'new in', 'for kids', 'for kids']
    >>> [best(segment, [*SHELVES]) for segment in SEGMENTS]
    ['second hand', 'outdoor', 'new in', 'new in', 'gifts', 'for kids']
    """
    return max(shelves, key=lambda shelf: worth(segment, shelf))
