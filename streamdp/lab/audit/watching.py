"""Stands around a kind, notes what its releases are drawn from, and changes nothing.

The engine and the kind run for real. A `Watch` notes each draw with the columns that it got, the
random words that it read and what came out, and each toss of windows and coins. Keys and blocks are
those of the engine's rows. It looks through the kind's own interface, not at the randomness, so it
sees the same under seeded bits and under the system's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from streamdp.core.arrays import Columns, Ints, Words
from streamdp.core.bank import Gathered
from streamdp.core.engine import Engine
from streamdp.core.events import Key
from streamdp.core.kinds.kind import BitsOf, SlotAdder, SlotContents
from streamdp.core.randomness import Bits
from streamdp.core.segments import BatchSlots
from streamdp.lab.audit.around import Around
from streamdp.lab.audit.neighbours import Neighbours, neighbours_of


@dataclass(frozen=True, slots=True)
class Drawing:
    """One call of `draw`, or of `opening`."""

    at: int  # its place among all that was noted
    name: str
    keys: Ints  # R: numbers of keys
    born: Ints
    blocks: Ints
    private: dict[str, Ints]
    public: dict[str, Ints]
    words: Words  # R × as many as its law reads first
    released: Ints
    again: Ints | None  # drawn once more from the same columns and bits


@dataclass(frozen=True, slots=True)
class Toss:
    """Windows or coins that were drawn: for blocks, or for slots."""

    at: int
    purpose: int
    keys: Ints
    born: Ints
    indices: Ints
    words: Words


@dataclass(slots=True)
class Watch:
    """All that was noted of a story's engines, one after the other."""

    keys: dict[Key, int]
    engine: Engine | None = None
    drawings: list[Drawing] = field(default_factory=list)
    tosses: list[Toss] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)  # events that should be impossible

    def noted(self) -> int:
        """How much was noted so far."""
        return len(self.drawings) + len(self.tosses)

    def rows(self, rows: Ints | slice) -> tuple[Ints, Ints, Ints]:
        """The numbers of the keys of some rows, since when they live, and their blocks."""
        assert self.engine is not None, "an engine is watched from its first record on"
        bank = self.engine._bank
        some = np.arange(len(bank))[rows]
        keys = np.array([self.keys[bank.keys[row]] for row in some.tolist()], dtype=np.int64)
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
        none, blocks = dict[str, Ints](), np.full(rows, -1)
        self.watch.drawings.append(
            Drawing(
                self.watch.noted(), "opening", keys, born, blocks, none, none, words,
                opened.copy(), None,
            )
        )  # fmt: skip
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
        keys, born, blocks = watch.rows(private._rows)
        watch.drawings.append(
            Drawing(watch.noted(), name, keys, born, blocks, *had, words, released.copy(), again)
        )
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
            keys, born, _ = watch.rows(rows)
            read = drawn.words(0, words)
            watch.tosses.append(Toss(watch.noted(), purpose, keys, born, indices.copy(), read))
            return drawn

        return self.inner.contents(slots, noted)


def _kept(taken: list[Bits], bits: Bits) -> Bits:
    taken.append(bits)
    return bits


def in_order(watch: Watch) -> Iterator[Drawing | Toss]:
    """Everything that was noted, in order."""
    noted: list[Drawing | Toss] = [*watch.drawings, *watch.tosses]
    return iter(sorted(noted, key=lambda one: one.at))
