"""Where releases come from: drawn fresh, or read back from what was recorded.

A rebuilt engine goes through the same blocks as the one before it. Where a block ends it must not
draw again what may have been seen (P5): it takes the recorded release. Both ways have one face, so
that the engine's steps are the same code in life and in rebuilding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamdp.core.bank import Bank
from streamdp.core.errors import StateMismatch, complaint
from streamdp.core.events import ACTION, OPENING, Key, Release
from streamdp.core.learners.leader import Leader
from streamdp.core.noise import discrete_laplace
from streamdp.core.randomness import Bits, Purpose, Randomness, uniform_integers
from streamdp.core.regret import Estimate

Ints = NDArray[np.int64]


class Drawn(NamedTuple):
    """What names a release within one partition and epoch."""

    key: Key
    born: int
    block: int
    kind: str


class Kept(NamedTuple):
    """What was drawn, and over which records."""

    value: int  # the action's index or the estimate's grid value
    first_offset: int
    last_offset: int
    in_force: int | None = None  # the action in force afterwards, where that is on record


Recorded = Mapping[Drawn, Kept]
"""Recorded releases by name."""


def recorded(releases: Iterable[Release]) -> dict[Drawn, Kept]:
    """What a rebuild needs of releases."""
    return {
        Drawn(each.key, each.identity.born, each.identity.block, each.kind): Kept(
            each.value, each.first_offset, each.last_offset, each.in_force
        )
        for each in releases
    }


class Draws(Protocol):
    """Gives the values of releases, for some rows of a bank at once."""

    def openings(self, bank: Bank, rows: Ints) -> Ints:
        """The action that each new row starts with."""
        ...

    def actions(self, bank: Bank, rows: Ints) -> Ints:
        """The vote of each row at the end of a block."""
        ...

    def estimate(self, bank: Bank, rows: Ints, which: int) -> Ints:
        """The noisy value of one estimate over the block that each row has just ended."""
        ...


@dataclass(frozen=True, slots=True)
class Fresh:
    """Draws from randomness; every call may touch each identity once."""

    stream: str
    partition: int
    epoch: int
    learner: Leader
    estimates: tuple[Estimate, ...]
    randomness: Randomness

    def tag(self, bank: Bank, rows: Ints) -> None:
        """Give new rows what addresses their bits; fresh bits need no address."""
        if not self.randomness.seeded:
            return
        for row, born in zip(rows.tolist(), bank.born[rows].tolist(), strict=True):
            tag = self.randomness.tag(self.stream, self.partition, bank.keys[row], self.epoch, born)
            bank.tags[row] = np.frombuffer(tag, dtype=np.uint8)

    def bits(self, bank: Bank, rows: Ints, purpose: int, indices: Ints) -> Bits:
        """The bits of one draw per row."""
        return self.randomness.bits(self.stream, purpose, bank.tags[rows], indices)

    def openings(self, bank: Bank, rows: Ints) -> Ints:
        """Uniform over the actions: no data, no charge."""
        bits = self.bits(bank, rows, Purpose.OPENING, np.zeros(len(rows), dtype=np.int64))
        return uniform_integers(bits, np.full(len(rows), len(self.learner.actions)))

    def actions(self, bank: Bank, rows: Ints) -> Ints:
        """The learner's private choice from the window's sums."""
        bits = self.bits(bank, rows, Purpose.SELECTION, bank.block[rows])
        prior = self.learner.prior(bank.action[rows].astype(np.int64))
        return self.learner.choose.select(bank.sums[rows], bits, prior)

    def estimate(self, bank: Bank, rows: Ints, which: int) -> Ints:
        """The statistic plus discrete Laplace noise on the grid."""
        spec = self.estimates[which]
        in_force = bank.action[rows].astype(np.int64)
        exact = spec.statistic(bank.totals[rows], action=in_force, nulls=bank.nulls[rows])
        bits = self.bits(bank, rows, Purpose.NOISE + which, bank.block[rows])
        return exact + discrete_laplace(spec.scale(actions=len(self.learner.actions)), bits)


@dataclass(frozen=True, slots=True, repr=False)
class FromRecord:
    """Reads releases back by name; one that is missing is an error, never a draw."""

    estimates: tuple[Estimate, ...]
    recorded: Recorded

    def openings(self, bank: Bank, rows: Ints) -> Ints:
        """The recorded opening of each row."""
        return self._read(bank, rows, OPENING)

    def actions(self, bank: Bank, rows: Ints) -> Ints:
        """The recorded action of each row's block."""
        return self._read(bank, rows, ACTION)

    def estimate(self, bank: Bank, rows: Ints, which: int) -> Ints:
        """The recorded estimate of each row's block."""
        return self._read(bank, rows, self.estimates[which].name)

    def _read(self, bank: Bank, rows: Ints, kind: str) -> Ints:
        born, block = bank.born[rows].tolist(), bank.block[rows].tolist()
        names = [
            Drawn(bank.keys[row], since, ended, kind)
            for row, since, ended in zip(rows.tolist(), born, block, strict=True)
        ]
        missing = next((name for name in names if name not in self.recorded), None)
        if missing is not None:
            raise StateMismatch(
                complaint(
                    f"rebuild: {kind} of block {missing.block} born at {missing.born}",
                    "not recorded",
                    expected="the release that was drawn",
                    got="none",
                )
            )
        return np.array([self.recorded[name].value for name in names], dtype=np.int64)
