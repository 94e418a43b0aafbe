"""Does every recipe pass the kit, does a newcomer's, and does the kit catch what is broken?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core import learners
from streamdp.core.arrays import Floats
from streamdp.core.engine.releasing import FromRecord
from streamdp.core.evidence import Ints, Standing
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.evidence.policy_posterior import NoiseVariance
from streamdp.core.evidence.policy_rule import History
from streamdp.core.evidence.policy_rules import Intervals
from streamdp.core.kinds import feedback
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.noise import discrete_laplaces
from streamdp.core.randomness import Bits
from streamdp.core.selection import Mechanism, PermuteAndFlip, Prior, Smallest
from streamdp.lab.audit import Memo
from streamdp.lab.commands.audit import SHIPPED
from streamdp.lab.kits.kinds import check_kind
from tests.golden_engine import LEARNERS
from tests.support.batches import changed
from tests.support.command_line import run_command
from tests.support.mutants.feedback import with_batch
from tests.support.mutants.short_streams import folds_what_it_drew_from

pytestmark = pytest.mark.slow

ACTIONS = ("a", "b", "c")
EXAMPLES = Path(__file__).parents[1] / "examples"
CONTRIBUTING = (Path(__file__).parents[2] / ".github" / "CONTRIBUTING.md").read_text()


@pytest.fixture(autouse=True)
def _recipes_of_a_test_end_with_it() -> Iterator[None]:
    """A recipe that a test registers is known to that test alone."""
    before, modules = dict(sd.RECIPES), set(sys.modules)
    yield
    for name in set(sd.RECIPES) - set(before):
        del sd.RECIPES[name]
    for name in set(sys.modules) - modules:
        if name.startswith(learners.__name__):
            del sys.modules[name]


SOUND = list(
    {learner.name: learner for learner in LEARNERS.values() if learner.actions == ACTIONS}.values()
)


MEMO = Memo()
"""What the kit finds of several learners of the unbroken engine."""


AUDITED = {options["recipe"] for options in SHIPPED}


@pytest.mark.parametrize(
    "learner", [learner for learner in SOUND if learner.name not in AUDITED], ids=str
)
def test_does_every_other_learner_pass_the_kit(learner: sd.Leader) -> None:
    """Of each recipe one; those that `test_audit_exact` audits pass there."""
    check_kind(learner, memo=MEMO)


# -- a newcomer's learner ------------------------------------------------------------------------


@pytest.fixture
def newcomer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., sd.Leader]:
    """The example, found as if it had been dropped into the folder of learners."""
    monkeypatch.setattr(learners, "__path__", [*learners.__path__, str(EXAMPLES)])
    import_module(f"{learners.__name__}.tracking_leader")
    return sd.RECIPES["tracking_leader"]


def test_does_a_newcomers_file_pass_the_kit(newcomer: Callable[..., sd.Leader]) -> None:
    """Under 40 lines, and nothing else was touched: it reads from configurations, too."""
    source = (EXAMPLES / "tracking_leader.py").read_text()
    assert len(source.splitlines()) < 40
    check_kind(newcomer(actions=ACTIONS, epsilon="1"), memo=MEMO)
    config = {"recipe": "tracking_leader", "epsilon": "0.5", "longest": "4"}
    short = newcomer(actions=ACTIONS[:2], epsilon="0.5", longest=4)
    assert sd.learner_of(config, actions=ACTIONS[:2]) == short


@pytest.mark.usefixtures("newcomer", "short_blocks")
def test_do_the_commands_know_a_newcomers_learner() -> None:
    """`streamdp audit` and `streamdp simulate` find it by its recipe; it passes."""
    audit = ["audit", "--recipe", "tracking_leader", "--epsilon", "1", "--actions", "2"]
    small = ["--runs", "2", "--slots", "1024", "--epsilon", "1"]
    for arguments in (
        [*audit, "--samples", "1000"],
        ["simulate", "--learners", "tracking_leader", *small],
    ):
        result = run_command(arguments)
        assert result.exit_code == 0, result.output
        assert "tracking_leader" in result.stdout


def test_does_contributing_say_how_in_eight_steps() -> None:
    steps = CONTRIBUTING.partition("## Adding a learner")[2].partition("\n## ")[0]
    numbered = [line for line in steps.splitlines() if line[:2] in {f"{n}." for n in range(1, 9)}]
    assert len(numbered) == 8
    assert "tests/examples/tracking_leader.py" in steps


# -- what is broken ------------------------------------------------------------------------------


Change = Callable[[NDArray[np.int64], int], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Tampered:
    """Permute-and-flip whose winners are changed."""

    inner: PermuteAndFlip
    change: Change
    name: str = "tampered"

    @property
    def rate(self) -> Fraction:
        return self.inner.rate

    def select(
        self, sums: NDArray[np.int64], bits: Bits, prior: Prior | None = None
    ) -> NDArray[np.int64]:
        return self.change(self.inner.select(sums, bits, prior), sums.shape[1])

    def log_probabilities(
        self, sums: NDArray[np.int64], prior: Prior | None = None
    ) -> NDArray[np.float64]:
        return self.inner.log_probabilities(sums, prior)


def leader(choose: Mechanism, charge: Fraction, *, actions: Sequence[str] = ACTIONS) -> sd.Leader:
    return sd.Leader(
        actions=tuple(actions), schedule=sd.capped(8), window="whole", resample="none",
        choose=choose, charge=charge,
    )  # fmt: skip


SECRET = np.random.default_rng(1)


def cheap(*, actions: Sequence[str], epsilon: str) -> sd.Leader:
    return leader(PermuteAndFlip(Fraction(epsilon)), Fraction(epsilon), actions=actions)


def certain(*, actions: Sequence[str], epsilon: str) -> sd.Leader:
    return leader(Smallest(), Fraction(epsilon), actions=actions)


def deaf(*, actions: Sequence[str], epsilon: str) -> sd.Leader:
    return leader(PermuteAndFlip(Fraction(1, 2)), Fraction(1), actions=actions)


def mute(*, actions: Sequence[str], epsilon: str, longest: int = 8) -> sd.Leader:
    sd.capped(longest)  # refuses the text that a configuration holds
    return leader(PermuteAndFlip(Fraction(epsilon) / 2), Fraction(epsilon), actions=actions)


def moody(*, actions: Sequence[str], epsilon: str, mood: str = "") -> sd.Leader:
    mood = mood or str(SECRET.integers(1, 1000))
    rate, charge = Fraction(epsilon) / 2, Fraction(epsilon) + int(mood)
    return leader(PermuteAndFlip(rate), charge, actions=actions)


def tampered(change: Change) -> Callable[..., sd.Leader]:
    """A sound recipe with a mechanism that changes its winners."""

    def broken(*, actions: Sequence[str], epsilon: str) -> sd.Leader:
        choose = Tampered(PermuteAndFlip(Fraction(epsilon) / 2), change)
        return leader(choose, Fraction(epsilon), actions=actions)

    return broken


def by_mood(winners: NDArray[np.int64], actions: int) -> NDArray[np.int64]:
    """Randomness that nobody addressed."""
    return (winners + SECRET.integers(0, actions, len(winners))) % actions


def by_company(winners: NDArray[np.int64], actions: int) -> NDArray[np.int64]:
    """The winner of one row depends on how many others are selected with it."""
    return (winners + len(winners)) % actions


def by_one(winners: NDArray[np.int64], actions: int) -> NDArray[np.int64]:
    """Another law than the one that is claimed."""
    return (winners + 1) % actions


@dataclass(frozen=True, slots=True)
class Sociable:
    """A memory that looks at how many keys vote together."""

    name: str = "sociable"
    width: int = 0
    since: int = 1

    def after(self, standing: Standing, votes: Ints, lengths: Ints) -> Standing:
        return Standing((votes + len(votes)) % 3, standing.remembered)

    def sure_of(self, actions: Ints, lengths: Ints) -> Ints:
        return np.zeros((len(actions), 0), dtype=np.int64)


def sociable(*, actions: Sequence[str], epsilon: str) -> sd.Leader:
    """In force depends on how a log is cut into batches."""
    sound = sd.incumbent_leader(actions=actions, epsilon=epsilon, schedule="capped 2")
    return replace(sound, memory=Sociable())


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (cheap, "log-ratio 2 > 1"),
        (certain, "log-ratio inf > 1"),
        (deaf, "another learner has another digest"),
        (mute, "its configuration can be read: schedule.longest"),
        (moody, "its configuration is the learner again"),
        (tampered(by_mood), "the same seed, the same releases"),
        (tampered(by_company), "no cut changes a release"),
        (tampered(by_one), "releases do not follow their law"),
        (sociable, "no cut changes a release"),
    ],
)
def test_does_the_kit_catch_a_broken_learner(broken: Callable[..., sd.Leader], said: str) -> None:
    """Registered like a stranger's; what it gets wrong is said first."""
    with pytest.raises(AssertionError, match=said):
        check_kind(sd.recipe(broken)(actions=ACTIONS, epsilon="1"))


