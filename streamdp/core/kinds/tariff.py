"""What the blocks of a kind charge, and whether that is within a stream's share of the budget (P6).

`core.engine.charging` books it; `core.ledger` adds up what all streams of a topic charge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import compress, pairwise

import numpy as np

from streamdp.core.errors import InvalidConfig
from streamdp.core.kinds.estimates import Estimate
from streamdp.core.kinds.kind import BlockRelease, Kind
from streamdp.core.schedule import Schedule


def shares(kind: Kind, estimates: Sequence[Estimate] = ()) -> dict[str, Fraction]:
    """The most that an event is charged for each release, with these estimates."""
    return {of.name: of.epsilon for of in kind.with_estimates(estimates).releases}


def full_charge(kind: Kind, estimates: Sequence[Estimate] = ()) -> Fraction:
    """The most that an event is charged in total."""
    return sum(shares(kind, estimates).values(), Fraction(0))


_AT_ONCE = 1 << 20  # blocks at a time: where they are short there may be very many


@dataclass(frozen=True, slots=True)
class Tariff:
    """The charge of a block, which follows from its length alone.

    A block's releases are charged to its slots together, before any of them is drawn.
    """

    releases: tuple[BlockRelease, ...]

    def of_first(self, blocks: int, schedule: Schedule) -> Iterator[tuple[Fraction, int, int]]:
        """The charges of the first blocks, as runs [begin, end) of blocks that release the same."""
        for first in range(0, blocks, _AT_ONCE):
            numbers = np.arange(first, min(first + _AT_ONCE, blocks))
            lengths = schedule.lengths(numbers)
            due = np.array([release.due(lengths) for release in self.releases])
            changes = np.flatnonzero((due[:, 1:] != due[:, :-1]).any(axis=0)) + 1
            for begin, end in pairwise([0, *changes.tolist(), len(numbers)]):
                paid = compress(self.releases, due[:, begin])
                yield sum((of.epsilon for of in paid), Fraction(0)), first + begin, first + end


def tariff(kind: Kind, *, budget: Fraction | None) -> Tariff | None:
    """The charges of a stream; `InvalidConfig` if they exceed its share of the budget."""
    others = [release.name for release in kind.releases[1:]]
    if not kind.releases[0].epsilon:
        if budget is not None or others:
            raise InvalidConfig(
                "learner",
                f"{kind.recipe.name} is not private",
                expected="no budget, no estimates",
                got=f"budget {budget}, {len(others)} estimates",
            )
        return None
    if budget is None:
        raise InvalidConfig("budget", "missing", expected='for example "1.0"', got=budget)
    if len(set(others)) != len(others):
        raise InvalidConfig("estimates", "a name twice", expected="distinct names", got=others)
    charge = full_charge(kind)
    if charge > budget:
        raise InvalidConfig(
            "budget",
            "the charges of one event exceed it",
            expected=f"at most {budget}",
            got=charge,
        )
    return Tariff(kind.releases)
