"""One pass over a log: the cumulative sums of every key at every cut that a grid needs.

Memory is bounded by portions (and by the cuts, see `store`).

Learners that resample draw the events anew for every seed, so their sums are of other losses: they
take each reading's events once more for each seed, cut at their own blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.kinds.resampled import resampled
from streamdp.core.randomness import Purpose
from streamdp.core.segments import Grouped, group
from streamdp.lab.replay.cuts import Bench, CutPlan, Rows
from streamdp.lab.replay.log import Log, Portion
from streamdp.lab.replay.store import CutStore, CutSums, code
from streamdp.lab.replay.sums import StretchSums

Progress = Callable[[int], None]
"""Receives the number of slots that were read so far."""

_RESAMPLED_VALUES = 1 << 20  # losses that are drawn at once


@dataclass(frozen=True, slots=True)
class Summed:
    """The result of the pass: learners, how many slots each took, and sums at cuts."""

    rows: Rows
    slots: Ints  # by row
    sums: CutSums
    resampled: tuple[CutSums, ...]  # by seed; empty if no learner resamples
    nulls: int
    clipped: int
    actions: tuple[str, ...]

    @property
    def longest(self) -> int:
        """The slots of the longest key."""
        return int(self.slots.max())


class SumsTally:
    """Cumulative sums of every row, cut on the way."""

    __slots__ = ("_clipped", "_stretches", "_total", "store")

    def __init__(self, actions: int) -> None:
        self._stretches = StretchSums(actions)
        self._total = np.zeros((1, actions), dtype=np.int64)
        self._clipped = 0  # while being read; `_stretches` counts what it clips itself
        self.store = CutStore(actions)

    @property
    def nulls(self) -> int:
        """The number of null slots."""
        return self._stretches.nulls

    @property
    def clipped(self) -> int:
        """The number of slots with numbers outside [0, 1]."""
        return self._clipped + self._stretches.clipped

    def grow(self, rows: int) -> None:
        """Make room for this many rows."""
        if rows > len(self._total):
            more = np.zeros((max(rows, 2 * len(self._total)), self._total.shape[1]), np.int64)
            more[: len(self._total)] = self._total
            self._total = more

    def take(
        self, losses: NDArray[np.float32], grouped: Grouped, rows: Ints, layout: Stretches
    ) -> None:
        """Add grouped slots, cut by a layout, and keep the sums at its cuts."""
        parts = self._stretches.sums(losses, grouped, layout.begin, layout.length)
        np.cumsum(parts, axis=0, out=parts)
        before = np.zeros_like(parts[: len(rows)])
        before[1:] = parts[layout.last[:-1]]
        parts += (self._total[rows] - before)[layout.of]
        self._total[rows] = parts[layout.last]
        self.store.add(rows[layout.of[layout.kept]], layout.cut[layout.kept], parts[layout.kept])

    def count_clipped(self, slots: int) -> None:
        """Count slots that were clipped while they were read."""
        self._clipped += slots

    def finish(self, slots: Ints) -> CutSums:
        """Finish with a last cut where each row ends."""
        rows = np.arange(len(slots))
        self.store.add(rows, slots, self._total[: len(slots)])
        return self.store.finish()


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
    def of_cuts(cls, at: Ints, cuts: Ints, *, first: Ints, last: Ints) -> Stretches:
        """Cut the slots [first, last] of each row after the cuts that lie in them."""
        places = np.arange(len(first))
        marks = np.unique(code(at, cuts))
        ends = np.union1d(marks, code(places, last))
        of = ends >> 43
        cut = ends & ((1 << 43) - 1)
        begins = np.empty_like(cut)
        begins[1:] = cut[:-1] + 1
        new = np.flatnonzero(np.diff(of, prepend=-1))
        begins[new] = first
        length = cut - begins + 1
        kept = np.flatnonzero(np.isin(ends, marks, assume_unique=True))
        lasts = np.append(new[1:], len(of)) - 1
        return cls(of, cut, np.cumsum(length) - length, length, lasts, kept)


class OnePass:
    """The pass over one log, portion by portion."""

    def __init__(
        self, log: Log, bench: Bench, plan: CutPlan, *, resampling: CutPlan | None = None
    ) -> None:
        self._log, self._bench, self._plan, self._resampling = log, bench, plan, resampling
        self.rows = Rows(bench)
        self._slots = np.zeros(1, dtype=np.int64)
        self.tally = SumsTally(len(log.actions))
        seeds = bench.seeds if resampling is not None else ()
        self.redrawn = [SumsTally(len(log.actions)) for _ in seeds]
        self._sources = bench.randomness()
        none = np.zeros(0, dtype=np.int64)
        self._open_windows = (none, none)  # row, cut
        self._open_redrawn = (none, none)
        self.done = 0

    def portions(self) -> Iterator[None]:
        """Read the log; yield after each portion."""
        for portion in self._log.portions():
            self._take(portion)
            self.done += len(portion)
            yield

    def finish(self) -> Summed:
        """The sums, once everything was read."""
        if not self.done:
            raise InvalidConfig(
                complaint(self._log.name, "empty", expected="at least one event", got="none")
            )
        slots = self._slots[: len(self.rows)]
        return Summed(
            self.rows,
            slots,
            self.tally.finish(slots),
            tuple(tally.finish(slots) for tally in self.redrawn),
            self.tally.nulls,
            self.tally.clipped,
            self._log.actions,
        )

    def _take(self, portion: Portion) -> None:
        batch = portion.batch
        if not len(batch.offsets):
            return
        grouped = group(batch.index, len(batch.keys))
        begins = np.cumsum(grouped.counts) - grouped.counts
        born = batch.offsets[grouped.places(begins)]
        keys = [batch.keys[at] for at in grouped.touched.tolist()]
        rows = self.rows.find(portion.partition, keys, born)
        self._grow(len(self.rows))
        first = self._slots[rows] + 1
        last = self._slots[rows] + grouped.counts
        layout, self._open_windows = self._layout(self._plan, rows, first, last, self._open_windows)
        self.tally.take(batch.losses, grouped, rows, layout)
        self.tally.count_clipped(portion.clipped)
        if self._resampling is not None:
            layout, self._open_redrawn = self._layout(
                self._resampling, rows, first, last, self._open_redrawn
            )
            self._take_redrawn(batch.losses, grouped, rows, first, layout)
        self._slots[rows] = last

    def _layout(
        self, plan: CutPlan, rows: Ints, first: Ints, last: Ints, waiting: tuple[Ints, Ints]
    ) -> tuple[Stretches, tuple[Ints, Ints]]:
        """The stretches of these slots, and the window ends that lie beyond them."""
        at, cuts = plan.boundaries(first, last)
        if not plan.prefix:
            return Stretches.of_cuts(at, cuts, first=first, last=last), waiting
        new, ends = plan.window_ends(self.rows, rows, first, last)
        row = np.concatenate([waiting[0], rows[new]])
        ends = np.concatenate([waiting[1], ends])
        local = np.full(len(self.rows), -1, dtype=np.int64)
        local[rows] = np.arange(len(rows))
        place = local[row]
        due = (place >= 0) & (ends <= last[place])
        at = np.concatenate([at, place[due]])
        cuts = np.concatenate([cuts, ends[due]])
        return Stretches.of_cuts(at, cuts, first=first, last=last), (row[~due], ends[~due])

    def _grow(self, rows: int) -> None:
        if rows > len(self._slots):
            more = np.zeros(max(rows, 2 * len(self._slots)), dtype=np.int64)
            more[: len(self._slots)] = self._slots
            self._slots = more
        for tally in (self.tally, *self.redrawn):
            tally.grow(rows)

    def _take_redrawn(
        self,
        losses: NDArray[np.float32],
        grouped: Grouped,
        rows: Ints,
        first: Ints,
        layout: Stretches,
    ) -> None:
        """Take the slots again for each seed, with every loss replaced by a Bernoulli draw."""
        row = np.repeat(rows, grouped.counts)
        slot = np.arange(len(row)) - np.repeat(
            np.cumsum(grouped.counts) - grouped.counts - first, grouped.counts
        )
        step = max(1, _RESAMPLED_VALUES // losses.shape[1])
        drawn = np.empty_like(losses)
        for seed, (source, tally) in enumerate(zip(self._sources, self.redrawn, strict=True)):
            for begin in range(0, len(row), step):
                part = slice(begin, begin + step)
                tags = self.rows.tags(row[part], seed=seed)
                bits = source.bits(self._bench.stream, Purpose.RESAMPLE, tags, slot[part])
                places = grouped.places(np.arange(begin, min(begin + step, len(row))))
                drawn[places] = resampled(losses[places], bits)
            tally.take(drawn, grouped, rows, layout)
