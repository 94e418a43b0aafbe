"""Does the exact audit take slots that come alone, and catch it when they are taken wrongly?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from streamdp.core.engine.plan import Alone
from streamdp.core.grid import UNIT
from streamdp.core.kinds.losses import LossAdder, LossContents
from streamdp.core.learners import learner_of
from streamdp.core.segments import BatchSlots
from streamdp.lab.audit import TOLERANCE
from streamdp.lab.audit.exposure import exposed, slots_alone
from streamdp.lab.audit.transcripts import worst_ratios
from tests.support.engine_mutants import with_contents


def counts_twice(patch: pytest.MonkeyPatch) -> None:
    def twice(self: LossAdder, slots: BatchSlots, added: LossContents) -> None:
        added.sums = added.sums * (1 + inside(slots))

    with_contents(patch, twice)


def clips_nothing(patch: pytest.MonkeyPatch) -> None:
    def unclipped(self: LossAdder, slots: BatchSlots, added: LossContents) -> None:
        if inside(slots):
            finite = np.nan_to_num(slots.batch.content["losses"].astype(np.float64), nan=0.5)
            added.sums = np.rint(finite * UNIT).astype(np.int64)

    with_contents(patch, unclipped)


def loses_nulls(patch: pytest.MonkeyPatch) -> None:
    """The slot is undone, as if its record were not there: later blocks move."""
    note = Alone.note

    def losing(self: Alone, slots: BatchSlots) -> None:
        note(self, slots)
        self._bank.slots[slots.rows] -= int(np.isnan(slots.batch.content["losses"]).any())

    patch.setattr(Alone, "note", losing)


def inside(slots: BatchSlots) -> bool:
    """Whether these slots are one that ends no block."""
    return len(slots.batch.index) == 1 and not slots.segments.closes[0]


@pytest.mark.parametrize(
    ("takes", "at_least"), [(counts_twice, 1.9), (clips_nothing, 6), (loses_nulls, np.inf)]
)
def test_a_slot_alone_that_is_taken_wrongly_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    takes: Callable[[pytest.MonkeyPatch], None],
    at_least: float,
) -> None:
    """BatchSlots inside a block that come alone go a way of their own, which one design takes."""
    learner = learner_of({"recipe": "incumbent_leader", "epsilon": "1"}, actions=["a", "b"])
    (alone,) = slots_alone(learner)

    def worst_ratio() -> float:
        return max(worst_ratios(exposed(learner, alone), learner).values())

    assert worst_ratio() <= 1 + TOLERANCE
    takes(monkeypatch)
    assert worst_ratio() >= at_least
