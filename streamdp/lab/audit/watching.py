"""Stands around a kind, notes what its releases are drawn from, and changes nothing.

The engine and the kind run for real. A `Watch` notes each draw with the columns that it got, the
random words that it read and what came out, and each toss of windows and coins. Keys and blocks are
those of the engine's rows. It looks through the kind's own interface, not at the randomness, so it
sees the same under seeded bits and under the system's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamdp.core.arrays import Columns, Ints, Words
from streamdp.core.bank import Gathered
from streamdp.core.engine import Engine
from streamdp.core.events import OPENING, Key
from streamdp.core.kinds.kind import BitsOf, SlotAdder, SlotContents
from streamdp.core.randomness import Bits
from streamdp.core.segments import BatchSlots
from streamdp.lab.audit.around import Around
from streamdp.lab.audit.neighbours import Neighbours, neighbours_of


@dataclass(frozen=True, slots=True)
class Drawing:
    """One call of `draw`, or of `opening`."""

    name: str
    keys: Sequence[Key]  # R
    born: Ints
    block: Ints
    private: dict[str, Ints]
    public: dict[str, Ints]
    words: Words  # R × as many as its law reads first
    released: Ints
    again: Ints | None = None  # drawn once more from the same columns and bits


@dataclass(frozen=True, slots=True)
class Toss:
    """Windows that were drawn for blocks, or coins for slots."""

    purpose: int
    keys: Sequence[Key]
    born: Ints
    block: Ints
    indices: Ints  # of blocks or of slots
    words: Words


@dataclass(slots=True)
class Watch:
    """All that was noted of a story's engines, one after the other."""

    engine: Engine | None = None
    noted: list[Drawing | Toss] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)  # events that should be impossible

    def drawings(self, name: str) -> list[Drawing]:
        """The draws of one name."""
        return [one for one in self.noted if isinstance(one, Drawing) and one.name == name]

    def rows(self, rows: Ints | slice) -> tuple[list[Key], Ints, Ints]:
        """The keys of some rows, since when they live, and their blocks."""
        assert self.engine is not None, "an engine is watched from its first record on"
        bank = self.engine._bank
        some = np.arange(len(bank))[rows]
        keys = [bank.keys[row] for row in some.tolist()]
        return keys, bank.born[some].copy(), bank.block[some].copy()


@dataclass(frozen=True)
class Watched(Around):
    """A kind that is watched."""

    watch: Watch = field(repr=False, compare=False)
    _row: Neighbours = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Ask once for what each draw is held against."""
        object.__setattr__(self, "_row", neighbours_of(self.inner))

    def opening(self, rows: int, bits: Callable[[int], Bits]) -> Ints:
        """The inner kind's."""
        taken: list[Bits] = []
        opened = self.inner.opening(rows, lambda purpose: _kept(taken, bits(purpose)))
        count = len(self.watch.engine or ())
        keys, born, _ = self.watch.rows(slice(count - rows, count))
        words = taken[-1].words(0, 1) if taken else np.zeros((rows, 0), dtype=np.uint64)
        self.watch.noted.append(
            Drawing(OPENING, keys, born, np.full(rows, -1), {}, {}, words, opened.copy())
        )
        return opened

    def draw(
        self, name: str, private: Columns, public: Columns, bits: Callable[[int], Bits]
    ) -> Ints:
        """The inner kind's."""
        assert isinstance(private, Gathered)
        watch, taken = self.watch, list[Bits]()
        had = {of: private[of].copy() for of in private}, {of: public[of].copy() for of in public}
        released = self.inner.draw(name, private, public, lambda of: _kept(taken, bits(of)))
        if len(taken) > 1:
            watch.strange.append(f"{name}: bits are drawn more than once for one release")
        law = self._row.law(name, *had)
        words, again = np.zeros((len(released), 0), dtype=np.uint64), None
        if taken and law.words:
            words = taken[0].words(0, law.words)
        if taken and not law.known:
            again = self.inner.draw(name, *had, lambda of: taken[0])
        keys, born, block = watch.rows(private._rows)
        watch.noted.append(Drawing(name, keys, born, block, *had, words, released.copy(), again))
        return released

    def adder(self, private: Columns) -> SlotAdder:
        """The inner kind's, its tosses noted."""
        inner, tosses = self.inner.adder(private), self._row.tosses
        return _WatchedAdder(inner, self.watch, tosses)


@dataclass(slots=True)
class _WatchedAdder:
    """An adder whose tosses are noted."""

    inner: SlotAdder
    watch: Watch
    tosses: Mapping[int, int]

    def contents(self, slots: BatchSlots, bits: BitsOf) -> SlotContents:
        """The inner adder's."""
        watch = self.watch

        def noted(purpose: int, rows: Ints, indices: Ints) -> Bits:
            drawn, words = bits(purpose, rows, indices), self.tosses.get(purpose, 1)
            read = drawn.words(0, words)
            watch.noted.append(Toss(purpose, *watch.rows(rows), indices.copy(), read))
            return drawn

        return self.inner.contents(slots, noted)


def _kept(taken: list[Bits], bits: Bits) -> Bits:
    taken.append(bits)
    return bits
