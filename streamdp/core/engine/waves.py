"""Applying a plan to a bank: births, sums, and where blocks end, draws.

A *wave* is the r-th segment of every key that a batch touches. Keys do not depend on each other, so
a wave is applied at once: losses are added, and the rows whose block ends draw together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.bank import CLEAN, Bank
from streamdp.core.engine.draws import Draws, Fresh
from streamdp.core.engine.operator import NotPrivate
from streamdp.core.engine.plan import Plan
from streamdp.core.engine.resampling import resampled
from streamdp.core.evidence import Standing
from streamdp.core.learners.leader import Leader
from streamdp.core.randomness import Purpose, uniform_integers
from streamdp.core.regret import Estimate
from streamdp.core.segments import Adder

Ints = NDArray[np.int64]

OPENING_CODE, ACTION_CODE, ESTIMATE_CODE = 0, 1, 2
"""Codes of the kinds; estimate i has code 2 + i. Releases of one record come in this order."""


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


@dataclass(frozen=True, slots=True, repr=False)
class _Added:
    """What the segments of a plan add: to the window's sums, and over all their slots."""

    counted: Ints  # S × K
    totals: Ints | None  # S × K, where somebody looks at them
    nulls: Ints | None  # S
    windows: Ints  # S: how many slots of its block count


