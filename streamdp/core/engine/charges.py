"""What each block is charged, and the ledger's answers by key.

A block's releases are charged to its slots together, before any of them is drawn. What a block is
charged follows from its length alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Bools, Ints
from streamdp.core.bank import Bank
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Key
from streamdp.core.kinds.kind import BlockRelease, Kind
from streamdp.core.ledger import Ledger, Run
from streamdp.core.schedule import Schedule

_AT_ONCE = 1 << 20  # blocks at a time: where they are short there may be very many


@dataclass(frozen=True, slots=True)
class Tariff:
    """The charge of a block by its length."""

    releases: tuple[BlockRelease, ...]

    def highest(self) -> Fraction:
        """The most that any slot can be charged."""
        return sum((release.epsilon for release in self.releases), Fraction(0))

    def of_lengths(self, lengths: Ints) -> Iterator[tuple[Fraction, Bools]]:
        """Each charge that occurs, the shortest blocks' first, and which blocks pay it."""
        borders = sorted({release.shortest for release in self.releases})
        for low, high in zip(borders, [*borders[1:], np.iinfo(np.int64).max], strict=True):
            which = (lengths >= low) & (lengths < high)
            if which.any():
                due = (release.epsilon for release in self.releases if release.shortest <= low)
                yield sum(due, Fraction(0)), which

    def of_first(self, blocks: int, schedule: Schedule) -> Iterator[tuple[Fraction, int, int]]:
        """The charges of the first blocks, as runs [begin, end) of blocks that cost the same."""
        for first in range(0, blocks, _AT_ONCE):
            numbers = np.arange(first, min(first + _AT_ONCE, blocks))
            charges = list(self.of_lengths(schedule.lengths(numbers)))
            kind = np.zeros(len(numbers), dtype=np.int64)
            for at, (_, which) in enumerate(charges):
                kind[which] = at
            changes = np.flatnonzero(np.diff(kind)) + 1
            for run in np.split(np.arange(len(numbers)), changes):
                yield charges[kind[run[0]]][0], int(numbers[run[0]]), int(numbers[run[-1]]) + 1


def tariff(kind: Kind, *, budget: Fraction | None) -> Tariff | None:
    """The charges of a stream; `InvalidConfig` if they exceed its share of the budget."""
    others = [release.name for release in kind.releases[1:]]
    if kind.charge is None:
        if budget is not None or others:
            raise InvalidConfig(
                "learner",
                f"{kind.recipe} is not private",
                expected="no budget, no estimates",
                got=f"budget {budget}, {len(others)} estimates",
            )
        return None
    if budget is None:
        raise InvalidConfig("budget", "missing", expected='for example "1.0"', got=budget)
    if len(set(others)) != len(others):
        raise InvalidConfig("estimates", "a name twice", expected="distinct names", got=others)
    charges = Tariff(kind.releases)
    if charges.highest() > budget:
        raise InvalidConfig(
            "budget",
            "the charges of one event exceed it",
            expected=f"at most {budget}",
            got=charges.highest(),
        )
    return charges


@dataclass(frozen=True, slots=True)
class Charges:
    """The charges, by key. Public: they follow from slot numbers.

    A learner that carried over begins with a later block than the first, and its row does not say
    with which one: after a rebuild the slots before that block count as charged too, though the
    learner never had them. So the figure may be too high but never too low, and refuses nothing
    (these slots cannot come any more). The record of charges is the ledger topic, not this.
    """

    ledger: Ledger | None
    bank: Bank

    def spent(self, key: Key, *, slot: int) -> Fraction:
        """What one slot of a key has been charged in total."""
        return self.max_spent(key, start=slot, stop=slot + 1)

    def max_spent(self, key: Key, *, start: int, stop: int) -> Fraction:
        """The most that any of the slots [start, stop) of a key has been charged."""
        row = self.bank.row(key)
        if self.ledger is None or row is None:
            return Fraction(0)
        return self.ledger.max_spent(row, start, stop)

    def highest(self) -> Fraction:
        """The most that any slot of any key has been charged: the guarantee so far."""
        return Fraction(0) if self.ledger is None else self.ledger.highest()

    def export(self) -> Iterator[tuple[Key, Run]]:
        """Every charged stretch of slots, key by key."""
        if self.ledger is None:
            return
        for row, key in enumerate(self.bank.keys):
            for run in self.ledger.export(row):
                yield key, run
