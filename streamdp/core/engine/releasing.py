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
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.bank import Bank, Gathered
from streamdp.core.errors import StateMismatch
from streamdp.core.events import OPENING, Carried, FeedbackColumns, Key, Releases
from streamdp.core.evidence.evidence import InForce
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.recorded import ManyRecorded, Names
from streamdp.core.randomness import TAG_BYTES, Bits, Randomness


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
    recorded: ManyRecorded

    def carried(self, keys: Sequence[Key], born: Ints) -> dict[int, Carried]:
        """What the recorded openings carried over."""
        places = self.recorded.places(Names(OPENING, keys, born, np.zeros_like(born)))
        there = np.flatnonzero(places >= 0)
        openings = zip(there.tolist(), self.recorded.kept(places[there]).rest, strict=True)
        return {at: of.carried for at, of in openings if of.carried is not None}

    def openings(self, rows: Ints) -> Ints:
        """The recorded opening of each row."""
        return self._read(OPENING, rows, np.zeros_like(rows))  # whatever block it begins with

    def released(self, name: str, rows: Ints) -> Ints:
        """The recorded release of each row's block."""
        return self._read(name, rows, self.bank.block[rows])

    def _read(self, kind: str, rows: Ints, blocks: Ints) -> Ints:
        keys = [self.bank.keys[row] for row in rows.tolist()]
        names = Names(kind, keys, self.bank.born[rows], blocks)
        places = self.recorded.places(names)
        if len(places) and places.min() < 0:
            at = int(places.argmin())
            raise StateMismatch(
                f"rebuild: {kind} of block {blocks[at]} born at {names.born[at]}",
                "not recorded",
                expected="the release that was drawn",
                got=f"{len(self.recorded)} other releases",
            )
        kept = self.recorded.kept(places)
        return self.kind.read(kind, kept.value, [of.sums for of in kept.rest])


class Ended(NamedTuple):
    """Blocks of different rows that end together, and their records."""

    rows: Ints
    block: Ints
    start: Ints
    stop: Ints
    first_offset: Ints
    last_offset: Ints
    place: Ints  # of the record that ended the block, in the batch


@dataclass(frozen=True, slots=True, repr=False)
class Wave:
    """Releases of one name that were drawn together.

    Codes of names: 0 is an opening, 1 the kind's first release, 2 its second, and so on. Releases
    of one record come in this order.
    """

    code: int
    ended: Ended
    released: Ints  # R × the release's width
    in_force: InForce  # afterwards
    carried: dict[tuple[Key, int], Carried] | None = None  # of openings


class Releasing:
    """Makes the releases of one engine."""

    __slots__ = ("_bank", "_kind", "nothing")

    def __init__(self, *, stream: str, partition: int, epoch: int, kind: Kind, bank: Bank) -> None:
        self._kind, self._bank = kind, bank
        none, releases = np.zeros(0, dtype=np.int64), kind.releases
        self.nothing = Releases(
            stream=stream,
            partition=partition,
            epoch=epoch,
            kinds=(OPENING, *(release.name for release in releases)),
            charges=(Fraction(0), *(release.epsilon for release in releases)),
            keys=(),
            kind=none.astype(np.uint8),
            born=none, block=none, value=none, start=none, stop=none, first_offset=none,
            last_offset=none,
        )  # fmt: skip
        """The releases of a batch in which no block ends: empty columns."""

    def of(self, waves: Sequence[Wave]) -> Releases:
        """Releases in the order of the records that ended their blocks."""
        if not waves:
            return self.nothing
        codes = np.repeat(
            np.array([wave.code for wave in waves], dtype=np.uint8),
            [len(wave.released) for wave in waves],
        )
        ended = Ended(*map(np.concatenate, zip(*(wave.ended for wave in waves), strict=True)))
        order = np.lexsort((codes, ended.block, ended.place))
        rows, block, start, stop, first, last, _ = (column[order] for column in ended)
        released = np.concatenate([wave.released for wave in waves])[order]
        in_force = np.concatenate([wave.in_force for wave in waves])[order]
        return replace(
            self.nothing,
            keys=[self._bank.keys[row] for row in rows.tolist()],
            kind=codes[order],
            born=self._bank.born[rows],
            block=block,
            start=start,
            stop=stop,
            first_offset=first,
            last_offset=last,
            carried=next((wave.carried for wave in waves if wave.carried), None),
            **self._kind.columns(released, in_force),
        )

    def joined(self, released: Sequence[Releases]) -> Releases:
        """Releases of several parts of a batch, one after the other."""
        some = [part for part in released if len(part)]
        if len(some) < 2:
            return some[0] if some else self.nothing

        in_force = [part.in_force for part in some if part.in_force is not None]
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in some]) for name in _COLUMNS
        }
        return replace(
            some[0],
            keys=[key for part in some for key in part.keys],
            in_force=np.concatenate(in_force) if in_force else None,
            feedback=FeedbackColumns.joined(part.feedback for part in some),
            carried={at: of for part in some for at, of in (part.carried or {}).items()} or None,
            **columns,
        )


_COLUMNS = ("kind", "born", "block", "value", "start", "stop", "first_offset", "last_offset")