class Applier:
    """Applies plans to one bank."""

    __slots__ = ("_adder", "_bank", "_estimates", "_fresh", "_learner", "_not_private")

    def __init__(
        self,
        *,
        learner: Leader,
        estimates: tuple[Estimate, ...],
        bank: Bank,
        fresh: Fresh,
        not_private: NotPrivate | None,
    ) -> None:
        self._learner = learner
        self._estimates = estimates
        self._bank = bank
        self._fresh = fresh
        self._not_private = not_private
        self._adder = Adder(len(learner.actions))

    def apply(self, plan: Plan, draws: Draws) -> Iterator[Wave]:
        """Change the bank by a plan that is charged; yields what was drawn."""
        if len(plan.new):
            yield self._give_birth(plan, draws)
        if not len(plan.segments.of):
            return
        added = self._add(plan)
        by_wave = np.argsort(plan.segments.wave, kind="stable")
        ends = np.flatnonzero(np.diff(plan.segments.wave[by_wave])) + 1
        for which in np.split(by_wave, ends):
            yield from self._advance(plan, which, added, draws)
        self._mark_unsaved(plan)

    def _give_birth(self, plan: Plan, draws: Draws) -> Wave:
        bank = self._bank
        keys = [plan.batch.keys[key] for key in plan.new.tolist()]
        rows = bank.add(keys, plan.born)
        self._fresh.tag(bank, rows)
        bank.action[rows] = draws.openings(bank, rows)
        one = np.ones(len(rows), dtype=np.int64)
        place = np.searchsorted(plan.batch.offsets, plan.born)
        return Wave(
            OPENING_CODE,
            rows,
            one - 1,
            (openings := bank.action[rows].astype(np.int64)),
            one,
            one,
            plan.born,
            plan.born,
            place,
            openings,
        )

    # -- sums ------------------------------------------------------------------------------------

    def _add(self, plan: Plan) -> _Added:
        segments, losses = plan.segments, plan.batch.losses
        windows = self._windows(plan)
        counted = np.clip(windows - segments.into, 0, segments.length)
        if self._learner.resample == "bernoulli":
            losses = self._resampled(plan)
        sums, nulls = self._adder.sums(losses, plan.grouped, segments.begin, counted)
        if not self._estimates and self._not_private is None:
            return _Added(sums, None, None, windows)
        totals = sums
        if self._learner.resample != "none" or self._learner.window == "random_prefix":
            totals, nulls = self._adder.sums(
                plan.batch.losses, plan.grouped, segments.begin, segments.length
            )
        if self._not_private is not None:
            self._not_private.latest_nulls = nulls
        in_order = nulls[plan.grouped.places(np.arange(len(nulls)))].astype(np.int64)
        return _Added(sums, totals, np.add.reduceat(in_order, segments.begin), windows)

    def _windows(self, plan: Plan) -> Ints:
        """How many slots of each segment's block count; drawn where the block begins here."""
        segments = plan.segments
        lengths = self._learner.schedule.lengths(segments.block)
        if self._learner.window != "random_prefix":
            return lengths
        rows = plan.segment_rows
        windows = self._bank.window[rows]
        begins = np.flatnonzero(segments.into == 0)
        bits = self._fresh.bits(self._bank, rows[begins], Purpose.WINDOW, segments.block[begins])
        half = lengths[begins] // 2  # Cesari & Colomboni 2026, §4: uniform on {⌊n/2⌋+1, …, n}
        windows[begins] = half + 1 + uniform_integers(bits, lengths[begins] - half)
        return windows

    def _resampled(self, plan: Plan) -> NDArray[np.float32]:
        rows = np.empty(len(plan.batch.index), dtype=np.int64)
        rows[plan.grouped.places(np.arange(len(rows)))] = np.repeat(plan.rows, plan.grouped.counts)
        bits = self._fresh.bits(self._bank, rows, Purpose.RESAMPLE, plan.slots)
        return resampled(plan.batch.losses, bits)

    # -- blocks ----------------------------------------------------------------------------------

    def _advance(self, plan: Plan, which: Ints, added: _Added, draws: Draws) -> Iterator[Wave]:
        """Apply one wave of segments, which are of different rows."""
        bank, segments = self._bank, plan.segments
        rows = plan.segment_rows[which]
        begins = segments.into[which] == 0
        bank.first_offset[rows[begins]] = plan.offset_at(segments.begin[which][begins])
        bank.block[rows] = segments.block[which]
        if self._learner.window == "random_prefix":
            bank.window[rows] = added.windows[which]
        bank.slots[rows] += segments.length[which]
        bank.sums[rows] += added.counted[which]
        if added.totals is not None and added.nulls is not None:
            self._total(rows, added.totals[which], added.nulls[which])
        ends = which[segments.closes[which]]
        if len(ends):
            yield from self._close(plan, ends, draws)

    def _total(self, rows: Ints, totals: Ints, nulls: Ints) -> None:
        if self._estimates:
            self._bank.totals[rows] += totals
            self._bank.nulls[rows] += nulls
        if self._not_private is not None:
            self._not_private.observe(rows, self._bank.action[rows].astype(np.int64), totals, nulls)

    def _close(self, plan: Plan, ends: Ints, draws: Draws) -> Iterator[Wave]:
        """Draw the releases of blocks that end, then begin the next."""
        bank, schedule = self._bank, self._learner.schedule
        rows, blocks = plan.segment_rows[ends], plan.segments.block[ends]
        starts, stops = schedule.starts(blocks), schedule.stops(blocks)
        last = plan.segments.begin[ends] + plan.segments.length[ends] - 1
        place, first_offset = plan.grouped.places(last), bank.first_offset[rows]
        last_offset = plan.batch.offsets[place]

        def wave(code: int, value: Ints, of: NDArray[np.bool_]) -> Wave:
            columns = (rows, blocks, starts, stops, first_offset, last_offset, place, now.in_force)
            row, block, start, stop, first, at, where, action = (column[of] for column in columns)
            return Wave(code, row, block, value, start, stop, first, at, where, action)

        votes = draws.actions(bank, rows)
        now = self._remember(rows, votes, stops - starts)
        yield wave(ACTION_CODE, votes, np.ones(len(rows), dtype=np.bool_))
        for number, estimate in enumerate(self._estimates):
            due = estimate.due(stops - starts)
            if due.any():
                value = draws.estimate(bank, rows[due], number)
                yield wave(ESTIMATE_CODE + number, value, due)
        self._begin_next(rows, now)

    def _remember(self, rows: Ints, votes: Ints, lengths: Ints) -> Standing:
        """What is in force once these votes were cast: it reads what is public, and no sum."""
        bank = self._bank
        before = Standing(bank.action[rows].astype(np.int64), bank.remembered[rows])
        return self._learner.memory.after(before, votes, lengths)

    def _begin_next(self, rows: Ints, now: Standing) -> None:
        bank = self._bank
        bank.action[rows] = now.in_force
        bank.remembered[rows] = now.remembered
        bank.block[rows] += 1
        if self._learner.window != "running":
            bank.sums[rows] = 0
        if self._estimates:
            bank.totals[rows] = 0
            bank.nulls[rows] = 0

    def _mark_unsaved(self, plan: Plan) -> None:
        """Remember the first record that the latest save of each touched row does not hold."""
        unsaved = self._bank.first_unsaved
        clean = unsaved[plan.rows] == CLEAN
        begins = (np.cumsum(plan.grouped.counts) - plan.grouped.counts)[clean]
        unsaved[plan.rows[clean]] = plan.offset_at(begins)
