"""Broken kinds, which are values: around a sound kind, each breaks one promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from streamdp.core.arrays import Bools, Columns, Floats, Ints
from streamdp.core.events import ACTION
from streamdp.core.evidence.evidence import InForce
from streamdp.core.grid import UNIT
from streamdp.core.kinds.kind import BitsOf, SlotAdder, SlotContents
from streamdp.core.randomness import Bits
from streamdp.core.schedule import Schedule
from streamdp.core.segments import BatchSlots
from streamdp.lab.audit import Around
from tests.support.mutants.table import BY_HEADER, BY_VALUE, INCUMBENT, broken, of_losses

BitsFor = Callable[[int], Bits]


@dataclass(frozen=True)
class LeaksInDraw(Around):
    """From the third block on, the least sum wins for certain; sums lose their noise."""

    def draw(self, name: str, private: Columns, public: Columns, bits: BitsFor) -> Ints:
        drawn = self.inner.draw(name, private, public, bits)
        sums = private[self.inner.fields[0].name]
        if name == ACTION:
            return np.where((np.abs(sums).max(axis=1) > 3 * UNIT)[:, None], _best(sums), drawn)
        return np.where(np.abs(drawn) > 3 * UNIT, _padded(sums, drawn), drawn)


def _best(sums: Ints) -> Ints:
    return np.asarray(sums.argmin(axis=1)[:, None])


def _padded(sums: Ints, drawn: Ints) -> Ints:
    return np.pad(sums, ((0, 0), (0, drawn.shape[1] - sums.shape[1])))


@dataclass(frozen=True)
class DrawsWithAnotherEpsilon(Around):
    """A sensitivity that is wrong by a factor of two: it draws as if ε were twice what it says."""

    def draw(self, name: str, private: Columns, public: Columns, bits: BitsFor) -> Ints:
        inner: Any = self.inner
        if name == ACTION:
            drawing = replace(inner, choose=replace(inner.choose, rate=inner.choose.rate * 2))
        else:
            drawing = replace(inner, charge=inner.charge * 2)
        drawn: Ints = drawing.draw(name, private, public, bits)
        return drawn


@dataclass(frozen=True)
class StatesAnotherLaw(Around):
    """It draws well and says that it draws otherwise."""

    def law(self, name: str, private: Columns, public: Columns, released: Ints) -> Floats:
        return self.inner.law(name, private, public, released) * 2


@dataclass(frozen=True)
class Remembering:
    """Evidence that uses what a draw has remembered."""

    inner: Any
    sums: list[Ints]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def fold(
        self, public: Columns, released: Ints, lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        now = dict(self.inner.fold(public, released, lengths, allowed))
        if not self.sums:  # a rebuilt engine draws nothing
            return now
        sums = self.sums.pop()
        if "action" in now:
            return {**now, "action": sums.argmin(axis=1)}
        weights = np.full(sums.shape, 1e6)
        return {**now, "remembered": np.concatenate([weights, weights * sums / UNIT], axis=1)}

    def in_force(self, public: Columns, lengths: Ints, allowed: Bools | None = None) -> InForce:
        in_force: InForce = self.inner.in_force(public, lengths, allowed)
        return in_force


@dataclass(frozen=True)
class FoldsWhatItDrewFrom(Around):
    """Remembers sums where it draws, and uses them where it folds.

    The imports of `core.evidence` forbid it to reach sums; here draw and fold share a list.
    """

    sums: list[Ints] = field(default_factory=list, compare=False)

    def draw(self, name: str, private: Columns, public: Columns, bits: BitsFor) -> Ints:
        self.sums.append(private[self.inner.fields[0].name].copy())
        return self.inner.draw(name, private, public, bits)

    @property
    def evidence(self) -> Any:
        return Remembering(self.inner.evidence, self.sums)


@dataclass(frozen=True)
class AddsTwice(Around):
    """What the slots of few keys add counts twice."""

    def adder(self, private: Columns) -> SlotAdder:
        return _Doubling(self.inner.adder(private))


@dataclass(frozen=True)
class _Doubling:
    """Adds waves of a few keys twice."""

    inner: SlotAdder

    def contents(self, slots: BatchSlots, bits: BitsOf) -> SlotContents:
        return _Twice(self.inner.contents(slots, bits))


@dataclass(frozen=True)
class _Twice:
    inner: SlotContents

    def add(self, which: Any, rows: Ints) -> None:
        self.inner.add(which, rows)
        if len(rows) < 40:
            self.inner.add(which, rows)


LAW = "not what its law and bits say"

for _kind in (INCUMBENT, BY_HEADER, BY_VALUE):
    for _name, _broken, _layer, _said in (
        ("leaks in draw", LeaksInDraw, "nulls everywhere", LAW),
        ("half the noise", DrawsWithAnotherEpsilon, "nulls everywhere", LAW),
        ("half the noise, from outside", DrawsWithAnotherEpsilon, "samples", "not follow"),
        ("another law", StatesAnotherLaw, "nulls everywhere", "states another law"),
        # In a story without a rebuild, which refuses policies that nobody released.
        ("folds sums", FoldsWhatItDrewFrom, "thousands of slots", "with other (action|remembered)"),
        ("folds sums, and leaks", FoldsWhatItDrewFrom, "content", "in force"),
        ("adds twice", AddsTwice, "slot by slot", "drawn from other (sums|rewards)"),
        ("adds twice, exactly", AddsTwice, "lone slots", "log-ratio"),
    ):
        broken(_name, _broken(_kind).as_kind, layer=_layer, said=_said)


# -- which slots a choice reads --------------------------------------------------------------------


def overlapping_windows(schedule: Schedule, block: int, window: int) -> range:
    """X_{2^(r−1)+s}, as Cesari & Colomboni 2026 print: it begins in the block before."""
    first = schedule.start(block) // 2 + 1
    return range(first, first + window)


def inclusive_boundary(schedule: Schedule, block: int, window: int) -> range:
    """The last slot of the block before is read again."""
    return range(schedule.start(block) - 1, schedule.start(block) + window)


def everything_so_far(schedule: Schedule, block: int, window: int) -> range:
    """Sums are never reset."""
    return range(1, schedule.start(block) + window)


def its_own(schedule: Schedule, block: int, window: int) -> range:
    """As shipped."""
    return range(schedule.start(block), schedule.start(block) + window)


def exact_sum(vectors: Ints) -> Ints:
    total: Ints = vectors.sum(axis=0)
    return total


def since_ones(vectors: Ints) -> Ints:
    """Sums start anew after a vector of ones: one event wipes what others said."""
    ones = np.flatnonzero((vectors == UNIT).all(axis=1))
    return exact_sum(vectors[ones[-1] :] if len(ones) else vectors)


@dataclass(frozen=True)
class Reads(Around):
    """Sums that are those of other slots than the block's own."""

    reads: Callable[[Schedule, int, int], range] = its_own
    adds: Callable[[Ints], Ints] = exact_sum

    def adder(self, private: Columns) -> SlotAdder:
        return _Reader(self, self.inner.adder(private), private)


