"""Broken variants of the engine's feedback that short streams or samples show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from streamdp.core import calibration
from streamdp.core.arrays import Bools, Columns, Ints
from streamdp.core.bank import Bank
from streamdp.core.engine import Engine
from streamdp.core.engine.plan import CarriedOf, Plan, plan
from streamdp.core.engine.releasing import Draws, Ended, Fresh
from streamdp.core.events import NO_ARM, Batch, Key
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import NULL, UNIT
from streamdp.core.kinds import feedback
from streamdp.core.kinds.feedback import FeedbackAdder, FeedbackContents
from streamdp.core.kinds.kind import BitsOf
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.noise import discrete_laplaces
from streamdp.core.randomness import Bits
from streamdp.core.releases import Releases
from streamdp.core.schedule import Schedule
from streamdp.core.segments import BatchSlots
from tests.support.batches import changed
from tests.support.mutants.table import (
    BY_HEADER,
    BY_VALUE,
    TABLES_BY_HEADER,
    TABLES_BY_VALUE,
    mutant,
)

MANY = tuple(replace(kind, actions=tuple("abcde")) for kind in (BY_HEADER, BY_VALUE))

Adding = Callable[[BatchSlots, FeedbackContents], None]
Close = Callable[[], list[Releases]]
Closing = Callable[[Engine, Ended, Close], list[Releases]]


def with_contents(patch: pytest.MonkeyPatch, changed: Adding) -> None:
    """Change what batches add to sums and counts."""
    contents = FeedbackAdder.contents

    def other(self: FeedbackAdder, slots: BatchSlots, bits: BitsOf) -> FeedbackContents:
        added = contents(self, slots, bits)
        changed(slots, added)
        return added

    patch.setattr(FeedbackAdder, "contents", other)


def with_batch(patch: pytest.MonkeyPatch, changed: Callable[[BatchSlots, Batch], Batch]) -> None:
    """Change a batch before it is added, with the places of its slots as they are."""
    contents = FeedbackAdder.contents

    def other(self: FeedbackAdder, slots: BatchSlots, bits: BitsOf) -> FeedbackContents:
        return contents(self, replace(slots, batch=changed(slots, slots.batch)), bits)

    patch.setattr(FeedbackAdder, "contents", other)


def with_closing(patch: pytest.MonkeyPatch, changed: Closing) -> None:
    """Change what happens where blocks end: `changed` gets what closes them as shipped."""
    close = Engine._close

    def other(
        self: Engine, ended: Ended, paid: Sequence[Bools], draws: Draws, batch: Batch
    ) -> list[Releases]:
        return changed(self, ended, lambda: list(close(self, ended, paid, draws, batch)))

    patch.setattr(Engine, "_close", other)


@mutant(BY_VALUE, TABLES_BY_VALUE, layer="streams", said="log-ratio [23] > 1")
def adds_noise_of_one_over_epsilon_though_actions_are_content(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(feedback, "_SENSITIVITY", {"value": Fraction(1)})


@mutant(BY_VALUE, TABLES_BY_VALUE, layer="streams", said="log-ratio .* > 1")
def adds_half_the_noise_to_losses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PolicyLearner, "scales", property(lambda of: (of.sums_scale, of.sums_scale / 2)))


@mutant(BY_VALUE, TABLES_BY_VALUE, layer="streams", said="log-ratio inf > 1")
def takes_counts_for_public_though_actions_are_content(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PolicyLearner, "pairs", property(lambda of: False))


@mutant(BY_VALUE, layer="samples", said="noises of two numbers are not independent")
def publishes_counts_exactly_though_actions_are_content(patch: pytest.MonkeyPatch) -> None:
    """What it adds to an arm's rewards it takes off its losses: their sum is the exact count."""
    released = Fresh.released

    def paired(self: Fresh, name: str, rows: Ints) -> Ints:
        drawn, private = released(self, name, rows), self.bank.private
        count = private["rewards"][rows] + private["losses"][rows]
        arms = count.shape[1]
        drawn[:, arms:] = count - drawn[:, :arms]
        return drawn

    patch.setattr(Fresh, "released", paired)


