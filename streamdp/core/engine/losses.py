"""Blocks of streams of losses: sums of a window, a private choice, and its estimates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.bank import Bank
from streamdp.core.engine.draws import Draws, Fresh
from streamdp.core.engine.operator import NotPrivate
from streamdp.core.engine.plan import Plan
from streamdp.core.engine.resampling import resampled
from streamdp.core.engine.waves import BLOCK_CODE, ESTIMATE_CODE, Ended, Wave
from streamdp.core.events import Carried, LossBatch
from streamdp.core.evidence import Standing
from streamdp.core.learners import Leader
from streamdp.core.randomness import Purpose, uniform_integers
from streamdp.core.regret import Estimate
from streamdp.core.segments import Adder


class LossBlocks:
    """What a `Leader`'s blocks accumulate, release and put in force."""

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

    def born(self, rows: Ints, draws: Draws, carried: dict[int, Carried]) -> tuple[Ints, None]:
        """The openings, in force at once; the memory starts out sure of a carried one."""
        bank = self._bank
        openings = draws.openings(bank, rows)
        if carried:
            which = np.fromiter(carried, dtype=np.int64, count=len(carried))
            openings[which] = [inherited.action for inherited in carried.values()]
            lengths = self._learner.schedule.lengths(bank.block[rows[which]])
            bank.remembered[rows[which]] = self._learner.memory.sure_of(openings[which], lengths)
        bank.action[rows] = openings
        return openings, None

    # -- sums ------------------------------------------------------------------------------------

    def added(self, plan: Plan) -> _Added:
        """The sums of each segment: over its window, and where needed over all its slots."""
        segments, batch = plan.segments, plan.batch
        assert isinstance(batch, LossBatch)
        losses, windows = batch.losses, self._windows(plan)
        counted = np.clip(windows - segments.into, 0, segments.length)
        if self._learner.resample == "bernoulli":
            losses = self._resampled(plan, losses)
        sums, nulls = self._adder.sums(losses, plan.grouped, segments.begin, counted)
        if not self._estimates and self._not_private is None:
            return _Added(self, sums, None, None, windows)
        totals = sums
        if self._learner.resample != "none" or self._learner.window == "random_prefix":
            totals, nulls = self._adder.sums(
                batch.losses, plan.grouped, segments.begin, segments.length
            )
        if self._not_private is not None:
            self._not_private.latest_nulls = nulls
        in_order = nulls[plan.grouped.places(np.arange(len(nulls)))].astype(np.int64)
        nulls_of = np.add.reduceat(in_order, segments.begin)
        return _Added(self, sums, totals, nulls_of, windows)

    def _windows(self, plan: Plan) -> Ints:
        """How many slots of each segment's block count; drawn here for blocks that begin."""
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

    def _resampled(self, plan: Plan, losses: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = np.empty(len(plan.batch.index), dtype=np.int64)
        rows[plan.grouped.places(np.arange(len(rows)))] = np.repeat(plan.rows, plan.grouped.counts)
        bits = self._fresh.bits(self._bank, rows, Purpose.RESAMPLE, plan.slots)
        return resampled(losses, bits)

    def _advance(self, added: _Added, which: Ints, rows: Ints) -> None:
        bank = self._bank
        if added.totals is not None and added.nulls is not None:
            self._watch(rows, added.totals[which], added.nulls[which])
        if self._learner.window == "random_prefix":
            bank.window[rows] = added.windows[which]
        bank.sums[rows] += added.counted[which]
        if self._estimates and added.totals is not None and added.nulls is not None:
            bank.totals[rows] += added.totals[which]
            bank.nulls[rows] += added.nulls[which]

    def _watch(self, rows: Ints, totals: Ints, nulls: Ints) -> None:
        if self._not_private is not None:
            self._not_private.observe(rows, self._bank.action[rows].astype(np.int64), totals, nulls)

    # -- blocks ----------------------------------------------------------------------------------

    def close(self, ended: Ended, draws: Draws) -> Iterator[Wave]:
        """Draw the votes and estimates of blocks that end, then begin the next."""
        votes = draws.actions(self._bank, ended.rows)
        lengths = ended.stop - ended.start
        in_force = self._remember(ended.rows, votes, lengths)
        yield ended.wave(BLOCK_CODE, votes, in_force)
        for number, estimate in enumerate(self._estimates):
            due = estimate.due(lengths)
            if due.any():
                value = draws.estimate(self._bank, ended.rows[due], number)
                yield ended.only(due).wave(ESTIMATE_CODE + number, value, in_force[due])
        self._begin_next(ended.rows, in_force)

    def _remember(self, rows: Ints, votes: Ints, lengths: Ints) -> Ints:
        """Put these votes into the memory; return the actions in force.

        The memory reads public columns only. Where blocks are shorter than its `since` it is not
        asked: the vote is in force.
        """
        bank, memory = self._bank, self._learner.memory
        weighed = np.flatnonzero(lengths >= memory.since)
        if not len(weighed):
            return votes
        known, standing = rows[weighed], votes.copy()
        in_force, remembered = bank.action[known], bank.remembered[known]
        before = Standing(in_force.astype(np.int64), remembered.astype(np.int64))
        now = memory.after(before, votes[weighed], lengths[weighed])
        standing[weighed], bank.remembered[known] = now.in_force, now.remembered
        return standing

    def _begin_next(self, rows: Ints, actions: Ints) -> None:
        bank = self._bank
        bank.action[rows] = actions
        if self._learner.window != "running":
            bank.sums[rows] = 0
        if self._estimates:
            bank.totals[rows] = 0
            bank.nulls[rows] = 0


@dataclass(frozen=True, slots=True, repr=False)
class _Added:
    """What the segments of a plan add: to the window's sums, and over all their slots."""

    blocks: LossBlocks
    counted: Ints  # S × K
    totals: Ints | None  # S × K, for estimates or an operator
    nulls: Ints | None  # S
    windows: Ints  # S: how many slots of its block count

    def advance(self, which: Ints, rows: Ints) -> None:
        """Add these segments to their rows."""
        self.blocks._advance(self, which, rows)
