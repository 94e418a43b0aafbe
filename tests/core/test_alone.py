"""Is a slot that comes alone exactly what it is among others, whichever way it goes?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdp as sd
from streamdp.core.bank import CLEAN
from streamdp.core.engine import Rebuilding
from streamdp.core.engine.plan import Alone
from streamdp.core.events import Batch
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.core.segments import BatchSlots
from tests.support.batches import feedback_batch, loss_batch
from tests.support.strategies import ACTIONS, cut, learners, logs

ESTIMATES = [
    sd.estimate("block_regret", epsilon="1/4", min_length=2),
    sd.estimate("null_share", epsilon="1/4", min_length=1),
]
Seen = list[object]


def held(machine: sd.Engine) -> Seen:
    """Every column."""
    return [
        (name, column[: len(machine)].tolist()) for name, column in machine._bank.columns().items()
    ]


def engine(learner: sd.Leader, estimates: list[sd.Estimate]) -> sd.Engine:
    """A seeded engine of four keys."""
    return sd.Engine(
        stream="home", partition=0, learner=learner, budget="5", limit=4,
        estimates=estimates, randomness=sd.SeededRandomness(7),
    )  # fmt: skip


def alone(learner: sd.Leader, log: Batch, estimates: list[sd.Estimate], every: int) -> Seen:
    """All that an engine releases, holds, saves and tells when each slot is a batch."""
    machine = engine(learner, estimates)
    seen: Seen = []
    for number, batch in enumerate(cut(log, range(len(log.offsets)))):
        seen += list(machine.apply_batch(batch))
        seen += [machine.position, machine.low_water()]
        seen += held(machine)
        if number % every == 0:
            seen += machine.save(most=1)
    seen += [*machine.ledger.export(), *machine.save(), machine.slots_refused]
    return seen


def by_the_long_way(monkeypatch: pytest.MonkeyPatch, fold: Callable[[], Seen]) -> Seen:
    """The same with every slot planned, charged and laid out in waves."""
    with monkeypatch.context() as patch:
        patch.setattr(Alone, "lay_out", lambda self, batch: None)
        return fold()


@pytest.mark.slow
@given(learners(), logs(), st.booleans(), st.integers(1, 9))
def test_is_a_slot_alone_what_it_is_by_the_long_way(
    learner: sd.Leader, log: Batch, estimating: bool, every: int
) -> None:
    """Releases, charges, saved rows and low-water marks: equal.

    Which slots are laid out alone follows from public numbers: those that begin no row and end no
    block, by key, slot number and schedule alone.
    """
    estimates = ESTIMATES if estimating else []
    taken: list[bool] = []

    def watched(self: Alone, batch: Batch) -> BatchSlots | None:
        slots = _lay_out(self, batch)
        taken.append(slots is not None)
        return slots

    with pytest.MonkeyPatch.context() as patch:
        long = by_the_long_way(patch, lambda: alone(learner, log, estimates, every))
        patch.setattr(Alone, "lay_out", watched)
        assert alone(learner, log, estimates, every) == long
    slots: dict[int, int] = {}
    expected = []
    for key in log.index.tolist():
        known = key in slots
        slots[key] = slots.get(key, 0) + 1
        if not known and len(slots) > 4:  # beyond the limit of keys
            del slots[key]
        slot = slots.get(key, 1)
        ends = slot + 1 == learner.schedule.stop(learner.schedule.block_of(slot))
        expected.append(known and not ends)
    assert taken == expected


@pytest.mark.slow
@given(learners(), logs(), st.integers(0, 60))
def test_is_a_rebuild_slot_by_slot_the_engine_that_was(
    learner: sd.Leader, log: Batch, upto: int
) -> None:
    """Rows saved midway and the log read again one record at a time: the same rows, no draw."""
    machine = engine(learner, ESTIMATES)
    batches = cut(log, range(len(log.offsets)))
    drawn, saved = [], []
    for number, batch in enumerate(batches):
        drawn += list(machine.apply_batch(batch))
        if number == upto:
            saved = machine.save()
    again = Rebuilding(
        engine(learner, ESTIMATES),
        rows=saved, releases=drawn,
    )  # fmt: skip
    for batch in batches:
        again.feed(batch)
    rebuilt = again.finish(position=machine.position, rows=len(machine))
    machine._bank.first_unsaved[: len(machine)] = 0
    rebuilt._bank.first_unsaved[: len(machine)] = 0
    known = {"born", "slots", "block", "first_offset", "nulls", "action", "totals"}
    for name in sorted(known | ({"sums"} if learner.window != "random_prefix" else set())):
        if learner.resample == "none" or name != "sums":  # bits that nobody saw are drawn anew
            mine, theirs = (
                either._bank.columns()[name][: len(machine)] for either in (machine, rebuilt)
            )
            np.testing.assert_array_equal(mine, theirs, err_msg=name)


# -- broken ways, which the comparison above must catch -------------------------------------------

_lay_out, _note = Alone.lay_out, Alone.note


def _never_unsaved(self: Alone, slots: BatchSlots) -> None:
    row = slots.rows[0]
    before = self._bank.first_unsaved[row]
    _note(self, slots)
    self._bank.first_unsaved[row] = before


def _late_unsaved(self: Alone, slots: BatchSlots) -> None:
    row = slots.rows[0]
    clean = self._bank.first_unsaved[row] == CLEAN
    _note(self, slots)
    self._bank.first_unsaved[row] += int(clean)


def _no_first_offset(self: Alone, slots: BatchSlots) -> None:
    row = slots.rows[0]
    before = self._bank.first_offset[row]
    _note(self, slots)
    self._bank.first_offset[row] = before


def _counts_twice(self: Alone, slots: BatchSlots) -> None:
    _note(self, slots)
    self._bank.slots[slots.rows] += 1


def _one_further(self: Alone, batch: Any) -> BatchSlots | None:
    slots = _lay_out(self, batch)
    if slots is not None:
        slots.segments.into[0] += 1
    return slots


def _passes_ends(self: Alone, batch: Any) -> BatchSlots | None:
    row = self._bank.row(batch.keys[int(batch.index[0])])
    if row is None:
        return None
    self.slots.batch, self.slots.rows[0] = batch, row
    return self.slots


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "a change that no save sees": (Alone, "note", _never_unsaved),
    "a change that a save sees too late": (Alone, "note", _late_unsaved),
    "a block that forgets its first record": (Alone, "note", _no_first_offset),
    "a slot counted twice": (Alone, "note", _counts_twice),
    "a slot that is taken for the next one": (Alone, "lay_out", _one_further),
    "the end of a block passed over": (Alone, "lay_out", _passes_ends),
}


def seen_or_refused(fold: Callable[[], object]) -> object:
    """What a fold sees; None where a charge out of turn was refused."""
    try:
        return fold()
    except sd.BudgetExceeded:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_is_every_broken_way_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one log, by one learner at least; the unbroken way differs nowhere."""
    rng = np.random.default_rng(3)
    losses = rng.random((90, len(ACTIONS))).astype(np.float32)
    losses[rng.random(90) < 0.2] = np.nan
    log = loss_batch([b"fr", b"de"], rng.integers(0, 2, 90), losses, np.arange(90))
    makers = [
        sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"),
        sd.prefix_softmax(actions=ACTIONS, epsilon="1/2"),
    ]

    def fold() -> Seen:
        return [alone(learner, log, ESTIMATES, 4) for learner in makers]

    long = by_the_long_way(monkeypatch, fold)
    assert fold() == long
    monkeypatch.setattr(*MUTANTS[name])
    assert seen_or_refused(fold) != long


