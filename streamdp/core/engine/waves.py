"""Applies a plan to a bank: births, the addition of slots, and draws where blocks end.

A *wave* is the r-th segment of every key that a batch touches. Keys do not depend on each other, so
a wave is applied at once: its slots are added, and the rows whose block ends draw together.

Streams of losses and feedback streams go the same way. What their blocks accumulate, release and
put in force is in the modules `losses` and `feedback`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from streamdp.core.arrays import Bools, Ints
from streamdp.core.bank import CLEAN, Bank
from streamdp.core.engine.draws import Draws, Fresh
from streamdp.core.engine.plan import Plan
from streamdp.core.events import Carried, FeedbackColumns, Key
from streamdp.core.schedule import Schedule

OPENING_CODE, BLOCK_CODE, ESTIMATE_CODE = 0, 1, 2
"""Codes of the kinds: an opening; a block's action or sums; estimate i has code 2 + i. Releases of
one record come in this order."""


@dataclass(frozen=True, slots=True, repr=False)
class Wave:
    """Releases of one kind that were drawn together."""

    code: int
    rows: Ints
    block: Ints
    value: Ints
    start: Ints
    stop: Ints
    first_offset: Ints
    last_offset: Ints
    place: Ints  # of the record that ended the block, in the batch
    in_force: Ints  # the action in force afterwards
    feedback: FeedbackColumns | None = None  # of feedback streams
    carried: dict[tuple[Key, int], Carried] | None = None  # openings: what was carried over


@dataclass(frozen=True, slots=True, repr=False)
class Ended:
    """Blocks of different rows that end together, and their records."""

    rows: Ints
    block: Ints
    start: Ints
    stop: Ints
    first_offset: Ints
    last_offset: Ints
    place: Ints

    def wave(
        self,
        code: int,
        value: Ints,
        in_force: Ints,
        feedback: FeedbackColumns | None = None,
    ) -> Wave:
        """Releases of one kind, one for each block."""
        return Wave(
            code, self.rows, self.block, value, self.start, self.stop, self.first_offset,
            self.last_offset, self.place, in_force, feedback,
        )  # fmt: skip

    def only(self, of: Bools) -> Ended:
        """Some of the blocks."""
        return Ended(
            self.rows[of], self.block[of], self.start[of], self.stop[of], self.first_offset[of],
            self.last_offset[of], self.place[of],
        )  # fmt: skip


class Added(Protocol):
    """What the slots of a batch add to rows, wave by wave."""

    def advance(self, which: Ints, rows: Ints) -> None:
        """Add these segments, which are of different rows, to their rows."""
        ...


class Blocks(Protocol):
    """What the blocks of a stream accumulate, release and put in force."""

    def born(
        self, rows: Ints, draws: Draws, carried: dict[int, Carried]
    ) -> tuple[Ints, FeedbackColumns | None]:
        """The openings of new rows: their actions, or for a feedback stream their policies.

        Rows at the places in `carried` open with what they carry over, in the block that the bank
        holds.
        """
        ...

    def added(self, plan: Plan) -> Added:
        """What a plan's slots add; nothing changes yet."""
        ...

    def close(self, ended: Ended, draws: Draws) -> Iterator[Wave]:
        """Draw the releases of blocks that end, put in force what follows, and forget the sums."""
        ...


class Applier:
    """Applies plans to one bank."""

    __slots__ = ("_bank", "_blocks", "_fresh", "_schedule")

    def __init__(self, *, schedule: Schedule, blocks: Blocks, bank: Bank, fresh: Fresh) -> None:
        self._schedule, self._blocks, self._bank, self._fresh = schedule, blocks, bank, fresh

    def apply(self, plan: Plan, draws: Draws) -> Iterator[Wave]:
        """Apply a plan whose charges are booked; yield what was drawn."""
        if len(plan.new):
            yield self._give_birth(plan, draws)
        if not len(plan.segments.of):
            return
        added = self._blocks.added(plan)
        by_wave = np.argsort(plan.segments.wave, kind="stable")
        ends = np.flatnonzero(np.diff(plan.segments.wave[by_wave])) + 1
        for which in np.split(by_wave, ends):
            yield from self._advance(plan, which, added, draws)
        self._mark_unsaved(plan)

    def _give_birth(self, plan: Plan, draws: Draws) -> Wave:
        keys = [plan.batch.keys[key] for key in plan.new.tolist()]
        rows = self._bank.add(keys, plan.born)
        self._fresh.tag(self._bank, rows)
        for at, inherited in plan.carried.items():
            self._bank.block[rows[at]] = inherited.block
        begin = self._schedule.starts(self._bank.block[rows])
        self._bank.slots[rows] = begin - 1
        openings, feedback = self._blocks.born(rows, draws, plan.carried)
        place = np.searchsorted(plan.batch.offsets, plan.born)
        if plan.batch.times is not None:
            self._bank.unsaved_time[rows] = plan.batch.times[place]
        born = Ended(rows, np.zeros_like(rows), begin, begin, plan.born, plan.born, place)
        wave = born.wave(OPENING_CODE, openings, openings, feedback)
        if not plan.carried:
            return wave
        carried = {(keys[at], int(plan.born[at])): known for at, known in plan.carried.items()}
        return replace(wave, carried=carried)

    def _advance(self, plan: Plan, which: Ints, added: Added, draws: Draws) -> Iterator[Wave]:
        """Apply one wave of segments, which are of different rows."""
        bank, segments = self._bank, plan.segments
        rows = plan.segment_rows[which]
        begins = segments.into[which] == 0
        bank.first_offset[rows[begins]] = plan.offset_at(segments.begin[which][begins])
        bank.block[rows] = segments.block[which]
        bank.slots[rows] += segments.length[which]
        added.advance(which, rows)
        ends = which[segments.closes[which]]
        if len(ends):
            ended = self._ended(plan, ends)
            yield from self._blocks.close(ended, draws)
            bank.block[ended.rows] += 1

    def _ended(self, plan: Plan, ends: Ints) -> Ended:
        """The blocks that these segments end."""
        rows, blocks = plan.segment_rows[ends], plan.segments.block[ends]
        last = plan.segments.begin[ends] + plan.segments.length[ends] - 1
        place = plan.grouped.places(last)
        return Ended(
            rows=rows,
            block=blocks,
            start=self._schedule.starts(blocks),
            stop=self._schedule.stops(blocks),
            first_offset=self._bank.first_offset[rows],
            last_offset=plan.batch.offsets[place],
            place=place,
        )

    def _mark_unsaved(self, plan: Plan) -> None:
        """Remember the first record that the latest save of each touched row does not hold."""
        unsaved = self._bank.first_unsaved
        clean = unsaved[plan.rows] == CLEAN
        ends = np.cumsum(plan.grouped.counts)
        begins = (ends - plan.grouped.counts)[clean]
        unsaved[plan.rows[clean]] = plan.offset_at(begins)
        times = plan.batch.times
        if times is not None:
            self._bank.seen[plan.rows] = times[plan.grouped.places(ends - 1)]
            self._bank.unsaved_time[plan.rows[clean]] = times[plan.grouped.places(begins)]


def column(waves: Sequence[Wave], name: str) -> Ints:
    """One column of several waves."""
    return np.concatenate([getattr(wave, name) for wave in waves])
