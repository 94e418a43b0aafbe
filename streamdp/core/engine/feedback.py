"""Blocks of feedback streams: sums and counts of each arm, and a policy.

Privacy: ε-DP for replacing one record's content, given earlier releases. Sensitivity: 1 in L1 for
the K centred sums of a block together, because a gain is clipped to ±1/2 and enters one arm's sum,
in one block; counts are public, or released with noise of their own (`played = "value"`, 3 in L1).
Why: each released number has discrete Laplace noise of the learner's scale. The policy reads
released numbers only: a row's history is a function of them.

A slot that names no known arm is the null observation: it takes its slot and adds to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.bank import Bank
from streamdp.core.engine.draws import Draws
from streamdp.core.engine.plan import Plan
from streamdp.core.engine.waves import BLOCK_CODE, Ended, Wave
from streamdp.core.events import Carried, FeedbackBatch, FeedbackColumns
from streamdp.core.evidence.carrying import history_of
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.policy_rule import KEPT_PER_ARM
from streamdp.core.grid import NULL
from streamdp.core.learners import PolicyLearner


class FeedbackBlocks:
    """What a `PolicyLearner`'s blocks accumulate, release and put in force."""

    __slots__ = ("_bank", "_learner")

    def __init__(self, *, learner: PolicyLearner, bank: Bank) -> None:
        self._learner, self._bank = learner, bank

    def born(
        self, rows: Ints, draws: Draws, carried: dict[int, Carried]
    ) -> tuple[Ints, FeedbackColumns]:
        """The opening policies: of an empty history, or of a carried one; no data, no draw."""
        bank, learner = self._bank, self._learner
        openings = draws.openings(bank, rows)
        nothing = np.zeros((len(rows), len(learner.actions)), dtype=np.int64)
        opening = learner.policy(learner.nothing_known(1), np.zeros(1, dtype=np.int64))
        policies = np.repeat(opening, len(rows), axis=0)
        if carried:
            which = np.fromiter(carried, dtype=np.int64, count=len(carried))
            state = history_of(carried, rows=len(rows), actions=len(learner.actions))[which]
            policies[which] = learner.policy(state, bank.block[rows[which]])
            remember(bank, rows[which], state)
        return openings, FeedbackColumns(nothing, nothing, policies)

    def added(self, plan: Plan) -> _Added:
        """Each slot's arm and gain, ordered by wave.

        A null observation adds 0 to the first arm's sum and count: it takes the same steps.
        """
        batch, segments, arms = plan.batch, plan.segments, len(self._learner.actions)
        assert isinstance(batch, FeedbackBatch)
        rows = np.repeat(plan.segment_rows, segments.length)
        slots, ends = plan.grouped.places(np.arange(len(rows))), np.array([0, len(rows)])
        if waves := int(segments.wave.max()):
            wave = np.repeat(segments.wave, segments.length)
            order = np.argsort(wave, kind="stable")
            rows, slots = rows[order], slots[order]
            ends = np.searchsorted(wave[order], np.arange(waves + 2))
        played, gains = batch.played[slots], batch.gain[slots]
        known = (played >= 0) & (played < arms)
        cells = rows * arms + np.where(known, played, 0)
        gains = np.clip(gains, -NULL, NULL) * known
        return _Added(self._bank, segments.wave, cells, gains, known.astype(np.int64), ends)

    def close(self, ended: Ended, draws: Draws) -> Iterator[Wave]:
        """Release the noisy sums of blocks that end, learn from them, and forget the sums."""
        bank, learner, rows = self._bank, self._learner, ended.rows
        gains, shown = draws.sums(bank, rows)
        state = learner.learned(history(bank, rows), gains, shown)
        policy = learner.policy(state, ended.block + 1)
        none, columns = np.zeros(len(rows), dtype=np.int64), FeedbackColumns(gains, shown, policy)
        yield ended.wave(BLOCK_CODE, none, none, columns)
        remember(bank, rows, state)
        bank.sums[rows] = 0
        bank.shown[rows] = 0


def history(bank: Bank, rows: Ints) -> Floats:
    """The histories of some rows: R × 2 × K floats, stored as the bits of integers."""
    kept = bank.remembered[rows].view(np.float64)
    return kept.reshape(len(rows), KEPT_PER_ARM, bank.sums.shape[1])


def remember(bank: Bank, rows: Ints, state: Floats) -> None:
    """Store the histories of some rows."""
    bank.remembered[rows] = np.ascontiguousarray(state).reshape(len(rows), -1).view(np.int64)


def in_force(learner: PolicyLearner, bank: Bank, rows: Ints) -> Policy:
    """The policies in force of some rows: computed from releases, never stored."""
    return learner.policy(history(bank, rows), bank.block[rows])


@dataclass(frozen=True, slots=True, repr=False)
class _Added:
    """The gains and counts that the slots of a plan add, ordered by wave."""

    bank: Bank
    wave: Ints  # S: of each segment
    cells: Ints  # row · K + arm
    gains: Ints
    shows: Ints  # 1, or 0 for a null observation
    ends: Ints  # where each wave begins, and where the last one ends

    def advance(self, which: Ints, rows: Ints) -> None:
        """Add the slots of one wave."""
        wave = int(self.wave[which[0]])
        part = slice(int(self.ends[wave]), int(self.ends[wave + 1]))
        np.add.at(self.bank.sums.reshape(-1), self.cells[part], self.gains[part])
        np.add.at(self.bank.shown.reshape(-1), self.cells[part], self.shows[part])
