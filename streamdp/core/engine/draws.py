"""Where releases come from: drawn fresh, or read back from what was recorded.

A rebuilt engine goes through the same blocks as the one before it. Where a block ends it must not
draw again what may have been seen (P5): it takes the recorded release. Both sources have one
interface, so that the engine runs the same code live and while it is rebuilt.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.bank import Bank
from streamdp.core.errors import StateMismatch, complaint
from streamdp.core.events import ACTION, OPENING, SUMS, BlockSums, Carried, Key, Release
from streamdp.core.learners import Leader, Learner, PolicyLearner
from streamdp.core.noise import discrete_laplace, discrete_laplaces
from streamdp.core.randomness import TAG_BYTES, Bits, Purpose, Randomness, uniform_integers
from streamdp.core.regret import Estimate

_WORDS = 1 << 18  # of random bits at once: 2 MB


class Drawn(NamedTuple):
    """What names a release within one partition and epoch."""

    key: Key
    born: int
    block: int
    kind: str


class Kept(NamedTuple):
    """What was drawn, and from which records."""

    value: int  # the action's index or the estimate's grid value
    first_offset: int
    last_offset: int
    in_force: int | None = None  # the action in force afterwards, if recorded
    sums: BlockSums | None = None  # of the kind `sums`
    policy: bytes | None = None  # the policy in force afterwards, if recorded
    carried: Carried | None = None  # of an opening that was carried over


Recorded = Mapping[Drawn, Kept]
"""Recorded releases by name."""


def recorded(releases: Iterable[Release]) -> dict[Drawn, Kept]:
    """Index releases by name, with what a rebuild needs of each."""
    return {
        Drawn(release.key, release.identity.born, release.identity.block, release.kind): Kept(
            release.value,
            release.first_offset,
            release.last_offset,
            release.in_force,
            release.sums,
            release.policy,
            release.carried,
        )
        for release in releases
    }


class Draws(Protocol):
    """Gives the values of releases, for some rows of a bank at once."""

    def openings(self, bank: Bank, rows: Ints) -> Ints:
        """The action that each new row starts with, unless it carries one over."""
        ...

    def carried(self, keys: Sequence[Key], born: Ints) -> dict[int, Carried]:
        """What new rows carry over from learners before them, by their places among these keys."""
        ...

    def actions(self, bank: Bank, rows: Ints) -> Ints:
        """The vote of each row at the end of a block."""
        ...

    def estimate(self, bank: Bank, rows: Ints, which: int) -> Ints:
        """The noisy value of one estimate over the block that each row has just ended."""
        ...

    def sums(self, bank: Bank, rows: Ints) -> tuple[Ints, Ints]:
        """The released sums of gains and counts, R × K each, of a feedback stream's blocks."""
        ...