@mutant(BY_HEADER, TABLES_BY_HEADER, TABLES_BY_VALUE, layer="streams", said="log-ratio 2 > 1")
def adds_half_the_noise(patch: pytest.MonkeyPatch) -> None:
    scale = calibration.laplace_scale
    patch.setattr(calibration, "laplace_scale", lambda *of: scale(*of) / 2)


@mutant(*MANY, layer="sums", said="sums of 5 actions: log-ratio 2 > 1")
@mutant(MANY[0], layer="idle keys", said="sums costs more than is charged")
def halves_the_noise_of_many_actions(patch: pytest.MonkeyPatch) -> None:
    """Streams are enumerated for two actions."""
    scales = PolicyLearner.scales.fget  # type: ignore[attr-defined]

    def smaller(self: PolicyLearner) -> tuple[Fraction, ...]:
        half = 2 if len(self.actions) > 3 else 1
        return tuple(scale and scale / half for scale in scales(self))

    patch.setattr(PolicyLearner, "scales", property(smaller))


@mutant(BY_VALUE, layer="streams", said="log-ratio 2 > 1")
def writes_counts_in_place_of_losses(patch: pytest.MonkeyPatch) -> None:
    """(r, 1) in place of (r, 1 − r): leaving one arm and entering another moves 2 for each."""

    def counted(self: PolicyLearner, gains: Ints, shown: Ints) -> Columns:
        return {"rewards": NULL * shown + gains, "losses": UNIT * shown}

    patch.setattr(PolicyLearner, "added", counted)


@mutant(BY_HEADER, layer="streams", said="log-ratio 2 > 1")
def reads_the_loss_of_an_arm_that_was_not_shown(patch: pytest.MonkeyPatch) -> None:
    """As with a counterfactual in the content: every arm's sum moves."""

    def all_arms(
        engine: Engine, ended: Ended, close: Callable[[], list[Releases]]
    ) -> list[Releases]:
        sums = engine._bank.private["sums"]
        sums[ended.rows] = sums[ended.rows].sum(axis=1, keepdims=True)
        return close()

    with_closing(patch, all_arms)


@mutant(BY_HEADER, layer="streams", said="log-ratio inf > 1")
def ends_a_block_when_enough_was_usable(patch: pytest.MonkeyPatch) -> None:
    """A boundary that depends on content: slots without gain are not taken."""

    def usable(
        bank: Bank,
        schedule: Schedule,
        batch: Batch,
        *,
        limit: int,
        carried_of: CarriedOf,
        away: Collection[Key],
    ) -> Plan:
        keep = batch.content["gain"] != 0
        kept = batch.part(keep)
        return plan(bank, schedule, kept, limit=limit, carried_of=carried_of, away=away)

    patch.setattr("streamdp.core.engine.machine.plan", usable)


@mutant(BY_HEADER, layer="streams", said="log-ratio inf > 1")
def counts_usable_events_instead_of_shown_ones(patch: pytest.MonkeyPatch) -> None:
    """Counts are exact because they are public; those of usable events are not."""

    def usable(slots: BatchSlots, batch: Batch) -> Batch:
        played = np.where(batch.content["gain"] == 0, NO_ARM, batch.content["played"]).astype(
            np.int32
        )
        return changed(batch, played=played)

    with_batch(patch, usable)


