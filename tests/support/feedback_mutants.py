"""Broken variants of the engine's feedback, and what the audit says of each.

Each is a patch; `MUTANTS` holds it with the learner that it breaks, a pattern that the failure must
match, and the layer of the audit that finds it; `feedback_story_mutants` adds to it. `CHOOSING`
holds broken draws from a policy, and what the sampler of `choose` says.

Beside them stand in `test_audit_bandits.py` the mutants of learners that the service does not
run: the scale that is printed for Hybrid-UCB, advice that is protected, a δ beyond the usual range.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from hashlib import blake2b
from itertools import count
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from streamdp.client import Answer, choosing
from streamdp.client.filtering import allowed, digest
from streamdp.core import calibration
from streamdp.core.arrays import Bools, Columns, Ints
from streamdp.core.bank import Bank, Gathered
from streamdp.core.engine import Engine
from streamdp.core.engine.plan import CarriedOf, Plan, plan
from streamdp.core.engine.releasing import Draws, Ended, Fresh
from streamdp.core.events import NO_ARM, Batch, Key
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import NULL, UNIT
from streamdp.core.kinds import feedback
from streamdp.core.kinds.feedback import FeedbackAdder, FeedbackContents
from streamdp.core.kinds.kind import BitsOf
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.noise import discrete_laplaces
from streamdp.core.randomness import Bits
from streamdp.core.releases import Releases
from streamdp.core.schedule import Schedule
from streamdp.core.segments import BatchSlots
from streamdp.lab.audit.neighbours import innermost
from tests.support.batches import changed
from tests.support.engine_mutants import Mutant, Patch


def made(*, epsilon: str = "1", **options: str) -> PolicyLearner:
    """Elimination computes fastest, and what is audited is the same for every rule."""
    return FEEDBACK_RECIPES["policy_elimination"](actions=["a", "b"], epsilon=epsilon, **options)


MUTANTS: dict[str, Mutant] = {}


def mutant(said: str, *, layer: str = "exact", **options: str) -> Callable[[Patch], Patch]:
    """Register a broken variant, the learner that it breaks, and what the audit says of it."""

    def registered(patch: Patch) -> Patch:
        MUTANTS[patch.__name__] = Mutant(patch, made(**options), said, layer)
        return patch

    return registered


FIELDS = Contexts.read({"device": ["phone"], "country": ["fr"]})


def of_tables(played: str, *, epsilon: str = "1") -> PolicyLearner:
    """A table that gets finer: four cells, two actions."""
    return FEEDBACK_RECIPES["policy_contexts"](
        actions=FIELDS.arms(("a", "b")), epsilon=epsilon, context=FIELDS, played=played
    )


def mutant_of_tables(said: str, *, layer: str = "exact") -> Callable[[Patch], Patch]:
    """The same, of tables that get finer: with public contexts, and with private ones."""

    def registered(patch: Patch) -> Patch:
        for played in ("header", "value"):
            broken = Mutant(patch, of_tables(played), said, layer, longest=8)
            MUTANTS[f"{patch.__name__} by {played}"] = broken
        return patch

    return registered


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
        self: Engine, ended: Ended, paid: Sequence[Bools], draws: Draws, allowed: Bools | None
    ) -> list[Releases]:
        return changed(self, ended, lambda: list(close(self, ended, paid, draws, allowed)))

    patch.setattr(Engine, "_close", other)


@mutant("log-ratio 2 > 1", played="value")
def adds_noise_of_one_over_epsilon_though_actions_are_content(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(feedback, "_SENSITIVITY", {"value": Fraction(1)})


@mutant("log-ratio 2 > 1", played="value")
def adds_half_the_noise_to_losses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PolicyLearner, "scales", property(lambda of: (of.sums_scale, of.sums_scale / 2)))


@mutant("noises of two numbers are not independent", played="value")
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


@mutant("log-ratio 2 > 1")
def adds_half_the_noise(patch: pytest.MonkeyPatch) -> None:
    scale = calibration.laplace_scale
    patch.setattr(calibration, "laplace_scale", lambda *of: scale(*of) / 2)


@mutant("log-ratio 2 > 1", played="value")
def writes_counts_in_place_of_losses(patch: pytest.MonkeyPatch) -> None:
    """(r, 1) in place of (r, 1 − r): leaving one arm and entering another moves 2 for each."""

    def counted(self: PolicyLearner, gains: Ints, shown: Ints) -> Columns:
        return {"rewards": NULL * shown + gains, "losses": UNIT * shown}

    patch.setattr(PolicyLearner, "added", counted)


@mutant("log-ratio 2 > 1")
def reads_the_loss_of_an_arm_that_was_not_shown(patch: pytest.MonkeyPatch) -> None:
    """As with a counterfactual in the content: every arm's sum moves."""

    def all_arms(
        engine: Engine, ended: Ended, close: Callable[[], list[Releases]]
    ) -> list[Releases]:
        sums = engine._bank.private["sums"]
        sums[ended.rows] = sums[ended.rows].sum(axis=1, keepdims=True)
        return close()

    with_closing(patch, all_arms)