def test_does_the_kit_catch_a_memory_that_reads_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in force would tell of losses beyond what the votes were charged for.

    The learner passes in `test_audit_exact`, where the engine is sound.
    """
    learner = next(learner for learner in SOUND if learner.name == "remembering_leader")

    folds_what_it_drew_from(monkeypatch)
    said = "log-ratio|is in force|another action was in force"
    with pytest.raises((AssertionError, sd.StateMismatch), match=said):
        check_kind(learner)


def test_does_the_kit_want_a_recipe() -> None:
    """A learner without a recipe cannot be configured."""
    with pytest.raises(AssertionError, match="a recipe that is registered"):
        check_kind(leader(PermuteAndFlip(Fraction(1, 2)), Fraction(1)))


# -- policies -------------------------------------------------------------------------------------

PolicyChange = Callable[[Policy], Policy]


def policies(**options: str) -> PolicyLearner:
    """Its recipe passes in `test_audit_kinds`, by header and by value: else this proved nothing."""
    return FEEDBACK_RECIPES["policy_elimination"](
        actions=["a", "b", "c"], epsilon="1", schedule="capped 8", **options
    )


@dataclass(frozen=True)
class TamperedRule:
    """A rule whose policies are changed. It is told apart by its name, so that digests agree."""

    inner: Intervals
    change: PolicyChange = field(compare=False)
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


def with_rule(change: PolicyChange, monkeypatch: pytest.MonkeyPatch) -> PolicyLearner:
    """A learner of the registered recipe whose rule was tampered with."""
    made = FEEDBACK_RECIPES["policy_elimination"]

    def tampered(**options: object) -> PolicyLearner:
        whole = made(**options)
        assert isinstance(whole.rule, Intervals)
        return replace(whole, rule=TamperedRule(whole.rule, change))

    monkeypatch.setitem(FEEDBACK_RECIPES, "policy_elimination", tampered)
    return FEEDBACK_RECIPES["policy_elimination"](
        actions=["a", "b", "c"], epsilon="1", schedule="capped 8"
    )


def test_a_learner_without_a_recipe_is_caught() -> None:
    with pytest.raises(AssertionError, match="a recipe that is registered"):
        check_kind(replace(policies(), name="home_made"))
    with pytest.raises(AssertionError, match="its configuration is the learner again"):
        check_kind(replace(policies(), forgetting=Fraction(1, 2)))


@pytest.mark.parametrize("played", ["header", "value"])
def test_noise_that_is_too_small_for_its_charge_is_caught(
    played: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales follow from the sensitivity; a claim of half of it is a charge of half the price."""
    half = {kind: sensitivity / 2 for kind, sensitivity in feedback._SENSITIVITY.items()}
    monkeypatch.setattr(feedback, "_SENSITIVITY", half)
    with pytest.raises(AssertionError, match="log-ratio"):
        check_kind(policies(played=played))


