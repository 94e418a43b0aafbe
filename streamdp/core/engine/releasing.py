"""Releases: where they come from, and how those of a batch become columns.

A release is drawn fresh, or read back from what was recorded. A rebuilt engine goes through the
same blocks as the one before it. Where a block ends it must not draw again what may have been seen
(P5): it takes the recorded release. Both sources have one interface, so that the engine runs the
same code live and while it is rebuilt.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.bank import Bank, Gathered
from streamdp.core.errors import StateMismatch
from streamdp.core.events import OPENING, Carried, Key
from streamdp.core.evidence.evidence import InForce
from streamdp.core.kinds.kind import Kind
from streamdp.core.randomness import TAG_BYTES, Bits, Randomness
from streamdp.core.releases import RecordedReleases, Releases


class Draws(Protocol):
    """Gives the values of releases, for some rows of a bank at once."""

    def carried(self, keys: Sequence[Key], born: Ints) -> dict[int, Carried]:
        """What new rows carry over from learners before them, by their places among these keys."""
        ...

    def openings(self, rows: Ints) -> Ints:
        """What each new row begins with, unless it carries something over."""
        ...

    def released(self, name: str, rows: Ints) -> Ints:
        """The release of this name of the block that each row has just ended."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Fresh:
    """Draws from randomness. Call each method at most once for each identity."""

    stream: str
    partition: int
    epoch: int
    kind: Kind
    bank: Bank
    randomness: Randomness
    heritage: MutableMapping[Key, Carried]

    def carried(self, keys: Sequence[Key], born: Ints) -> dict[int, Carried]:
        """The public state of the keys' previous learners; see `core.evidence.carrying`."""
        if not self.heritage:
            return {}
        left_over = ((at, self.heritage.get(key)) for at, key in enumerate(keys))
        return {at: inherited for at, inherited in left_over if inherited is not None}

    def tag(self, rows: Ints) -> None:
        """Give new rows the address of their bits; fresh bits need none."""
        if not self.randomness.seeded:
            return
        bank = self.bank
        named = zip(rows.tolist(), bank.born[rows].tolist(), strict=True)
        tags = b"".join(
            self.randomness.tag(self.stream, self.partition, bank.keys[row], self.epoch, born)
            for row, born in named
        )
        bank.tags[rows] = np.frombuffer(tags, dtype=np.uint8).reshape(len(rows), TAG_BYTES)

    def bits(self, purpose: int, rows: Ints, indices: Ints) -> Bits:
        """The bits of one draw per row."""
        return self.randomness.bits(self.stream, purpose, self.bank.tags[rows], indices)

    def openings(self, rows: Ints) -> Ints:
        """From bits alone: no data, no charge."""
        none = np.zeros(len(rows), dtype=np.int64)
        return self.kind.opening(len(rows), partial(self.bits, rows=rows, indices=none))

    def released(self, name: str, rows: Ints) -> Ints:
        """The kind's draw: the one place where private columns and bits meet."""
        bank = self.bank
        bits = partial(self.bits, rows=rows, indices=bank.block[rows])
        return self.kind.draw(name, Gathered(bank.private, rows), Gathered(bank.public, rows), bits)


@dataclass(frozen=True, slots=True, repr=False)
class FromRecord:
    """Reads releases back by name; a missing one is an error, never a draw."""

    kind: Kind
    bank: Bank
    recorded: RecordedReleases

    def carried(self, keys: Sequence[Key], born: Ints) -> dict[int, Carried]:
        """What the recorded openings carried over."""
        places = self.recorded.find(OPENING, keys, born, np.zeros_like(born))
        there = np.flatnonzero(places >= 0)
        carried = self.recorded.at(places[there]).carried or {}
        named = ((at, (keys[at], int(born[at]))) for at in there.tolist())
        return {at: carried[name] for at, name in named if name in carried}

    def openings(self, rows: Ints) -> Ints:
        """The recorded opening of each row."""
        return self._read(OPENING, rows, np.zeros_like(rows))  # whatever block it begins with

    def released(self, name: str, rows: Ints) -> Ints:
        """The recorded release of each row's block."""
        return self._read(name, rows, self.bank.block[rows])

    def _read(self, kind: str, rows: Ints, blocks: Ints) -> Ints:
        keys, born = [self.bank.keys[row] for row in rows.tolist()], self.bank.born[rows]
        places = self.recorded.find(kind, keys, born, blocks)
        if len(places) and places.min() < 0:
            at = int(places.argmin())
            raise StateMismatch(
                f"rebuild: {kind} of block {blocks[at]} born at {born[at]}",
                "not recorded",
                expected="the release that was drawn",
                got=f"{len(self.recorded)} other releases",
            )
        return self.recorded.at(places).numbers


class Ended(NamedTuple):
    """Blocks of different rows that end together, and their records.

    For openings: rows that are born, as blocks without a slot.
    """

    rows: Ints
    block: Ints
    start: Ints
    stop: Ints
    first_offset: Ints
    last_offset: Ints
    place: Ints  # of the record that ended the block, in the batch


class Releasing:
    """Makes tables of the releases of one engine."""

    __slots__ = ("_bank", "nothing")

    def __init__(self, *, stream: str, partition: int, epoch: int, kind: Kind, bank: Bank) -> None:
        self._bank = bank
        self.nothing = no_releases(kind, stream=stream, partition=partition, epoch=epoch)
        """The releases of a batch in which no block ends: an empty table."""

    def drawn(
        self,
        code: int,
        ended: Ended,
        numbers: Ints,
        in_force: InForce,
        carried: dict[tuple[Key, int], Carried] | None = None,
    ) -> Releases:
        """Releases of one name that were drawn together, with what is in force afterwards."""
        rows, bank = ended.rows, self._bank
        return replace(
            self.nothing,
            keys=[bank.keys[row] for row in rows.tolist()],
            kind=np.full(len(rows), code, dtype=np.uint8),
            born=bank.born[rows],
            block=ended.block,
            start=ended.start,
            stop=ended.stop,
            first_offset=ended.first_offset,
            last_offset=ended.last_offset,
            ordinal=ended.place,
            numbers=numbers,
            in_force=None if self.nothing.in_force is None else in_force,
            carried=carried or None,
        )

    def of(self, drawn: Sequence[Releases]) -> Releases:
        """Releases in the order of the records that ended their blocks.

        Those of one record come in the order of their kinds: an opening, the kind's first release,
        its second, and so on.
        """
        if not drawn:
            return self.nothing
        joined = self.nothing.joined(drawn)
        return joined.at(np.lexsort((joined.kind, joined.block, joined.ordinal)))


def no_releases(kind: Kind, *, stream: str, partition: int, epoch: int) -> Releases:
    """An empty table of what such a learner releases."""
    none: InForce = np.zeros(0, dtype=np.int64)
    evidence = kind.evidence
    acts, in_force = evidence.answers == "action", none if evidence.says_more else None
    if not acts:
        in_force = np.zeros((0, len(kind.actions)), dtype=np.uint32)
    return Releases(
        stream=stream, partition=partition, epoch=epoch,
        kinds=(OPENING, *(release.name for release in kind.releases)),
        charges=(Fraction(0), *(release.epsilon for release in kind.releases)),
        keys=(), kind=none.astype(np.uint8), born=none, block=none, start=none, stop=none,
        first_offset=none, last_offset=none, ordinal=none,
        numbers=np.zeros((0, kind.releases[0].width), dtype=np.int64), in_force=in_force,
        actions=kind.actions if acts else (),
    )  # fmt: skip
