"""Is a slot that comes alone exactly what it is among others, whichever way it goes?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.bank import CLEAN
from streamdp.core.engine import Rebuilding, recorded
from streamdp.core.engine.quiet import Quiet, QuietFeedback
from streamdp.core.events import FeedbackBatch, LossBatch
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from tests.support.strategies import ACTIONS, cut, learners, logs

ESTIMATES = [
    sd.estimate("block_regret", epsilon="1/4", min_length=2),
    sd.estimate("null_share", epsilon="1/4", min_length=1),
]
HELD = ("slots", "block", "window", "sums", "totals", "nulls", "first_offset", "first_unsaved")
Seen = list[object]


def engine(learner: sd.Leader, estimates: list[sd.Estimate], operator: sd.NotPrivate) -> sd.Engine:
    """A seeded engine of four keys, watched by an operator."""
    return sd.Engine(
        stream="home", partition=0, learner=learner, budget="5", limit=4, not_private=operator,
        estimates=estimates, randomness=sd.SeededRandomness(7),
    )  # fmt: skip


def alone(learner: sd.Leader, log: LossBatch, estimates: list[sd.Estimate], every: int) -> Seen:
    """All that an engine releases, holds, saves and tells when each slot is a batch."""
    operator = sd.NotPrivate(len(ACTIONS))
    machine = engine(learner, estimates, operator)
    seen: Seen = []
    for number, batch in enumerate(cut(log, range(len(log.offsets)))):
        seen += list(machine.apply_batch(batch))
        seen += [machine.position, machine.low_water(), operator.latest_nulls.tolist()]
        seen += [getattr(machine._bank, name)[: len(machine)].tolist() for name in HELD]
        if number % every == 0:
            seen += machine.save(most=1)
    seen += [*machine.ledger.export(), *machine.save(), machine.slots_refused]
    if len(machine):
        seen += [operator.regrets().tolist(), [operator.nulls(row) for row in range(len(machine))]]
    return seen


def by_the_long_way(monkeypatch: pytest.MonkeyPatch, fold: Callable[[], Seen]) -> Seen:
    """The same with every slot planned, charged and laid out in waves."""
    with monkeypatch.context() as patch:
        patch.setattr(Quiet, "row", lambda self, batch: None)
        return fold()


@pytest.mark.slow
@given(learners(), logs(), st.booleans(), st.integers(1, 9))
def test_is_a_slot_alone_what_it_is_by_the_long_way(
    learner: sd.Leader, log: LossBatch, estimating: bool, every: int
) -> None:
    """Releases, charges, saved rows, low-water marks and what an operator sees: equal."""
    estimates = ESTIMATES if estimating else []
    with pytest.MonkeyPatch.context() as patch:
        long = by_the_long_way(patch, lambda: alone(learner, log, estimates, every))
    assert alone(learner, log, estimates, every) == long


@pytest.mark.slow
@given(learners(), logs())
def test_is_a_slot_alone_quiet_by_public_numbers(learner: sd.Leader, log: LossBatch) -> None:
    """Quiet are the slots that begin and end nothing, by key, slot number and schedule alone."""
    taken: list[bool] = []

    def watched(quiet: Quiet, batch: LossBatch) -> int | None:
        row = plain(quiet, batch)
        taken.append(row is not None)
        return row

    plain = Quiet.row
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Quiet, "row", watched)
        machine = engine(learner, [], sd.NotPrivate(len(ACTIONS)))
        for batch in cut(log, range(len(log.offsets))):
            machine.apply_batch(batch)
    slots: dict[int, int] = {}
    expected = []
    for key in log.index.tolist():
        known = key in slots
        slots[key] = slots.get(key, 0) + 1
        if not known and len(slots) > 4:  # beyond the limit of keys
            del slots[key]
        slot = slots.get(key, 1)
        block = learner.schedule.block_of(slot)
        begins = slot == learner.schedule.start(block) and learner.window == "random_prefix"
        ends = slot + 1 == learner.schedule.stop(block)
        expected.append(known and not begins and not ends and learner.resample == "none")
    assert taken == expected


@pytest.mark.slow
@given(learners(), logs(), st.integers(0, 60))
def test_is_a_rebuild_slot_by_slot_the_engine_that_was(
    learner: sd.Leader, log: LossBatch, upto: int
) -> None:
    """Rows saved midway and the log read again one record at a time: the same rows, no draw."""
    machine = engine(learner, ESTIMATES, sd.NotPrivate(len(ACTIONS)))
    batches = cut(log, range(len(log.offsets)))
    drawn, saved = [], []
    for number, batch in enumerate(batches):
        drawn += list(machine.apply_batch(batch))
        if number == upto:
            saved = machine.save()
    again = Rebuilding(
        engine(learner, ESTIMATES, sd.NotPrivate(len(ACTIONS))),
        rows=saved, releases=recorded(drawn),
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
                getattr(either._bank, name)[: len(machine)] for either in (machine, rebuilt)
            )
            np.testing.assert_array_equal(mine, theirs, err_msg=name)


# -- broken ways, which the comparison above must catch -------------------------------------------

Add = Callable[[Quiet, int, NDArray[np.uint32], NDArray[np.bool_]], None]
_add, _take, _row = Quiet._add, Quiet.take, Quiet.row


def _twice(quiet: Quiet, row: int, losses: NDArray[np.uint32], null: NDArray[np.bool_]) -> None:
    _add(quiet, row, losses, null)
    quiet._bank.sums[row] += losses


def _drops_nulls(
    quiet: Quiet, row: int, losses: NDArray[np.uint32], null: NDArray[np.bool_]
) -> None:
    if not null[0]:
        _add(quiet, row, losses, null)


def _beyond_the_window(quiet: Quiet, row: int) -> bool:
    return True


def _within_less(quiet: Quiet, row: int) -> bool:
    start, _ = quiet._inside.bounds(int(quiet._bank.block[row]))
    drawn = quiet._learner.window == "random_prefix"
    return not drawn or bool(quiet._bank.slots[row] + 2 - start < quiet._bank.window[row])


def _never_unsaved(quiet: Quiet, batch: LossBatch, row: int) -> None:
    before = quiet._bank.first_unsaved[row]
    _take(quiet, batch, row)
    quiet._bank.first_unsaved[row] = before


def _late_unsaved(quiet: Quiet, batch: LossBatch, row: int) -> None:
    clean = quiet._bank.first_unsaved[row] == CLEAN
    _take(quiet, batch, row)
    quiet._bank.first_unsaved[row] += int(clean)


def _no_first_offset(quiet: Quiet, batch: LossBatch, row: int) -> None:
    before = quiet._bank.first_offset[row]
    _take(quiet, batch, row)
    quiet._bank.first_offset[row] = before


def _takes_ends(quiet: Quiet, batch: LossBatch) -> int | None:
    row = quiet._bank.row(batch.keys[0])
    return row if len(batch.index) == 1 and row is not None else None


MUTANTS: dict[str, tuple[str, Any]] = {
    "a slot counted twice": ("_add", _twice),
    "a null slot left out": ("_add", _drops_nulls),
    "a slot beyond the window counted": ("_counts", _beyond_the_window),
    "a window that is one slot short": ("_counts", _within_less),
    "a change that no save sees": ("take", _never_unsaved),
    "a change that a save sees too late": ("take", _late_unsaved),
    "a block that forgets its first record": ("take", _no_first_offset),
    "the end of a block passed over": ("row", _takes_ends),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_is_every_broken_way_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one log, by one learner at least; the unbroken way differs nowhere."""
    rng = np.random.default_rng(3)
    losses = rng.random((90, len(ACTIONS))).astype(np.float32)
    losses[rng.random(90) < 0.2] = np.nan
    log = LossBatch([b"fr", b"de"], rng.integers(0, 2, 90), losses, np.arange(90))
    makers = [
        sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"),
        sd.prefix_softmax(actions=ACTIONS, epsilon="1/2"),
    ]

    def fold() -> Seen:
        return [alone(learner, log, ESTIMATES, 4) for learner in makers]

    long = by_the_long_way(monkeypatch, fold)
    assert fold() == long
    monkeypatch.setattr(Quiet, *MUTANTS[name])
    assert fold() != long