@mutant("log-ratio inf > 1")
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


@mutant("log-ratio .* > 1")
def keeps_the_sums_of_the_block_before(patch: pytest.MonkeyPatch) -> None:
    """One observation in two released sums, or more."""

    def keeping(
        engine: Engine, ended: Ended, close: Callable[[], list[Releases]]
    ) -> list[Releases]:
        sums = engine._bank.private["sums"]
        kept = sums[ended.rows].copy()
        waves = close()
        sums[ended.rows] = kept
        return waves

    with_closing(patch, keeping)


@mutant("log-ratio inf > 1")
def counts_usable_events_instead_of_shown_ones(patch: pytest.MonkeyPatch) -> None:
    """Counts are exact because they are public; those of usable events are not."""

    def usable(slots: BatchSlots, batch: Batch) -> Batch:
        played = np.where(batch.content["gain"] == 0, NO_ARM, batch.content["played"]).astype(
            np.int32
        )
        return changed(batch, played=played)

    with_batch(patch, usable)


@mutant("log-ratio .* > 1")
def does_not_clip_gains(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(feedback, "NULL", 10**13)


@mutant("drawn from other sums than the log's", layer="stories")
def imputes_a_null_from_the_slot_before(patch: pytest.MonkeyPatch) -> None:
    """From the thirteenth slot on: beyond what streams are enumerated for."""

    def imputing(slots: BatchSlots, batch: Batch) -> Batch:
        late, played = slots.numbers > 24, batch.content["played"].copy()
        for at in np.flatnonzero((played == NO_ARM) & late).tolist():
            played[at] = played[at - 1]
        return changed(batch, played=played)

    with_batch(patch, imputing)


@mutant("a release does not say what is in force after it", layer="stories")
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


@mutant("noise does not follow the law of its scale")
def draws_with_half_the_scale_that_it_says(patch: pytest.MonkeyPatch) -> None:
    def smaller(scale: Fraction, bits: Bits, count: int, *, position: int = 0) -> Ints:
        return discrete_laplaces(scale / 2, bits, count, position=position)

    patch.setattr(feedback, "discrete_laplaces", smaller)


@mutant("noises of two numbers are not independent")
def draws_once_for_all_arms(patch: pytest.MonkeyPatch) -> None:
    def once(scale: Fraction, bits: Bits, count: int, *, position: int = 0) -> Ints:
        return np.repeat(discrete_laplaces(scale, bits, 1, position=position), count, axis=1)

    patch.setattr(feedback, "discrete_laplaces", once)


@mutant("noises of two numbers are not independent")
def draws_the_same_in_every_block(patch: pytest.MonkeyPatch) -> None:
    bits = Fresh.bits

    def same(self: Fresh, purpose: int, rows: Ints, indices: Ints) -> Bits:
        return bits(self, purpose, rows, indices * 0)

    patch.setattr(Fresh, "bits", same)


@mutant("noise does not follow the law of its scale")
def adds_no_noise_to_an_arm_that_was_not_shown(patch: pytest.MonkeyPatch) -> None:
    """A zero scale: whether an arm has noise tells what is in it."""
    released = Fresh.released

    def sparing(self: Fresh, name: str, rows: Ints) -> Ints:
        drawn, shown = released(self, name, rows), self.bank.private["shown"][rows]
        arms = shown.shape[1]
        drawn[:, :arms] = np.where(shown == 0, 0, drawn[:, :arms])
        return drawn

    patch.setattr(Fresh, "released", sparing)


# -- a table that gets finer ---------------------------------------------------------------------


@mutant_of_tables("log-ratio inf > 1")
def lets_open_sums_choose_the_table(patch: pytest.MonkeyPatch) -> None:
    """A finer one than releases say, where a sum of the block is large."""

    def chosen(engine: Engine, ended: Ended, close: Callable[[], list[Releases]]) -> list[Releases]:
        first = next(iter(engine._bank.private.values()))[ended.rows]
        tables = engine._bank.public["table"]
        tables[ended.rows] = np.where(first.max(axis=1) > 0, 1, tables[ended.rows])
        return close()

    with_closing(patch, chosen)


@mutant_of_tables("log-ratio .* > 1")
def lets_the_next_block_keep_its_sums_where_a_draw_is_even(patch: pytest.MonkeyPatch) -> None:
    """A block whose end follows from what was drawn is drawn from twice."""

    def ended_by_draw(
        engine: Engine, ended: Ended, close: Callable[[], list[Releases]]
    ) -> list[Releases]:
        private = engine._bank.private
        kept = {name: of[ended.rows] for name, of in private.items()}
        waves = close()
        goes_on = waves[0].numbers[:, 0] % 2 == 0
        for name, of in kept.items():
            private[name][ended.rows[goes_on]] = of[goes_on]
        return waves

    with_closing(patch, ended_by_draw)


def with_tables(patch: pytest.MonkeyPatch, several: tuple[int, ...]) -> None:
    """Release some tables one after the other, each with the noise of one."""
    exact = PolicyLearner.exact

    def together(self: PolicyLearner, private: Columns, public: Columns) -> tuple[Ints, Ints]:
        if not isinstance(self.rule, ContextModel):
            return exact(self, private, public)
        rows, many = len(public["table"]), len(self.actions)
        alone = [exact(self, private, {"table": np.full(rows, table)}) for table in several]
        whole, begin = alone[0][0].copy(), 0
        for numbers, noisy in alone:
            size = int(noisy[0])
            for at in range(0, 2 * many if self.pairs else many, many):
                whole[:, at + begin : at + begin + size] = numbers[:, at : at + size]
            begin += size
        return whole, np.full(rows, begin)

    patch.setattr(PolicyLearner, "exact", together)


@mutant_of_tables("not what its law and bits say", layer="stories")
def releases_all_cells_together_and_a_field_at_epsilon_each(patch: pytest.MonkeyPatch) -> None:
    with_tables(patch, (0, 1))


@mutant_of_tables("not what its law and bits say", layer="stories")
def releases_the_tables_of_all_fields_with_the_noise_of_one(patch: pytest.MonkeyPatch) -> None:
    with_tables(patch, (1, 2))


@mutant_of_tables("not what its law and bits say", layer="stories")
def adds_no_noise_to_a_finer_table(patch: pytest.MonkeyPatch) -> None:
    released = Fresh.released

    def exact_if_fine(self: Fresh, name: str, rows: Ints) -> Ints:
        drawn, kind = released(self, name, rows), innermost(self.kind)
        if "table" not in self.bank.public:  # the audit runs other kinds, too
            return drawn
        assert isinstance(kind, PolicyLearner)
        private, public = Gathered(self.bank.private, rows), Gathered(self.bank.public, rows)
        exact, _ = kind.exact(private, public)
        return np.where((public["table"] > 0)[:, None], exact, drawn)

    patch.setattr(Fresh, "released", exact_if_fine)


@mutant_of_tables("log-ratio 2 > 1")
def adds_half_the_noise_to_tables(patch: pytest.MonkeyPatch) -> None:
    scale = calibration.laplace_scale
    patch.setattr(calibration, "laplace_scale", lambda *of: scale(*of) / 2)


# -- draws from a policy -------------------------------------------------------------------------

CHOOSING: dict[str, tuple[str, Patch]] = {}


def broken_draw(said: str) -> Callable[[Patch], Patch]:
    """Register a broken way to choose, and what the audit says of it."""

    def registered(patch: Patch) -> Patch:
        CHOOSING[patch.__name__] = said, patch
        return patch

    return registered


def _with_probability(
    patch: pytest.MonkeyPatch, said: Callable[[Answer, str, Answer], float]
) -> None:
    """Say another probability than the draw's."""
    drawn = choosing.choose

    def choose(answer: Answer, request: str, *cell: Any) -> Answer:
        choice = drawn(answer, request)
        return structs.replace(choice, probability=said(answer, request, choice))

    patch.setattr(choosing, "choose", choose)


@broken_draw("a probability is said that the action was not drawn with")
def says_the_likeliest_actions_probability(patch: pytest.MonkeyPatch) -> None:
    def likeliest(answer: Answer, request: str, choice: Answer) -> float:
        assert answer.held is not None
        return float(np.diff([0, *answer.held.ends]).max()) / PARTS

    _with_probability(patch, likeliest)


@broken_draw("a probability is said that the action was not drawn with")
def says_the_probability_as_if_play_were_uniform(patch: pytest.MonkeyPatch) -> None:
    def uniform(answer: Answer, request: str, choice: Answer) -> float:
        assert answer.held is not None
        return 1 / len(answer.held.ends)

    _with_probability(patch, uniform)


@broken_draw("actions do not follow the policy")
def draws_uniformly_and_says_the_policy(patch: pytest.MonkeyPatch) -> None:
    """An override that nobody logs: what is said is the policy's, and it was not drawn from it."""

    def choose(answer: Answer, request: str, *cell: Any) -> Answer:
        assert answer.held is not None
        actions = answer.held.names.actions
        arm = int.from_bytes(blake2b(request.encode()).digest(), "little") % len(actions)
        share = np.diff([0, *answer.held.ends])[arm]
        return Answer(actions[arm], answer.why, probability=float(share) / PARTS)

    patch.setattr(choosing, "choose", choose)


@broken_draw("draws of one request under two releases are not independent")
def hashes_the_request_alone(patch: pytest.MonkeyPatch) -> None:
    """A request keeps its part for ever: who was unlucky once is so under every policy."""
    patch.setattr(choosing, "hashed_prefix", lambda salt, release: salt.encode())


@broken_draw("a request gets another action when it is asked again")
def tosses_a_coin_of_its_own(patch: pytest.MonkeyPatch) -> None:
    drawn, tosses = choosing.choose, count()

    def choose(answer: Answer, request: str, *cell: Any) -> Answer:
        return drawn(answer, f"{request}-{next(tosses)}")

    patch.setattr(choosing, "choose", choose)


def _allowed_ends(answer: Answer, exclude: Collection[str], back: Collection[str]) -> list[int]:
    """The ends of what is allowed, the last two of what `choose` is asked."""
    assert answer.held is not None
    names = answer.held.names.actions
    mask = np.array([name not in exclude for name in names])
    return allowed(answer.held.ends, mask, np.array([name in back for name in names]))


@broken_draw("without an excluded action, actions do not follow the policy over the others")
def hashes_no_filter(patch: pytest.MonkeyPatch) -> None:
    """Who is asked again keeps its part: of two actions that are left, one is nearly certain."""
    drawn = choosing.choose

    def choose(answer: Answer, request: str, *asked: Any) -> Answer:
        assert answer.held is not None
        ends = array("I", _allowed_ends(answer, *asked[2:]))
        kept = structs.replace(answer.held, ends=ends)
        return drawn(structs.replace(answer, held=kept), request)

    patch.setattr(choosing, "choose", choose)


@broken_draw("a probability is said that the action was not drawn with, of those allowed")
def says_the_probability_of_before_the_filter(patch: pytest.MonkeyPatch) -> None:
    drawn = choosing.choose

    def choose(answer: Answer, request: str, *asked: Any) -> Answer:
        assert answer.held is not None
        choice = drawn(answer, request, *asked)
        share = np.diff([0, *answer.held.ends])[int(choice.action)]
        return structs.replace(choice, probability=float(share) / PARTS)

    patch.setattr(choosing, "choose", choose)


@broken_draw("without an excluded action, actions do not follow the policy over the others")
def shows_the_next_one_instead(patch: pytest.MonkeyPatch) -> None:
    """An excluded action's neighbour gets all of its share, and the right one is said."""
    drawn = choosing.choose

    def choose(answer: Answer, request: str, *asked: Any) -> Answer:
        choice, ends = drawn(answer, request), _allowed_ends(answer, *asked[2:])
        arm = int(choice.action)
        while str(arm) in asked[2] or ends[arm] == (ends[arm - 1] if arm else 0):
            arm = (arm + 1) % len(ends)
        share = np.diff([0, *ends])[arm]
        return structs.replace(choice, action=str(arm), probability=float(share) / PARTS)

    patch.setattr(choosing, "choose", choose)


@broken_draw("a probability is said that the action was not drawn with, of those back")
def waits_for_the_next_policy(patch: pytest.MonkeyPatch) -> None:
    """What is back has no part before its key's next policy, however long that takes."""
    drawn = choosing.choose

    def choose(answer: Answer, request: str, *cell: Any) -> Answer:
        return drawn(answer, request, *cell[:3])

    patch.setattr(choosing, "choose", choose)


@broken_draw("what a newer list allows again does not get its share")
def keeps_the_draw_of_before(patch: pytest.MonkeyPatch) -> None:
    """Who got an action under the older list never gets the one that is back, or always."""
    coded = choosing._coded
    patch.setattr(choosing, "digest", lambda mask: b"" if all(mask) else digest(mask))
    patch.setattr(
        choosing, "_coded", lambda parts: b"" if (of := list(parts)) == [b""] else coded(of)
    )