def test_a_policy_that_does_not_add_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = with_rule(lambda policy: policy // np.uint32(2), monkeypatch)
    with pytest.raises(AssertionError, match="a policy adds up"):
        check_kind(subject)


def test_a_policy_that_is_no_function_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that draws: nobody could compute it again."""
    secret = np.random.default_rng(5)

    def drawn(policy: Policy) -> Policy:
        return np.eye(3, dtype=np.uint32)[secret.integers(0, 3, len(policy))] * np.uint32(PARTS)

    with pytest.raises(AssertionError, match="the same seed, the same releases"):
        check_kind(with_rule(drawn, monkeypatch))


def test_gains_that_are_not_clipped_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "NULL", 1 << 60)
    with pytest.raises(AssertionError, match="log-ratio"):
        check_kind(policies())


def test_an_unknown_arm_that_counts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the arm before the last: what names nothing known must add to nothing."""
    with_batch(
        monkeypatch,
        lambda slots, batch: changed(
            batch, played=np.clip(batch.content["played"], None, 2).astype(np.int32)
        ),
    )
    with pytest.raises(AssertionError, match="drawn from other sums than the log"):
        check_kind(policies())


def test_noise_of_another_law_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def wider(scale: Fraction, bits: Bits, count: int, *, position: int = 0) -> Ints:
        return discrete_laplaces(scale * 11 / 10, bits, count, position=position)

    monkeypatch.setattr(feedback, "discrete_laplaces", wider)
    with pytest.raises(AssertionError, match="noise does not follow the law"):
        check_kind(policies())


def test_a_rebuild_that_forgets_a_sum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    released = FromRecord.released

    def forgetting(self: FromRecord, name: str, rows: Ints) -> Ints:
        drawn = released(self, name, rows)
        drawn[:, 3:] = 0  # the counts
        return drawn

    monkeypatch.setattr(FromRecord, "released", forgetting)
    with pytest.raises(
        Exception, match=r"drawn over other records|goes on as it would|in force|policy"
    ):
        check_kind(policies())


def test_are_options_of_recipes_readable_from_text() -> None:
    """Every option of every recipe may come from a configuration, so none takes a bool or float."""
    kinds = {"str", "Fraction", "int", "None", "Schedule", "Sequence[str]"}
    for name, made in sd.RECIPES.items():
        for option in signature(made).parameters.values():
            assert option.kind is Parameter.KEYWORD_ONLY, name
            assert set(str(option.annotation).split(" | ")) <= kinds, f"{name}.{option.name}"