# -- the same of a feedback stream -----------------------------------------------------------------

FEEDBACK_HELD = ("slots", "block", "sums", "shown", "remembered", "first_offset", "first_unsaved")


def shown_log(slots: int, *, seed: int = 5) -> FeedbackBatch:
    """Slots of five keys (one is beyond the limit): unknown arms, unusable and wild gains too."""
    rng = np.random.default_rng(seed)
    gain = rng.integers(-(2**21), 2**21, slots)
    gain[rng.random(slots) < 0.2] = 0
    keys, played = [b"fr", b"de", None, b"it", b"es"], rng.integers(-2, len(ACTIONS) + 2, slots)
    return FeedbackBatch(
        keys, rng.integers(0, 5, slots), played.astype(np.int32), gain, np.arange(slots) * 3
    )


def feedback_alone(played: str, log: FeedbackBatch) -> Seen:
    """All that an engine releases, holds and saves when each slot is a batch."""
    learner = policy_blocks(actions=ACTIONS, epsilon="1/2", played=played)
    machine = sd.Engine(
        stream="home", partition=0, learner=learner, budget="5", limit=4,
        randomness=sd.SeededRandomness(7),
    )  # fmt: skip
    seen: Seen = []
    for at in range(len(log.offsets)):
        one = slice(at, at + 1)
        columns = (log.index[one], log.played[one], log.gain[one], log.offsets[one])
        seen += list(machine.apply_batch(FeedbackBatch(log.keys, *columns)))
        seen += [machine.position, machine.low_water()]
        seen += [getattr(machine._bank, name)[: len(machine)].tolist() for name in FEEDBACK_HELD]
        if at % 4 == 0:
            seen += machine.save(most=1)
    return [*seen, *machine.ledger.export(), *machine.save(), machine.slots_refused]


