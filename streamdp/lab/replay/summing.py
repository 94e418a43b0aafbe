"""A log as sums: the cumulative sums of every key at every cut that a grid needs, in one reading.

A block learner needs of a log only sums over windows, so a log is two functions of a part of it,
and a merge:

    count(part)   which keys a part holds, and how many slots of each: so it is known which number
                  each key's first slot has in the next part
    fold(begun)   the exact sums between cuts: of a part and of where its keys begin, and of nothing
                  else
    add(folded)   integers, added up

Both run on workers (`lab.workers`). Folds may be made in any order, and are added in the log's; the
sums are the same however a log is cut into parts. A log that only one process can read, such as a
topic, is read and counted in this one, and its portions are folded by the workers.

A worker's memory is bounded by a part and its keys. Here names of keys are in memory; what is known
of each, such as its sums (see `store`), is in mapped files where it is much. What a grid draws from
the sums is drawn share by share, of as many keys as fit in memory together (`curves`).

Learners that resample draw the events anew for every seed, so their sums are of other losses: a
fold takes each part's events once more for each seed, cut at their own blocks.

The sums are exact, at about the speed of a plain float sum. Replay is offline: it may look at the
losses to go faster, which the live path may not. A chunk whose shifted values all lie in [8, 9]
needs no repair, so its bits are summed as they are. Any other chunk takes the core's own path,
which clips and nulls, and so do the next few chunks, since bad values seldom come alone. Both give
the core's sums exactly (`core.grid` says why the bits of x + 8 are grid values, and why a sum of at
most 4095 rows may wrap).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Key
from streamdp.core.grid import Quantiser, grid_sums
from streamdp.core.kinds.losses import resampled
from streamdp.core.randomness import Purpose
from streamdp.core.segments import Adder, Grouped
from streamdp.lab.common.bench import Bench, KeyNumbers, Rows
from streamdp.lab.common.mapped import Arrays, Gathered, by_key, grown, let_go, longest_first
from streamdp.lab.logs.clipping import rows_outside
from streamdp.lab.logs.log import Held, Log, LogPart, Portion
from streamdp.lab.replay.cuts import CutPlan
from streamdp.lab.replay.store import CutSums, LaidSums, code, in_order, read
from streamdp.lab.workers import IN_PROCESS, Workers

_EIGHT = np.float32(8)
_LOW, _HIGH = 0x41000000, 0x41100000  # the bits of float32(8) and float32(9)
_MOST_ROWS = 4095  # as in `core.grid`: a chunk's sums are exact modulo 2**32
_WIDE = 512  # losses side by side, likewise
_DISTRUST = 16  # chunks after a bad one that skip the fast path


class StretchSums:
    """Adds the slots of consecutive stretches; keeps its working memory between calls."""

    __slots__ = ("_adder", "_distrust", "_fold", "_quantiser", "_shifted", "clipped", "nulls")

    def __init__(self, actions: int) -> None:
        self._adder = Adder(actions)
        self._quantiser = Quantiser(actions)
        rows = min(self._quantiser.chunk, _MOST_ROWS)
        self._fold = min(rows, max(1, _WIDE // actions))  # narrow rows are added side by side
        rows -= rows % self._fold
        self._shifted = np.empty((rows, actions), dtype=np.float32)
        self._distrust = 0  # chunks that will still skip the fast path
        self.nulls = 0
        self.clipped = 0  # rows of finite numbers, not all in [0, 1]

    def sums(
        self, losses: NDArray[np.float32], grouped: Grouped, begin: Ints, length: Ints
    ) -> Ints:
        """Exact sums of each stretch; the stretches cover all rows, in their grouped order."""
        if grouped.order is not None:
            sums, nulls = self._adder.sums(losses, grouped, begin, length)
            self.nulls += int(nulls.sum())
            self.clipped += rows_outside(losses)
            return sums
        with np.errstate(invalid="ignore", over="ignore"):
            return self._streamed(losses, (begin + length).tolist())

    def _streamed(self, losses: NDArray[np.float32], ends: list[int]) -> Ints:
        """Chunk by chunk, each shifted once and then cut where stretches end."""
        sums = np.zeros((len(ends), losses.shape[1]), dtype=np.int64)
        stretch, step = 0, len(self._shifted)
        for first in range(0, len(losses), step):
            part = losses[first : first + step]
            shifted = self._shift(part)
            rows = len(shifted)
            if rows == step and ends[stretch] >= first + step:
                sums[stretch] += self._whole(shifted)
                stretch += ends[stretch] == first + step
                continue
            at = 0
            while at < rows:
                stop = min(ends[stretch] - first, rows)
                sums[stretch] += grid_sums(shifted[at:stop])
                at = stop
                stretch += ends[stretch] == first + stop
        return sums

    def _whole(self, shifted: NDArray[np.float32]) -> NDArray[np.uint32]:
        """`grid_sums` of a full chunk, in fewer steps."""
        rows, actions = shifted.shape
        bits = shifted.view(np.uint32).reshape(-1, self._fold * actions)
        wide = np.add.reduce(bits, axis=0, dtype=np.uint32)
        narrow = wide.reshape(self._fold, actions)
        wrapped: NDArray[np.uint32] = np.add.reduce(narrow, axis=0, dtype=np.uint32)
        wrapped -= np.uint32(rows * _LOW % 2**32)
        return wrapped

    def _shift(self, part: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._distrust:
            shifted = self._shifted[: len(part)]
            np.add(part, _EIGHT, out=shifted)
            bits = shifted.view(np.uint32)
            if bits.max() <= _HIGH and bits.min() >= _LOW:
                return shifted
            self._distrust = _DISTRUST
        self._distrust -= 1
        shifted, null = self._quantiser.shift(part)
        self.nulls += int(np.count_nonzero(null))
        self.clipped += rows_outside(part)
        return shifted


Progress = Callable[[int], None]
"""Receives the number of slots that were read so far."""

_LAID = 1 << 16  # sums that are laid out together
_RESAMPLED_VALUES = 1 << 20  # losses that are drawn at once


@dataclass(frozen=True, slots=True)
class Summed:
    """The result of the pass: learners, how many slots each took, and sums at cuts."""

    rows: Rows
    slots: Ints  # by row
    totals: Ints  # rows × K: the sums at the end
    order: Ints  # rows as the sums lie: the longest first
    sums: LaidSums
    resampled: tuple[LaidSums, ...]  # by seed; empty if no learner resamples
    nulls: int
    clipped: int
    actions: tuple[str, ...]

    @property
    def longest(self) -> int:
        """The slots of the longest key."""
        return int(self.slots.max())


@dataclass(frozen=True, slots=True, repr=False)
class SummedKeys:
    """Some keys that fit in memory together."""

    slots: Ints  # by key, the longest first
    tags: NDArray[np.uint8]  # keys × seeds × 16
    sums: CutSums
    resampled: tuple[CutSums, ...]


# -- count ---------------------------------------------------------------------------------------


class Places:
    """The keys of a part, numbered in the order of their first slots."""

    __slots__ = ("_born", "_numbers", "slots")

    def __init__(self) -> None:
        self._numbers = KeyNumbers()
        self._born = [np.zeros(0, dtype=np.int64)]
        self.slots = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._numbers)

    def of(self, portion: Portion) -> tuple[Ints, Grouped]:
        """The places of the keys that have slots in a portion, whose slots are counted."""
        keys, born = portion.begun
        where, new = self._numbers.of(keys)
        self._born.append(born[new])
        self.slots = grown(self.slots, len(self))
        self.slots[where] += portion.grouped.counts
        return where, portion.grouped

    def counted(self) -> Counted:
        """What is known of the part."""
        return Counted(self._numbers.keys, np.concatenate(self._born), self.slots[: len(self)])


@dataclass(frozen=True, slots=True)
class Counted:
    """The keys of a part, in the order of their first slots."""

    keys: list[tuple[int, Key]]  # with their partitions
    born: Ints  # the offset of each key's first slot here
    slots: Ints  # how many each has here


def count(part: LogPart) -> Counted:
    """The keys of a part and how many slots each has; losses are not read."""
    places = Places()
    for portion in part.keyed():
        places.of(portion)
    return places.counted()


# -- fold ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begun:
    """A part, and where its keys begin: all that a fold reads."""

    part: LogPart
    before: Ints  # the slots of each key before this part, in the order of `Counted`
    tags: NDArray[np.uint8]  # rows × seeds × 16: what addresses bits
    rows: Ints  # of each key in these; none where no bits are drawn

    def __repr__(self) -> str:
        """Show the part, never its content."""
        return f"{self.part}"


@dataclass(frozen=True, slots=True, repr=False)
class Chunk:
    """Consecutive slots, and where their keys begin."""

    losses: NDArray[np.float32]
    grouped: Grouped
    first: Ints  # the number of each key's first slot here
    tags: NDArray[np.uint8]  # rows × seeds × 16
    rows: Ints  # of each key in these

    @property
    def last(self) -> Ints:
        """The number of each key's last slot here."""
        return self.first + self.grouped.counts - 1


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of a portion in grouped order: each ends at a cut or where its row's slots do."""

    of: Ints  # which touched row
    cut: Ints  # the slot after which each ends
    begin: Ints  # the index at which each begins in the grouped order
    length: Ints
    last: Ints  # each row's last stretch
    kept: Ints  # the stretches that end at a cut

    @classmethod
    def of_cuts(cls, cuts: Ints, *, first: Ints, last: Ints) -> Stretches:
        """Cut the slots [first, last] of each row after the cuts that lie in them, by code."""
        marks = in_order(cuts)
        ends = in_order(np.append(marks, code(np.arange(len(first)), last)))
        of, cut = read(ends)
        begins = np.empty_like(cut)
        begins[1:] = cut[:-1] + 1
        new = np.flatnonzero(np.diff(of, prepend=-1))
        begins[new] = first
        length = cut - begins + 1
        kept = np.searchsorted(ends, marks)
        lasts = np.append(new[1:], len(of)) - 1
        return cls(of, cut, np.cumsum(length) - length, length, lasts, kept)


