"""Broken variants of the engine's feedback, and what the audit says of each.

Each is a patch; `MUTANTS` holds it with the learner that it breaks, a pattern that the failure must
match, and the layer of the audit that finds it; `feedback_story_mutants` adds to it. `CHOOSING`
holds broken draws from a policy, and what the sampler of `choose` says.

Beside them stand in `tests/test_audit_bandits.py` the mutants of learners that the service does not
run: the scale that is printed for Hybrid-UCB, advice that is protected, a δ beyond the usual range.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import blake2b
from itertools import count

import numpy as np
import pytest
from msgspec import structs

from streamdp.client import Answer, choosing
from streamdp.core import calibration
from streamdp.core.arrays import Ints
from streamdp.core.bank import Bank
from streamdp.core.engine import draws
from streamdp.core.engine.draws import Draws, Fresh
from streamdp.core.engine.feedback import FeedbackBlocks
from streamdp.core.engine.plan import Batch, Heritage, Plan, plan
from streamdp.core.engine.waves import Ended, Wave
from streamdp.core.events import NO_ARM, FeedbackBatch, Key
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import NULL, UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner, learner
from streamdp.core.noise import discrete_laplaces
from streamdp.core.randomness import Bits
from streamdp.core.schedule import Schedule

Patch = Callable[[pytest.MonkeyPatch], None]


def made(*, epsilon: str = "1", **options: str) -> PolicyLearner:
    """Elimination computes fastest, and what is audited is the same for every rule."""
    return FEEDBACK_RECIPES["policy_elimination"](actions=["a", "b"], epsilon=epsilon, **options)


@dataclass(frozen=True)
class Mutant:
    """A broken engine, and the learner that it breaks."""

    patch: Patch
    subject: PolicyLearner
    said: str  # what the audit finds
    layer: str  # of the audit: "short", or as in `feedback_story_mutants`


MUTANTS: dict[str, Mutant] = {}


def mutant(said: str, *, layer: str = "short", **options: str) -> Callable[[Patch], Patch]:
    """Register a broken variant, the learner that it breaks, and what the audit says of it."""

    def registered(patch: Patch) -> Patch:
        MUTANTS[patch.__name__] = Mutant(patch, made(**options), said, layer)
        return patch

    return registered


@mutant("log-ratio 3 > 1", played="value")
def adds_noise_of_one_over_epsilon_though_counts_are_content(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(learner._SENSITIVITY, "value", Fraction(1))


@mutant("log-ratio 2 > 1")
def adds_half_the_noise(patch: pytest.MonkeyPatch) -> None:
    scale = calibration.laplace_scale
    patch.setattr(calibration, "laplace_scale", lambda *of: scale(*of) / 2)


@mutant("log-ratio 1.333 > 1", played="value")
def sums_gains_that_are_not_centred(patch: pytest.MonkeyPatch) -> None:
    """Rewards in [0, 1]: leaving one arm and entering another moves two sums by 1 each."""
    added = FeedbackBlocks.added

    def uncentred(self: FeedbackBlocks, planned: Plan) -> object:
        sums = added(self, planned)
        return replace(sums, gains=sums.gains + NULL)

    patch.setattr(FeedbackBlocks, "added", uncentred)


@mutant("log-ratio 2 > 1")
def reads_the_loss_of_an_arm_that_was_not_shown(patch: pytest.MonkeyPatch) -> None:
    """As with a counterfactual in the content: every arm's sum moves."""
    close = FeedbackBlocks.close

    def all_arms(self: FeedbackBlocks, ended: Ended, drawn: Draws) -> Iterator[Wave]:
        sums = self._bank.sums[ended.rows].sum(axis=1, keepdims=True)
        self._bank.sums[ended.rows] = sums
        yield from close(self, ended, drawn)

    patch.setattr(FeedbackBlocks, "close", all_arms)


@mutant("log-ratio inf > 1")
def ends_a_block_when_enough_was_usable(patch: pytest.MonkeyPatch) -> None:
    """A boundary that depends on content: slots without gain are not taken."""

    def usable(
        bank: Bank,
        schedule: Schedule,
        batch: Batch,
        *,
        limit: int,
        heritage: Heritage,
        away: Collection[Key],
    ) -> Plan:
        assert isinstance(batch, FeedbackBatch)
        keep = batch.gain != 0
        kept = FeedbackBatch(
            batch.keys, batch.index[keep], batch.played[keep], batch.gain[keep], batch.offsets[keep]
        )
        return plan(bank, schedule, kept, limit=limit, heritage=heritage, away=away)

    patch.setattr("streamdp.core.engine.machine.plan", usable)