def feedback_by_the_long_way(monkeypatch: pytest.MonkeyPatch, fold: Callable[[], Seen]) -> Seen:
    """The same with every slot planned, charged and laid out in waves."""
    with monkeypatch.context() as patch:
        patch.setattr(QuietFeedback, "row", lambda self, batch: None)
        return fold()


@pytest.mark.parametrize("played", ["header", "value"])
def test_is_a_slot_of_feedback_alone_what_it_is_by_the_long_way(
    played: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases, charges, rows, saves and low-water marks: equal; and the quiet way is taken."""
    log, taken = shown_log(150), []

    def watched(quiet: QuietFeedback, batch: FeedbackBatch, row: int) -> None:
        taken.append(row)
        _take_shown(quiet, batch, row)

    long = feedback_by_the_long_way(monkeypatch, lambda: feedback_alone(played, log))
    monkeypatch.setattr(QuietFeedback, "take", watched)
    assert feedback_alone(played, log) == long
    assert 60 < len(taken) < 110  # of 150: the others begin or end something, or get no row


_take_shown, _row_shown = QuietFeedback.take, QuietFeedback.row


def _unclipped(quiet: QuietFeedback, batch: FeedbackBatch, row: int) -> None:
    _take_shown(quiet, replace(batch, gain=batch.gain * 0), row)
    if 0 <= batch.played[0] < len(ACTIONS):
        quiet._bank.sums[row, batch.played[0]] += batch.gain[0]


def _counts_nobody_for_the_first(quiet: QuietFeedback, batch: FeedbackBatch, row: int) -> None:
    known = 0 <= batch.played[0] < len(ACTIONS)
    _take_shown(quiet, batch if known else replace(batch, played=batch.played * 0), row)


def _drops_unusable(quiet: QuietFeedback, batch: FeedbackBatch, row: int) -> None:
    _take_shown(quiet, batch, row)
    if not batch.gain[0] and 0 <= batch.played[0] < len(ACTIONS):
        quiet._bank.shown[row, batch.played[0]] -= 1


def _passes_ends(quiet: QuietFeedback, batch: FeedbackBatch) -> int | None:
    return quiet._bank.row(batch.keys[int(batch.index[0])])


FEEDBACK_MUTANTS: dict[str, tuple[str, Any]] = {
    "a gain that is not clipped": ("take", _unclipped),
    "a slot of no arm counted for the first": ("take", _counts_nobody_for_the_first),
    "usable slots counted instead of shown ones": ("take", _drops_unusable),
    "the end of a block passed over": ("row", _passes_ends),
}


@pytest.mark.parametrize("name", FEEDBACK_MUTANTS)
def test_is_every_broken_way_of_feedback_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the comparison above."""
    log = shown_log(60)
    long = feedback_by_the_long_way(monkeypatch, lambda: feedback_alone("header", log))
    monkeypatch.setattr(QuietFeedback, *FEEDBACK_MUTANTS[name])
    assert feedback_alone("header", log) != long