@mutant(BY_HEADER, layer="streams", said="log-ratio .* > 1")
def does_not_clip_gains(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(feedback, "NULL", 10**13)


@mutant(BY_HEADER, layer="nulls everywhere", said="drawn from other sums than the log's")
def clips_gains_by_their_size(patch: pytest.MonkeyPatch) -> None:
    """The least integer has no positive one of its size."""

    def clipped(slots: BatchSlots, batch: Batch) -> Batch:
        gain = batch.content["gain"]
        return changed(batch, gain=np.where(np.abs(gain) > NULL, np.sign(gain) * NULL, gain))

    patch.setattr(feedback, "NULL", 2**63 - 1)
    with_batch(patch, clipped)


@mutant(BY_HEADER, layer="nulls everywhere", said="drawn from other sums than the log's")
def counts_arms_from_the_end(patch: pytest.MonkeyPatch) -> None:
    """A number below that of no arm names one, which no header may have said."""

    def wrapped(slots: BatchSlots, batch: Batch) -> Batch:
        played = batch.content["played"]
        return changed(batch, played=np.where(played < NO_ARM, 0, played))

    with_batch(patch, wrapped)


@mutant(BY_HEADER, layer="nulls everywhere", said="drawn from other sums than the log's")
def imputes_a_null_from_the_slot_before(patch: pytest.MonkeyPatch) -> None:
    """From the thirteenth slot on: beyond what streams are enumerated for."""

    def imputing(slots: BatchSlots, batch: Batch) -> Batch:
        late, played = slots.numbers > 24, batch.content["played"].copy()
        for at in np.flatnonzero((played == NO_ARM) & late).tolist():
            played[at] = played[at - 1]
        return changed(batch, played=played)

    with_batch(patch, imputing)


@mutant(
    BY_HEADER, layer="nulls everywhere", said="a release does not say what is in force after it"
)
def reads_an_exact_sum_for_the_policy(patch: pytest.MonkeyPatch) -> None:
    def reading(
        engine: Engine, ended: Ended, close: Callable[[], list[Releases]]
    ) -> list[Releases]:
        best = engine._bank.private["sums"][ended.rows].argmax(axis=1)
        (wave,) = close()
        policy = np.zeros_like(wave.in_force)
        policy[np.arange(len(best)), best] = PARTS
        return [replace(wave, in_force=policy)]

    with_closing(patch, reading)


@mutant(BY_HEADER, layer="samples", said="noise does not follow the law of its scale")
def draws_with_half_the_scale_that_it_says(patch: pytest.MonkeyPatch) -> None:
    def smaller(scale: Fraction, bits: Bits, count: int, *, position: int = 0) -> Ints:
        return discrete_laplaces(scale / 2, bits, count, position=position)

    patch.setattr(feedback, "discrete_laplaces", smaller)


@mutant(BY_HEADER, layer="races", said="noise of a rare word")
def draws_no_noise_beyond_thirty_scales(patch: pytest.MonkeyPatch) -> None:
    """Once in 10¹³ draws it tells what no ε allows."""

    def bounded(scale: Fraction, bits: Bits, count: int, *, position: int = 0) -> Ints:
        most = int(30 * scale)
        return np.clip(discrete_laplaces(scale, bits, count, position=position), -most, most)

    patch.setattr(feedback, "discrete_laplaces", bounded)


@mutant(BY_HEADER, layer="samples", said="noises of two numbers are not independent")
def draws_once_for_all_arms(patch: pytest.MonkeyPatch) -> None:
    def once(scale: Fraction, bits: Bits, count: int, *, position: int = 0) -> Ints:
        return np.repeat(discrete_laplaces(scale, bits, 1, position=position), count, axis=1)

    patch.setattr(feedback, "discrete_laplaces", once)


@mutant(BY_HEADER, layer="samples", said="noises of two numbers are not independent")
def draws_the_same_in_every_block(patch: pytest.MonkeyPatch) -> None:
    bits = Fresh.bits

    def same(self: Fresh, purpose: int, rows: Ints, indices: Ints) -> Bits:
        return bits(self, purpose, rows, indices * 0)

    patch.setattr(Fresh, "bits", same)


@mutant(BY_HEADER, layer="samples", said="noise does not follow the law of its scale")
def adds_no_noise_to_an_arm_that_was_not_shown(patch: pytest.MonkeyPatch) -> None:
    """A zero scale: whether an arm has noise tells what is in it."""
    released = Fresh.released

    def sparing(self: Fresh, name: str, rows: Ints) -> Ints:
        drawn, shown = released(self, name, rows), self.bank.private["shown"][rows]
        arms = shown.shape[1]
        drawn[:, :arms] = np.where(shown == 0, 0, drawn[:, :arms])
        return drawn

    patch.setattr(Fresh, "released", sparing)


@mutant(BY_HEADER, layer="samples", said="noise does not follow the law of its scale")
def releases_exact_sums(patch: pytest.MonkeyPatch) -> None:
    """A feedback stream without noise."""

    def exact(self: Fresh, name: str, rows: Ints) -> Ints:
        private = self.bank.private
        return np.concatenate([private["sums"][rows], private["shown"][rows]], axis=1)

    patch.setattr(Fresh, "released", exact)