@dataclass(frozen=True, slots=True, repr=False)
class PartSums:
    """The sums of the keys of a part: since its begin, at every cut in it, and altogether."""

    cut: list[tuple[Ints, Ints, Ints]]  # which keys, the slots after which they are cut, cuts × K
    total: Ints  # keys × K


@dataclass(frozen=True, slots=True, repr=False)
class Folded:
    """The sums of a part, of its losses as they are and as each seed redraws them."""

    sums: tuple[PartSums, ...]  # as they are, then by seed
    slots: int
    nulls: int
    clipped: int


def fold(
    begun: Begun, *, actions: int, bench: Bench, plan: CutPlan, resampling: CutPlan | None
) -> Folded:
    """The exact sums between the cuts of a plan: a function of the part and of seeded bits."""
    places, slots, clipped = Places(), 0, 0
    adder, again = StretchSums(actions), StretchSums(actions)
    tallies = [PartTally(actions) for _ in range(1 if resampling is None else 1 + len(bench.seeds))]
    for portion in begun.part.portions():
        which, grouped = places.of(portion)
        first = begun.before[which] + places.slots[which] - grouped.counts + 1
        rows = begun.rows[which] if len(begun.rows) else begun.rows
        chunk = Chunk(portion.batch.content["losses"], grouped, first, begun.tags, rows)
        stretches = _stretches(chunk, bench, plan)
        sums = adder.sums(chunk.losses, grouped, stretches.begin, stretches.length)
        tallies[0].add(which, stretches, sums)
        if resampling is not None:
            stretches = _stretches(chunk, bench, resampling)
            for tally, drawn in zip(tallies[1:], _redrawn(chunk, bench), strict=True):
                sums = again.sums(drawn, grouped, stretches.begin, stretches.length)
                tally.add(which, stretches, sums)
        slots, clipped = slots + len(portion), clipped + portion.clipped
    parts = tuple(tally.finish(len(places)) for tally in tallies)
    return Folded(parts, slots, adder.nulls, clipped + adder.clipped)


