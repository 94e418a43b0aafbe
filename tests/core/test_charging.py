"""Is every block paid for before anything is drawn from it, once, in order and at its length (P6)?

The mutants break the order of the engine's steps; each is refused before any bits are asked for
that would touch what is not paid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.arrays import Ints
from streamdp.core.bank import Bank
from streamdp.core.engine import machine as machine_module
from streamdp.core.engine.charging import BlockEnds, ends_of
from streamdp.core.engine.plan import Plan
from streamdp.core.engine.releasing import Draws, Fresh
from streamdp.core.kinds.kind import BlockRelease
from streamdp.core.releases import Releases
from tests.support.batches import loss_batch

ESTIMATE = sd.estimate("block_regret", epsilon="1/4", min_length=4)
Drawn = list[tuple[str, list[int], list[int]]]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """What is drawn: the release, and rows with their blocks."""
    released, noted = Fresh.released, Drawn()

    def noting(self: Fresh, name: str, rows: Ints) -> Ints:
        noted.append((name, rows.tolist(), self.bank.block[rows].tolist()))
        return released(self, name, rows)

    monkeypatch.setattr(Fresh, "released", noting)
    return noted


def engine() -> sd.Engine:
    learner = sd.incumbent_leader(actions=["a", "b"], epsilon="1/2", schedule="dyadic")
    return sd.Engine(
        stream="s", partition=0, learner=learner, budget="3/4", estimates=[ESTIMATE],
        randomness=sd.SystemRandomness(),
    )  # fmt: skip


def slots(machine: sd.Engine, count: int, *, keys: int = 1) -> None:
    """That many slots of each key, in one batch."""
    n = count * keys
    first = machine.position
    machine.apply_batch(
        loss_batch(
            [b"%d" % key for key in range(keys)],
            np.arange(n) % keys,
            np.zeros((n, 2), dtype=np.float32),
            np.arange(first, first + n),
        )
    )


def with_ends(patch: pytest.MonkeyPatch, changed: Callable[[BlockEnds], BlockEnds]) -> None:
    """Change what is charged."""

    def other(planned: Plan, bank: Bank, releases: tuple[BlockRelease, ...]) -> BlockEnds:
        return changed(ends_of(planned, bank, releases))

    patch.setattr(machine_module, "ends_of", other)


def test_is_each_release_drawn_once_from_what_was_paid(drawn: Drawn) -> None:
    """Whatever is in one batch: 16 slots of three keys are four blocks each, two with estimates."""
    machine = engine()
    slots(machine, 16, keys=3)
    every = [(name, row, block) for name, rows, blocks in drawn
             for row, block in zip(rows, blocks, strict=True)]  # fmt: skip
    assert sorted(every) == sorted(
        [("action", row, block) for row in range(3) for block in range(4)]
        + [("block_regret", row, block) for row in range(3) for block in (2, 3)]
    )
    assert machine._bank.charged[:3].tolist() == [16] * 3


@pytest.mark.parametrize("off", [-1, 1])
def test_a_block_that_does_not_begin_where_the_row_has_paid_to_changes_nothing(
    drawn: Drawn, off: int
) -> None:
    """An overlap or a gap: refused before a write, and the engine goes on when it is mended."""
    machine = engine()
    slots(machine, 2, keys=2)
    drawn.clear()
    machine._bank.charged[1] += off
    slots_before, saved = machine.slots(b"0"), machine._bank.private["sums"].copy()
    with pytest.raises(sd.BudgetExceeded, match="slots 2 to 3 are charged out of turn; expected"):
        slots(machine, 6, keys=2)
    assert drawn == []
    assert machine.slots(b"0") == slots_before
    assert (machine._bank.private["sums"] == saved).all()
    machine._bank.charged[1] -= off
    slots(machine, 6, keys=2)
    assert machine.ledger.highest() == Fraction(3, 4)


@pytest.mark.parametrize("places", [[0, 0], [0, 1, 0]])
def test_a_block_that_ends_twice_in_one_batch_is_refused(
    drawn: Drawn, monkeypatch: pytest.MonkeyPatch, places: list[int]
) -> None:
    """The mutant: one end is planned twice, beside the first or behind another row's."""

    def twice(planned: Plan, bank: Bank, releases: tuple[BlockRelease, ...]) -> BlockEnds:
        segments = planned.slots.segments
        again = replace(segments, **{name: getattr(segments, name)[places] for name in NAMES})
        return ends_of(
            replace(planned, slots=replace(planned.slots, segments=again)), bank, releases
        )

    monkeypatch.setattr(machine_module, "ends_of", twice)
    with pytest.raises(sd.BudgetExceeded, match=r"out of turn|a row in two places"):
        slots(engine(), 1, keys=2)
    assert drawn == []


NAMES = ("of", "block", "start", "stop", "begin", "length", "into", "closes", "wave")


def test_a_draw_before_the_charge_is_refused(drawn: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: slots are marked paid after the draws."""
    apply, pay = sd.Engine._apply, BlockEnds.pay

    def after(self: sd.Engine, planned: Plan, ends: BlockEnds, draws: Draws) -> Iterator[Releases]:
        yield from apply(self, planned, ends, draws)
        pay(ends, self._bank.charged)

    monkeypatch.setattr(BlockEnds, "pay", lambda self, charged: None)
    monkeypatch.setattr(sd.Engine, "_apply", after)
    machine = engine()
    with pytest.raises(sd.BudgetExceeded, match="a draw that is not paid for"):
        slots(machine, 1)
    assert drawn == []


def test_a_block_is_not_drawn_from_twice(drawn: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: what was taken is taken again."""
    take = BlockEnds.take

    def again(self: BlockEnds, at: Ints) -> object:
        take(self, at)
        return take(self, at)

    monkeypatch.setattr(BlockEnds, "take", again)
    with pytest.raises(sd.BudgetExceeded, match="each block drawn once"):
        slots(engine(), 1)
    assert drawn == []


@pytest.mark.parametrize("off", [-1, 1])
def test_a_charge_at_another_length_is_refused_at_the_next_block(
    drawn: Drawn, monkeypatch: pytest.MonkeyPatch, off: int
) -> None:
    with_ends(monkeypatch, lambda ends: replace(ends, stop=ends.stop + off))
    machine = engine()
    slots(machine, 1)
    drawn.clear()
    with pytest.raises(sd.BudgetExceeded, match="slots 2 to 3 are charged out of turn"):
        slots(machine, 2)
    assert drawn == []


def test_a_release_that_was_not_paid_for_is_not_drawn(
    drawn: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant charges the action alone; the estimate that a block would have is not drawn."""
    with_ends(
        monkeypatch,
        lambda ends: replace(ends, due=(ends.due[0], np.zeros_like(ends.due[0]))),
    )
    slots(engine(), 16)
    assert {name for name, _, _ in drawn} == {"action"}


def test_a_stream_that_could_charge_beyond_its_share_does_not_start() -> None:
    learner = sd.incumbent_leader(actions=["a", "b"], epsilon="1/2")
    with pytest.raises(sd.InvalidConfig, match="the charges of one event exceed it"):
        sd.Engine(
            stream="s", partition=0, learner=learner, budget="7/10", estimates=[ESTIMATE],
            randomness=sd.SystemRandomness(),
        )  # fmt: skip


def test_nothing_is_charged_before_a_block_ends_and_to_a_key_that_is_not_there() -> None:
    machine = engine()
    assert machine.ledger.highest() == 0
    slots(machine, 1)
    assert machine.ledger.spent(b"other", slot=1) == 0
    assert machine.ledger.spent(b"0", slot=1) == Fraction(1, 2)