@mutant("log-ratio .* > 1")
def keeps_the_sums_of_the_block_before(patch: pytest.MonkeyPatch) -> None:
    """One observation in two released sums, or more."""
    close = FeedbackBlocks.close

    def keeping(self: FeedbackBlocks, ended: Ended, drawn: Draws) -> Iterator[Wave]:
        kept = self._bank.sums[ended.rows].copy()
        yield from close(self, ended, drawn)
        self._bank.sums[ended.rows] = kept

    patch.setattr(FeedbackBlocks, "close", keeping)


@mutant("log-ratio inf > 1")
def counts_usable_events_instead_of_shown_ones(patch: pytest.MonkeyPatch) -> None:
    """Counts are exact because they are public; those of usable events are not."""
    added = FeedbackBlocks.added

    def usable(self: FeedbackBlocks, planned: Plan) -> object:
        batch = planned.batch
        assert isinstance(batch, FeedbackBatch)
        played = np.where(batch.gain == 0, NO_ARM, batch.played).astype(np.int32)
        return added(self, replace(planned, batch=replace(batch, played=played)))

    patch.setattr(FeedbackBlocks, "added", usable)


@mutant("log-ratio .* > 1")
def does_not_clip_gains(patch: pytest.MonkeyPatch) -> None:
    from streamdp.core.engine import feedback

    patch.setattr(feedback, "NULL", 10**13)


@mutant("other sums than the log's", layer="stories")
def imputes_a_null_from_the_slot_before(patch: pytest.MonkeyPatch) -> None:
    """From the thirteenth slot on: beyond what streams are enumerated for."""
    added = FeedbackBlocks.added

    def imputing(self: FeedbackBlocks, planned: Plan) -> object:
        batch, late = planned.batch, planned.slots > 24
        assert isinstance(batch, FeedbackBatch)
        played = batch.played.copy()
        for at in np.flatnonzero((played == NO_ARM) & late).tolist():
            played[at] = played[at - 1]
        return added(self, replace(planned, batch=replace(batch, played=played)))

    patch.setattr(FeedbackBlocks, "added", imputing)


@mutant("a policy is not what its releases say", layer="stories")
def reads_an_exact_sum_for_the_policy(patch: pytest.MonkeyPatch) -> None:
    close = FeedbackBlocks.close

    def reading(self: FeedbackBlocks, ended: Ended, drawn: Draws) -> Iterator[Wave]:
        exact = self._bank.sums[ended.rows] / UNIT
        for wave in close(self, ended, drawn):
            columns = wave.feedback
            assert columns is not None
            best = exact.argmax(axis=1)
            policy = np.zeros_like(columns.policy)
            policy[np.arange(len(best)), best] = 1 << 24
            yield replace(wave, feedback=replace(columns, policy=policy))

    patch.setattr(FeedbackBlocks, "close", reading)


@mutant("noise does not follow the law of its scale")
def draws_with_half_the_scale_that_it_says(patch: pytest.MonkeyPatch) -> None:
    def smaller(scale: Fraction, bits: Bits, count: int, *, position: int = 0) -> Ints:
        return discrete_laplaces(scale / 2, bits, count, position=position)

    patch.setattr(draws, "discrete_laplaces", smaller)


@mutant("noises of two numbers are not independent")
def draws_once_for_all_arms(patch: pytest.MonkeyPatch) -> None:
    def once(scale: Fraction, bits: Bits, count: int, *, position: int = 0) -> Ints:
        return np.repeat(discrete_laplaces(scale, bits, 1, position=position), count, axis=1)

    patch.setattr(draws, "discrete_laplaces", once)


@mutant("noises of two numbers are not independent")
def draws_the_same_in_every_block(patch: pytest.MonkeyPatch) -> None:
    bits = Fresh.bits

    def same(self: Fresh, bank: Bank, rows: Ints, purpose: int, indices: Ints) -> Bits:
        return bits(self, bank, rows, purpose, indices * 0)

    patch.setattr(Fresh, "bits", same)


@mutant("noise does not follow the law of its scale")
def adds_no_noise_to_an_arm_that_was_not_shown(patch: pytest.MonkeyPatch) -> None:
    """A zero scale: whether an arm has noise tells what is in it."""
    sums = Fresh.sums

    def sparing(self: Fresh, bank: Bank, rows: Ints) -> tuple[Ints, Ints]:
        gains, shown = sums(self, bank, rows)
        return np.where(bank.shown[rows] == 0, 0, gains), shown

    patch.setattr(Fresh, "sums", sparing)


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

    def choose(answer: Answer, request: str, actions: tuple[str, ...]) -> Answer:
        choice = drawn(answer, request, actions)
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

    def choose(answer: Answer, request: str, actions: tuple[str, ...]) -> Answer:
        assert answer.held is not None
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

    def choose(answer: Answer, request: str, actions: tuple[str, ...]) -> Answer:
        return drawn(answer, f"{request}-{next(tosses)}", actions)

    patch.setattr(choosing, "choose", choose)