# -- the same of a feedback stream -----------------------------------------------------------------


def shown_log(slots: int, *, seed: int = 5) -> Batch:
    """Slots of five keys (one is beyond the limit): unknown arms, unusable and wild gains too."""
    rng = np.random.default_rng(seed)
    gain = rng.integers(-(2**21), 2**21, slots)
    gain[rng.random(slots) < 0.2] = 0
    keys, played = [b"fr", b"de", None, b"it", b"es"], rng.integers(-2, len(ACTIONS) + 2, slots)
    return feedback_batch(
        keys, rng.integers(0, 5, slots), played.astype(np.int32), gain, np.arange(slots) * 3
    )


def feedback_alone(played: str, log: Batch) -> Seen:
    """All that an engine releases, holds and saves when each slot is a batch."""
    learner = policy_blocks(actions=ACTIONS, epsilon="1/2", played=played)
    machine = sd.Engine(
        stream="home", partition=0, learner=learner, budget="5", limit=4,
        randomness=sd.SeededRandomness(7),
    )  # fmt: skip
    seen: Seen = []
    for at in range(len(log.offsets)):
        seen += list(machine.apply_batch(log.part(slice(at, at + 1))))
        seen += [machine.position, machine.low_water()]
        seen += held(machine)
        if at % 4 == 0:
            seen += machine.save(most=1)
    return [*seen, *machine.ledger.export(), *machine.save(), machine.slots_refused]


@pytest.mark.parametrize("played", ["header", "value"])
def test_is_a_slot_of_feedback_alone_what_it_is_by_the_long_way(
    played: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases, charges, rows, saves and low-water marks: equal; and slots are laid out alone."""
    log, taken = shown_log(150), []

    def watched(self: Alone, slots: BatchSlots) -> None:
        taken.append(slots.rows[0])
        _note(self, slots)

    long = by_the_long_way(monkeypatch, lambda: feedback_alone(played, log))
    monkeypatch.setattr(Alone, "note", watched)
    assert feedback_alone(played, log) == long
    assert 60 < len(taken) < 110  # of 150: the others begin or end something, or get no row


@pytest.mark.parametrize("name", MUTANTS)
def test_is_every_broken_way_of_feedback_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the comparison above."""
    log = shown_log(60)
    long = by_the_long_way(monkeypatch, lambda: feedback_alone("header", log))
    monkeypatch.setattr(*MUTANTS[name])
    assert seen_or_refused(lambda: feedback_alone("header", log)) != long