def _stretches(chunk: Chunk, bench: Bench, plan: CutPlan) -> Stretches:
    cuts = plan.codes(bench, chunk.tags, chunk.rows, chunk.first, chunk.last)
    return Stretches.of_cuts(cuts, first=chunk.first, last=chunk.last)


def _redrawn(chunk: Chunk, bench: Bench) -> Iterator[NDArray[np.float32]]:
    """The slots for each seed, with every loss replaced by a Bernoulli draw."""
    grouped, losses, counts = chunk.grouped, chunk.losses, chunk.grouped.counts
    of = np.repeat(np.arange(len(counts)), counts)
    slot = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts - chunk.first, counts)
    step = max(1, _RESAMPLED_VALUES // losses.shape[1])
    drawn = np.empty_like(losses)
    for seed, source in enumerate(bench.randomness()):
        for begin in range(0, len(of), step):
            part = slice(begin, begin + step)
            tags = chunk.tags[chunk.rows[of[part]], seed]
            bits = source.bits(bench.stream, Purpose.RESAMPLE, tags, slot[part])
            places = grouped.places(np.arange(begin, min(begin + step, len(of))))
            drawn[places] = resampled(losses[places], bits)
            let_go(chunk.tags)
        yield drawn


class PartTally:
    """Cumulative sums of the keys of a part, kept where they were cut."""

    __slots__ = ("_kept", "_total")

    def __init__(self, actions: int) -> None:
        self._total = np.zeros((1, actions), dtype=np.int64)
        self._kept: list[tuple[Ints, Ints, Ints]] = []

    def add(self, which: Ints, stretches: Stretches, sums: Ints) -> None:
        """Add the sums of stretches of some keys, and keep those at cuts."""
        self._total = grown(self._total, int(which.max()) + 1)
        upto = np.cumsum(sums, axis=0)
        before = np.zeros_like(upto[: len(which)])
        before[1:] = upto[stretches.last[:-1]]
        upto += (self._total[which] - before)[stretches.of]
        self._total[which] = upto[stretches.last]
        kept = stretches.kept
        self._kept.append((which[stretches.of[kept]], stretches.cut[kept], upto[kept]))

    def finish(self, keys: int) -> PartSums:
        """What was kept, of so many keys."""
        return PartSums(self._kept, self._total[:keys])


# -- add -----------------------------------------------------------------------------------------


class SumsTally:
    """Cumulative sums of every row, kept where they were cut, each row's in their order."""

    __slots__ = ("_counts", "_gathered", "total")

    def __init__(self, actions: int) -> None:
        self.total: Ints = np.zeros((1, actions), dtype=np.int64)
        self._counts: Ints = np.zeros(1, dtype=np.int64)
        self._gathered = Gathered()

    def add(self, rows: Ints, sums: PartSums) -> None:
        """Add the sums of a part, whose keys have these rows."""
        self.total = grown(self.total, int(rows.max()) + 1)
        for which, cuts, upto in sums.cut:
            of = rows[which]
            self._keep(of, cuts, upto + self.total[of])
        self.total[rows] += sums.total
        let_go(self.total)

    def _keep(self, rows: Ints, cuts: Ints, sums: Ints) -> None:
        self._gathered.add((rows.astype(np.int32), cuts, sums))
        self._counts = grown(self._counts, len(self.total))
        self._counts += np.bincount(rows, minlength=len(self._counts))

    def finish(self, slots: Ints, order: Ints) -> LaidSums:
        """All sums, row by row in this order, with a last cut where each row ends."""
        self._keep(np.arange(len(slots)), slots, self.total[: len(slots)])
        counts = np.array(self._counts[: len(slots)])
        like = ((np.int64, 0), (np.int64, self.total.shape[1]))
        laid = by_key(counts, self._chunks(), like, order)
        return LaidSums(np.append(0, np.cumsum(counts[order])), *laid)

    def _chunks(self) -> Iterator[tuple[NDArray[np.int32], Arrays]]:
        columns = self._gathered.columns()
        for first in range(0, len(columns[0]), _LAID):
            rows, *more = (np.array(column[first : first + _LAID]) for column in columns)
            let_go(*columns)
            yield rows, tuple(more)


def sum_log(
    log: Log,
    bench: Bench,
    plan: CutPlan,
    *,
    resampling: CutPlan | None = None,
    progress: Progress = lambda slots: None,
    workers: Workers = IN_PROCESS,
) -> Summed:
    """Count, fold and add the parts of a log. `progress` may stop it by raising."""
    rows, slots, clipped, done, nulls = Rows(bench), np.zeros(1, np.int64), 0, 0, 0
    seeds, K = () if resampling is None else bench.seeds, len(log.actions)
    tallies = [SumsTally(K) for _ in (None, *seeds)]
    drawn = bool(plan.prefix or seeds)
    mapped = drawn and workers.near is workers
    waiting: deque[Ints] = deque()  # the rows of parts that are not added yet

    def begun() -> Iterator[Begun]:
        nonlocal slots
        for part, counted in counts_of(log, workers):
            which = rows.find(counted.keys, counted.born)
            slots = grown(slots, len(rows))
            before = np.asarray(slots[which])
            slots[which] += counted.slots
            waiting.append(which)
            wanted = which if drawn else which[:0]
            tags = (
                (rows.every_tag, wanted) if mapped else (rows.tags(wanted), np.arange(len(wanted)))
            )
            yield Begun(part, before, *tags)

    work = partial(fold, actions=K, bench=bench, plan=plan, resampling=resampling)
    for folded in workers.map(work, begun()):
        which = waiting.popleft()
        for tally, sums in zip(tallies, folded.sums, strict=True):
            tally.add(which, sums)
        nulls, clipped, done = nulls + folded.nulls, clipped + folded.clipped, done + folded.slots
        progress(done)
    if not done:
        raise InvalidConfig(log.name, "empty", expected="at least one event", got="none")
    slots = np.array(slots[: len(rows)])
    order, totals = longest_first(slots), tallies[0].total[: len(rows)]
    laid, *again = (tally.finish(slots, order) for tally in tallies)
    return Summed(rows, slots, totals, order, laid, tuple(again), nulls, clipped, log.actions)


def counts_of(log: Log, workers: Workers) -> Iterator[tuple[LogPart, Counted]]:
    """The parts of a log in their order, and the keys of each; read here or by the workers."""
    if workers.apart and log.parts:
        parts: Iterable[tuple[LogPart, Counted]] = zip(
            log.parts, workers.map(count, log.parts), strict=True
        )
    else:
        held = (Held(portion) for portion in log.portions())
        parts = ((part, count(part)) for part in held)
    return ((part, counted) for part, counted in parts if counted.keys)
