"""Blocks of streams that see the shown action's loss only: sums and counts of each arm, a policy.

Privacy: ε-DP for replacing one record's content, given earlier releases. Sensitivity: 1 in L1 for
the K centred sums of a block together, because a gain is clipped to ±1/2 and enters one arm's sum,
in one block; counts are public, or released with noise of their own (`played = "value"`, 3 in L1).
Why: each released number has discrete Laplace noise of the scale that the learner says. The policy
reads released numbers only: what the row remembers is a function of them.

A slot that names no known arm is the null observation: it takes its slot, and adds to nothing.
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
        """The policy before anything is known, or from a carried history; no data, no draw."""
        bank, learner = self._bank, self._learner
        openings = draws.openings(bank, rows)
        nothing = np.zeros((len(rows), len(learner.actions)), dtype=np.int64)
        policy = learner.policy(learner.nothing_known(1), np.zeros(1, dtype=np.int64))
        policies = np.repeat(policy, len(rows), axis=0)
        if carried:
            which = np.fromiter(carried, dtype=np.int64, count=len(carried))
            state = history_of(carried, rows=len(rows), actions=len(learner.actions))[which]
            policies[which] = learner.policy(state, bank.block[rows[which]])
            bank.remembered[rows[which]] = state.reshape(len(which), -1).view(np.int64)
        return openings, FeedbackColumns(nothing, nothing, policies)

    def added(self, plan: Plan) -> _Added:
        """Each slot's arm and gain, in the order in which waves need them.

        A null observation adds 0 to the first arm's sum and count: the same steps as for others.
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
        columns = FeedbackColumns(gains, shown, learner.policy(state, ended.block + 1))
        none = np.zeros(len(rows), dtype=np.int64)
        yield ended.wave(BLOCK_CODE, none, none, columns)
        bank.remembered[rows] = state.reshape(len(rows), -1).view(np.int64)
        bank.sums[rows] = 0
        bank.shown[rows] = 0


def history(bank: Bank, rows: Ints) -> Floats:
    """What some rows remember of their releases: R × 2 × K numbers, kept as their 64 bits."""
    kept = bank.remembered[rows].view(np.float64)
    return kept.reshape(len(rows), KEPT_PER_ARM, -1)


def in_force(learner: PolicyLearner, bank: Bank, rows: Ints) -> Policy:
    """The policies of some rows: computed from what was released, never stored."""
    return learner.policy(history(bank, rows), bank.block[rows])


@dataclass(frozen=True, slots=True, repr=False)
class _Added:
    """Where the slots of a plan add what, ordered by wave."""

    bank: Bank
    wave: Ints  # S: of each segment
    cells: Ints  # row · K + arm
    gains: Ints
    shows: Ints  # 1, or 0 for a null observation
    ends: Ints  # where each wave begins, and the end

    def advance(self, which: Ints, rows: Ints) -> None:
        """Add the slots of one wave."""
        wave = int(self.wave[which[0]])
        part = slice(int(self.ends[wave]), int(self.ends[wave + 1]))
        np.add.at(self.bank.sums.reshape(-1), self.cells[part], self.gains[part])
        np.add.at(self.bank.shown.reshape(-1), self.cells[part], self.shows[part])