@dataclass(frozen=True, slots=True)
class Fresh:
    """Draws from randomness. Call each method at most once for each identity."""

    stream: str
    partition: int
    epoch: int
    learner: Learner
    estimates: tuple[Estimate, ...]
    randomness: Randomness
    heritage: MutableMapping[Key, Carried] = field(default_factory=dict, repr=False)
    withheld: Container[Key] = frozenset()  # keys whose newest release was shown to nobody

    def carried(self, keys: Sequence[Key], born: Ints) -> dict[int, Carried]:
        """The public state of the keys' previous learners; see `core.evidence.carrying`."""
        if not self.heritage:
            return {}
        shown = ((at, key) for at, key in enumerate(keys) if key not in self.withheld)
        left_over = ((at, self.heritage.get(key)) for at, key in shown)
        return {at: inherited for at, inherited in left_over if inherited is not None}

    def tag(self, bank: Bank, rows: Ints) -> None:
        """Give new rows the address of their bits; fresh bits need none."""
        if not self.randomness.seeded:
            return
        named = zip(rows.tolist(), bank.born[rows].tolist(), strict=True)
        tags = b"".join(
            self.randomness.tag(self.stream, self.partition, bank.keys[row], self.epoch, born)
            for row, born in named
        )
        bank.tags[rows] = np.frombuffer(tags, dtype=np.uint8).reshape(len(rows), TAG_BYTES)

    def bits(self, bank: Bank, rows: Ints, purpose: int, indices: Ints) -> Bits:
        """The bits of one draw per row."""
        return self.randomness.bits(self.stream, purpose, bank.tags[rows], indices)

    def openings(self, bank: Bank, rows: Ints) -> Ints:
        """Uniform over the actions: no data, no charge. A policy needs no draw."""
        if isinstance(self.learner, PolicyLearner):
            return np.zeros(len(rows), dtype=np.int64)
        bits = self.bits(bank, rows, Purpose.OPENING, np.zeros(len(rows), dtype=np.int64))
        return uniform_integers(bits, np.full(len(rows), len(self.learner.actions)))

    def actions(self, bank: Bank, rows: Ints) -> Ints:
        """The learner's private choice from the window's sums."""
        assert isinstance(self.learner, Leader)
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

    def sums(self, bank: Bank, rows: Ints) -> tuple[Ints, Ints]:
        """Each arm's sum and count plus discrete Laplace noise of the learner's scales."""
        learner, arms = self.learner, len(self.learner.actions)
        assert isinstance(learner, PolicyLearner)
        gains, shown = bank.sums[rows], bank.shown[rows]
        bits = self.bits(bank, rows, Purpose.NOISE, bank.block[rows])
        at_once = max(1, _WORDS // (2 * arms))
        for first in range(0, len(rows), at_once):
            some, part = slice(first, first + at_once), bits.part(first, first + at_once)
            if learner.sums_scale is not None:
                gains[some] += discrete_laplaces(learner.sums_scale, part, arms)
            if learner.counts_scale is not None:
                noise = discrete_laplaces(learner.counts_scale, part, arms, position=2 * arms)
                shown[some] += noise
        return gains, shown


@dataclass(frozen=True, slots=True, repr=False)
class FromRecord:
    """Reads releases back by name; a missing one is an error, never a draw."""

    estimates: tuple[Estimate, ...]
    recorded: Recorded

    def openings(self, bank: Bank, rows: Ints) -> Ints:
        """The recorded opening of each row."""
        return self._read(bank, rows, OPENING)

    def carried(self, keys: Sequence[Key], born: Ints) -> dict[int, Carried]:
        """What the recorded openings carried over."""
        names = (Drawn(key, at, 0, OPENING) for key, at in zip(keys, born.tolist(), strict=True))
        openings = ((at, self.recorded.get(name)) for at, name in enumerate(names))
        return {
            at: kept.carried
            for at, kept in openings
            if kept is not None and kept.carried is not None
        }

    def actions(self, bank: Bank, rows: Ints) -> Ints:
        """The recorded action of each row's block."""
        return self._read(bank, rows, ACTION)

    def estimate(self, bank: Bank, rows: Ints, which: int) -> Ints:
        """The recorded estimate of each row's block."""
        return self._read(bank, rows, self.estimates[which].name)

    def sums(self, bank: Bank, rows: Ints) -> tuple[Ints, Ints]:
        """The recorded sums and counts of each row's block."""
        kept = [draw.sums for draw in self._kept(bank, rows, SUMS)]
        arrays = [sums.arrays() for sums in kept if sums is not None]
        if len(arrays) < len(kept):
            raise StateMismatch(
                complaint("rebuild: sums", "not recorded", expected="sums and counts", got="none")
            )
        gains, shown = zip(*arrays, strict=True)
        return np.stack(gains), np.stack(shown)

    def _read(self, bank: Bank, rows: Ints, kind: str) -> Ints:
        return np.array([kept.value for kept in self._kept(bank, rows, kind)], dtype=np.int64)

    def _kept(self, bank: Bank, rows: Ints, kind: str) -> list[Kept]:
        born, block = bank.born[rows].tolist(), bank.block[rows].tolist()
        if kind == OPENING:
            block = [0] * len(block)  # even where a carried learner begins with a later block
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
                    got=f"{len(self.recorded)} other releases",
                )
            )
        return [self.recorded[name] for name in names]
