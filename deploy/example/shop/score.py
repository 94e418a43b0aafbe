"""The sales, by what only the simulator can know. NOT PRIVATE: no real shop has these figures.

The shop shows every made-up visitor one shelf. What the visitor would have bought from the others
says what other ways of choosing would have sold to the same visitors:

- `fixed`: the same shelf for everybody, as before the shop learned;
- `without privacy`: the same learner with almost no noise (ε = 1,000), which learns of each sale as
  late as the shop's own. What it sells more is the cost of ε;
- `best`: the shelf that is truly best for each segment, which nobody knows at first.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import streamdp as sd
from streamdp.core.evidence.contexts import Contexts

from .world import FIXED, SHELVES, Product, Segment, Visit, best, reward

WAYS = ("shop", "fixed", "without privacy", "best")
NOT_PRIVATE = "NOT PRIVATE"


class WithoutPrivacy:
    """The shop's learner at ε = 1,000, with the shop's own delay."""

    def __init__(self, contexts: Contexts, *, most: float, delay: float, seed: int) -> None:
        learner = sd.policy_contexts(
            actions=contexts.arms(tuple(SHELVES)), epsilon="1000", context=contexts
        )
        self._engine = sd.Engine(
            stream="without-privacy", partition=0, learner=learner, budget="1000",
            randomness=sd.SystemRandomness(),
        )  # fmt: skip
        self._delay, self._most = delay, most
        self._chance = random.Random(seed)  # noqa: S311  # a simulation, no secret
        self._policies: dict[str, dict[str, float]] = {}  # since the latest release
        self._later: deque[tuple[float, Segment, str, float]] = deque()

    def show(self, visit: Visit, shelves: Sequence[str], *, now: float) -> str:
        """Choose one of the shelves for a visitor; learn the outcome when the window has passed."""
        while self._later and self._later[0][0] <= now:
            _, segment, shelf, value = self._later.popleft()
            if self._engine.observe(b"home", action=shelf, reward=value, context=segment.context):
                self._policies.clear()
        segment = visit.segment
        if segment.name not in self._policies:
            policy = self._engine.policy(b"home", segment.context)
            self._policies[segment.name] = policy or dict.fromkeys(SHELVES, 1.0)
        policy = self._policies[segment.name]
        (shelf,) = self._chance.choices(shelves, [policy[name] for name in shelves])
        share = min(1.0, reward(visit.would_buy[shelf]) / self._most)
        self._later.append((now + self._delay, segment, shelf, share))
        return shelf


@dataclass(slots=True)
class Score:
    """Euros sold by each way of choosing, to the same visitors."""

    without_privacy: WithoutPrivacy
    visits: int = 0
    euros: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WAYS, 0.0))
    series: list[tuple[float, int, dict[str, float]]] = field(default_factory=list)

    def add(self, visit: Visit, shelves: Sequence[str], *, shown: str, now: float) -> None:
        """One visitor, to a shop with these shelves."""
        by_way = {
            "shop": shown,
            "fixed": FIXED,
            "without privacy": self.without_privacy.show(visit, shelves, now=now),
            "best": best(visit.segment, shelves),
        }
        self.visits += 1
        for way, shelf in by_way.items():
            self.euros[way] += _euros(visit.would_buy[shelf])

    def mark(self, now: float) -> None:
        """Note the present figures, for the chart."""
        self.series.append((now, self.visits, dict(self.euros)))

    @property
    def cost(self) -> float:
        """Euros that the same learner would have sold more without privacy; by chance, less."""
        return self.euros["without privacy"] - self.euros["shop"]

    def per_hundred(self) -> Mapping[str, float]:
        """Euros per 100 visits."""
        return {way: 100 * euros / max(1, self.visits) for way, euros in self.euros.items()}


def recent(series: list[tuple[float, int, dict[str, float]]], *, every: int) -> list[list[float]]:
    """Euros per 100 visits in stretches of the chart: time, and one number for each of `WAYS`."""
    marks = series[::every]
    return [
        [round(at, 1), *(100 * (euros[way] - before[way]) / (visits - earlier) for way in WAYS)]
        for (_, earlier, before), (at, visits, euros) in pairwise(marks)
        if visits > earlier
    ]


def _euros(product: Product | None) -> float:
    return 0.0 if product is None else product.euros
