"""Is every broken kind found? Each is a value: around a sound kind, it breaks one promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from re import search
from typing import Any, ClassVar

import numpy as np
import pytest

from streamdp.core.arrays import Bools, Columns, Floats, Ints
from streamdp.core.events import ACTION
from streamdp.core.evidence.evidence import InForce
from streamdp.core.grid import UNIT
from streamdp.core.kinds.kind import BitsOf, Kind, SlotAdder, SlotContents
from streamdp.core.learners import Leader, learner_of
from streamdp.core.randomness import Bits, SeededRandomness, SystemRandomness
from streamdp.core.schedule import Schedule
from streamdp.core.segments import BatchSlots
from streamdp.lab.audit import TOLERANCE, Around, leaks, misdeeds, sample
from streamdp.lab.audit.exposure import Design, designs, exposed, slots_alone
from streamdp.lab.audit.interference import each_leak
from streamdp.lab.audit.long_blocks import at_another_size, at_its_size, other_sizes
from streamdp.lab.audit.transcripts import worst_ratios
from tests.support.feedback_mutants import made

pytestmark = pytest.mark.slow

BitsFor = Callable[[int], Bits]


def losses(**options: str) -> Leader:
    return learner_of({"recipe": "incumbent_leader", "epsilon": "1", **options}, actions=["a", "b"])


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


def in_stories(kind: Kind) -> Iterator[str]:
    """What is wrong with each draw in long blocks."""
    yield from at_its_size(kind, 16, SystemRandomness())
    for story, other in other_sizes(kind):
        yield from at_another_size(story, other)


def in_samples(kind: Kind) -> Iterator[str]:
    """What does not follow its law, seen from outside."""
    tests = sample(kind, randomness=SeededRandomness("audit"), samples=3000)
    return (what for what, fit in tests if not fit.passed)


def in_ratios(kind: Kind) -> Iterator[str]:
    """What costs more than is charged."""
    every = [*designs(kind), *slots_alone(kind)]
    ratios = (worst_ratios(exposed(kind, design), kind) for design in every)
    allowed = float(kind.releases[0].epsilon) + TOLERANCE
    return (f"log-ratio {max(of.values())}" for of in ratios if max(of.values()) > allowed)


Layer = Callable[[Kind], Iterator[str]]
"""One of those that `audit_kind` goes through: `test_audit_kinds` holds that it does."""

BROKEN: dict[str, tuple[Kind, Layer, str]] = {}
for _name, _kind in (
    ("losses", losses()),
    ("sums", made()),
    ("counts and sums", made(played="value")),
):
    _twice = DrawsWithAnotherEpsilon(_kind).as_kind
    BROKEN |= {
        f"{_name}: leaks in draw": (
            LeaksInDraw(_kind).as_kind, in_stories, "not what its law and bits say",
        ),
        f"{_name}: half the noise": (_twice, in_stories, "not what its law and bits say"),
        f"{_name}: half the noise, from outside": (_twice, in_samples, "not follow"),
        f"{_name}: another law": (
            StatesAnotherLaw(_kind).as_kind, in_stories, "states another law",
        ),
        f"{_name}: folds sums": (
            FoldsWhatItDrewFrom(_kind).as_kind, in_stories, "with other (action|remembered)",
        ),
        f"{_name}: folds sums, and leaks": (FoldsWhatItDrewFrom(_kind).as_kind, each_leak, ""),
        f"{_name}: adds twice": (
            AddsTwice(_kind).as_kind, in_stories, "drawn from other (sums|rewards)",
        ),
        f"{_name}: adds twice, exactly": (AddsTwice(_kind).as_kind, in_ratios, "log-ratio"),
    }  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kind_fails_the_audit(name: str) -> None:
    """Each by the layer that is to find it; the sound kinds pass in `test_audit_kinds` and
    `test_audit_exact`.
    """
    kind, layer, said = BROKEN[name]
    found: list[str] = []
    for what in layer(kind):
        found.append(what)
        if search(said, what):
            return
    pytest.fail(f"found {found}")


def test_a_kind_around_a_sound_one_passes() -> None:
    """Being around is no fault."""
    for kind in (losses(), made()):
        assert misdeeds(Around(kind).as_kind, longest=16) == []
        assert leaks(Around(kind).as_kind) == []


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


def two_ends(kind: Kind) -> Design:
    """The longer design with only boundary slots varied: quick for a slow reader."""
    long, schedule = designs(kind)[1], kind.schedule
    ends = sorted({1, schedule.stop(1) - 1, schedule.start(2)})
    return replace(long, varied=tuple(ends))


def worst(kind: Kind, design: Design) -> float:
    return max(worst_ratios(exposed(kind, design), kind).values())


@pytest.mark.parametrize("epsilon", ["0.1", "3"])
@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ({"recipe": "prefix_softmax", "cap": "none"}, overlapping_windows),
        ({"recipe": "incumbent_leader"}, inclusive_boundary),
        ({"recipe": "noisy_leader", "noise": "exponential"}, everything_so_far),
    ],
)
def test_reading_a_slot_twice_is_caught(
    options: dict[str, str], reads: Callable[[Schedule, int, int], range], epsilon: str
) -> None:
    kind = learner_of({**options, "epsilon": epsilon}, actions=["a", "b"])
    charge, design = Fraction(epsilon), two_ends(kind)
    assert worst(Reads(kind).as_kind, design) <= charge + TOLERANCE
    assert worst(Reads(kind, reads).as_kind, design) > charge * Fraction(102, 100)


def test_a_reset_that_raw_losses_trigger_is_caught() -> None:
    kind = losses()
    assert worst(Reads(kind, adds=since_ones).as_kind, designs(kind)[0]) > 1.4
