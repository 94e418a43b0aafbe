"""Does the exact audit take slots that come alone, and catch it when they are taken wrongly?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from streamdp.core.engine.quiet import Quiet
from streamdp.core.events import LossBatch
from streamdp.core.grid import UNIT
from streamdp.core.learners import learner_of
from streamdp.lab.audit import TOLERANCE
from streamdp.lab.audit.exposure import engine_subject, slots_alone
from streamdp.lab.audit.transcripts import worst_ratios

take = Quiet.take


def counts_twice(self: Quiet, batch: LossBatch, row: int) -> None:
    before = self._bank.sums[row].copy()
    take(self, batch, row)
    self._bank.sums[row] += self._bank.sums[row] - before


def clips_nothing(self: Quiet, batch: LossBatch, row: int) -> None:
    before = self._bank.sums[row].copy()
    take(self, batch, row)
    finite = np.nan_to_num(batch.losses[0].astype(np.float64), nan=0.5)
    self._bank.sums[row] = before + np.rint(finite * UNIT).astype(np.int64)


def loses_nulls(self: Quiet, batch: LossBatch, row: int) -> None:
    """The slot is undone, as if its record were not there: later blocks move."""
    take(self, batch, row)
    self._bank.slots[row] -= int(np.isnan(batch.losses).any())


@pytest.mark.parametrize(
    ("takes", "at_least"), [(counts_twice, 1.9), (clips_nothing, 6), (loses_nulls, np.inf)]
)
def test_a_slot_alone_that_is_taken_wrongly_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    takes: Callable[[Quiet, LossBatch, int], None],
    at_least: float,
) -> None:
    """Slots inside a block that come alone go a way of their own, which one design takes."""
    learner = learner_of({"recipe": "incumbent_leader", "epsilon": "1"}, actions=["a", "b"])
    (alone,) = slots_alone(learner)

    def worst_ratio() -> float:
        subject = engine_subject(learner)
        return max(worst_ratios(subject(alone), learner.choose).values())

    assert worst_ratio() <= 1 + TOLERANCE
    monkeypatch.setattr(Quiet, "take", takes)
    assert worst_ratio() >= at_least