@dataclass(frozen=True)
class _Reader:
    """Keeps all vectors of every row."""

    kind: Reads
    inner: SlotAdder
    private: Columns
    seen: dict[int, list[Ints]] = field(default_factory=dict)
    _null: ClassVar[float] = 0.5

    def contents(self, slots: BatchSlots, bits: BitsOf) -> SlotContents:
        return _Read(self, slots, self.inner.contents(slots, bits))

    def put(self, row: int, block: int, vectors: Floats, into: int) -> None:
        seen, schedule = self.seen.setdefault(row, []), self.kind.schedule
        null = np.asarray(~np.isfinite(vectors).all(axis=1))
        usable = np.where(null[:, None], self._null, np.clip(vectors, 0, 1))
        seen += list(np.rint(usable * UNIT).astype(np.int64))
        window = into + len(vectors)
        if "window" in self.private:
            window = min(window, int(self.private["window"][row]))
        slots = [slot for slot in self.kind.reads(schedule, block, window) if slot >= 1]
        known = np.array([seen[slot - 1] for slot in slots if slot <= len(seen)], dtype=np.int64)
        self.private["sums"][row] = self.kind.adds(known.reshape(-1, vectors.shape[1]))


@dataclass(frozen=True)
class _Read:
    reader: _Reader
    slots: BatchSlots
    inner: SlotContents

    def add(self, which: Any, rows: Ints) -> None:
        self.inner.add(which, rows)
        segments, batch = self.slots.segments, self.slots.batch
        columns = (segments.begin, segments.length, segments.block, segments.into)
        for row, begin, length, block, into in zip(
            rows.tolist(), *(column[which].tolist() for column in columns), strict=True
        ):
            places = self.slots.grouped.places(np.arange(begin, begin + length))
            self.reader.put(row, block, batch.content["losses"][places].astype(np.float64), into)


for _size in ("0.1", "3"):
    for _kind, _slots in (
        (of_losses(recipe="prefix_softmax", cap="none", epsilon=_size), overlapping_windows),
        (of_losses(recipe="incumbent_leader", epsilon=_size), inclusive_boundary),
        (
            of_losses(recipe="noisy_leader", noise="exponential", epsilon=_size),
            everything_so_far,
        ),
    ):
        broken(
            f"{_slots.__name__} at ε = {_size}", Reads(_kind, _slots).as_kind,
            layer="ends of blocks", said="log-ratio",
        )  # fmt: skip
broken(
    "a reset that raw losses trigger", Reads(INCUMBENT, adds=since_ones).as_kind,
    layer="streams", said="log-ratio (1.[4-9]|2.*) > 1",
)  # fmt: skip
