"""Does `check_feedback_learner` catch what is broken, and say which promise it broke?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import pytest

from streamdp.core.arrays import Floats, Ints
from streamdp.core.engine.draws import FromRecord
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.evidence.policy_posterior import NoiseVariance
from streamdp.core.evidence.policy_rule import History
from streamdp.core.evidence.policy_rules import Intervals
from streamdp.core.kinds import feedback
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.noise import discrete_laplaces
from streamdp.core.randomness import Bits
from streamdp.lab.kits.feedback_learners import check_feedback_learner
from tests.support.feedback_mutants import with_batch

Change = Callable[[Policy], Policy]


def sound(**options: str) -> PolicyLearner:
    return FEEDBACK_RECIPES["policy_elimination"](
        actions=["a", "b", "c"], epsilon="1", schedule="capped 8", **options
    )


@dataclass(frozen=True)
class Tampered:
    """A rule whose policies are changed. It is told apart by its name, so that digests agree."""

    inner: Intervals
    change: Change = field(compare=False)
    name: str = "intervals"

    @property
    def history(self) -> History:
        return self.inner.history

    def parameters(self) -> Mapping[str, str]:
        return self.inner.parameters()

    def learned(self, state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
        return self.inner.learned(state, gains, shown, noise)

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        return self.change(self.inner.policy(state, lengths))


def with_rule(change: Change, monkeypatch: pytest.MonkeyPatch) -> PolicyLearner:
    """A learner of the registered recipe whose rule was tampered with."""
    made = FEEDBACK_RECIPES["policy_elimination"]

    def tampered(**options: object) -> PolicyLearner:
        whole = made(**options)
        assert isinstance(whole.rule, Intervals)
        return replace(whole, rule=Tampered(whole.rule, change))

    monkeypatch.setitem(FEEDBACK_RECIPES, "policy_elimination", tampered)
    return FEEDBACK_RECIPES["policy_elimination"](
        actions=["a", "b", "c"], epsilon="1", schedule="capped 8"
    )


@pytest.mark.slow
def test_a_sound_learner_passes() -> None:
    """Else what follows would prove nothing."""
    check_feedback_learner(sound())
    check_feedback_learner(sound(played="value"))


def test_a_learner_without_a_recipe_is_caught() -> None:
    with pytest.raises(AssertionError, match="a recipe that is registered"):
        check_feedback_learner(replace(sound(), recipe="home_made"))
    with pytest.raises(AssertionError, match="its configuration is the learner again"):
        check_feedback_learner(replace(sound(), forgetting=Fraction(1, 2)))


@pytest.mark.parametrize("played", ["header", "value"])
def test_noise_that_is_too_small_for_its_charge_is_caught(
    played: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales follow from the sensitivity; a claim of half of it is a charge of half the price."""
    half = {kind: sensitivity / 2 for kind, sensitivity in feedback._SENSITIVITY.items()}
    monkeypatch.setattr(feedback, "_SENSITIVITY", half)
    with pytest.raises(AssertionError, match="a replaced content costs at most the charge"):
        check_feedback_learner(sound(played=played))


def test_a_policy_that_does_not_add_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = with_rule(lambda policy: policy // np.uint32(2), monkeypatch)
    with pytest.raises(AssertionError, match="a policy adds up"):
        check_feedback_learner(subject)


def test_a_policy_that_is_no_function_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that draws: nobody could compute it again."""
    secret = np.random.default_rng(5)

    def drawn(policy: Policy) -> Policy:
        return np.eye(3, dtype=np.uint32)[secret.integers(0, 3, len(policy))] * np.uint32(PARTS)

    with pytest.raises(AssertionError, match="the same seed, the same releases"):
        check_feedback_learner(with_rule(drawn, monkeypatch))


def test_gains_that_are_not_clipped_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "NULL", 1 << 60)
    with pytest.raises(AssertionError, match="a replaced content costs at most the charge"):
        check_feedback_learner(sound())


def test_an_unknown_arm_that_counts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the arm before the last: what names nothing known must add to nothing."""
    with_batch(
        monkeypatch,
        lambda slots, batch: replace(batch, played=np.clip(batch.played, None, 2).astype(np.int32)),
    )
    with pytest.raises(AssertionError, match="unknown arms are null and gains are clipped"):
        check_feedback_learner(sound())


def test_noise_of_another_law_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def wider(scale: Fraction, bits: Bits, count: int, *, position: int = 0) -> Ints:
        return discrete_laplaces(scale * 11 / 10, bits, count, position=position)

    monkeypatch.setattr(feedback, "discrete_laplaces", wider)
    with pytest.raises(AssertionError, match="noise follows the law of its scale"):
        check_feedback_learner(sound())


def test_a_rebuild_that_forgets_a_sum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    released = FromRecord.released

    def forgetting(self: FromRecord, name: str, rows: Ints) -> Ints:
        drawn = released(self, name, rows)
        drawn[:, 3:] = 0  # the counts
        return drawn

    monkeypatch.setattr(FromRecord, "released", forgetting)
    with pytest.raises(Exception, match=r"drawn over other records|goes on as it would|in force"):
        check_feedback_learner(sound())


@pytest.mark.slow
def test_the_audit_has_the_last_word() -> None:
    @dataclass
    class Verdict:
        passed: bool = False
        failures: tuple[str, ...] = ("something",)

    with pytest.raises(AssertionError, match="the audit; something"):
        check_feedback_learner(sound(), audit=lambda subject: Verdict())
