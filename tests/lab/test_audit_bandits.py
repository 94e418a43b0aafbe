"""Does the audit catch bandit learners that cost more than they say? Each mutant is a learner or an
engine that is broken in one way; the shipped ones pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import comb, exp, inf
from typing import Any, cast

import numpy as np
import pytest

from streamdp.core.errors import BudgetExceeded, InvalidConfig
from streamdp.core.randomness import Purpose, SeededRandomness
from streamdp.lab.papers.audit import audit_bandit, exposure, noise_follows_its_law
from streamdp.lab.papers.bandit import BanditEngine, BanditRelease, on_grid
from streamdp.lab.papers.experts import ExpertChoice, ExpertEngine
from streamdp.lab.papers.learners import (
    BANDIT_RECIPES,
    EXPERT_RECIPES,
    Bandit,
    Chance,
    Course,
    Part,
)
from streamdp.lab.papers.learners.experts import CellNoise, printed_share

ARMS = ["a", "b"]
SHIPPED = [
    ("lazy_ucb", {}),
    ("lazy_ucb", {"play": "held"}),
    ("lazy_thompson", {}),
    ("lazy_thompson", {"play": "held"}),
    ("adap_ucb", {}),
    ("adap_klucb", {}),
    ("hybrid_ucb", {}),
    ("dp_se", {"horizon": "2"}),
    ("converted", {}),
    ("converted", {"base": "exp3"}),
    ("converted", {"base": "ftpl"}),
]


def made(name: str = "lazy_ucb", epsilon: str = "1", **options: str) -> Bandit:
    return BANDIT_RECIPES[name](actions=ARMS, epsilon=epsilon, **options)


def sampled(learner: Bandit) -> bool:
    """The part of an audit in which the engine draws."""
    return noise_follows_its_law(learner, 300, SeededRandomness(4), BanditEngine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "epsilon"),
    [(name, options, "1/4" if at % 2 else "3") for at, (name, options) in enumerate(SHIPPED)],
)
def test_does_a_shipped_learner_cost_what_it_says(
    name: str, options: dict[str, str], epsilon: str
) -> None:
    """Exposure, long runs and noise; each χ² accuses a sound engine once in 10⁹ tests."""
    learner = made(name, epsilon, **options)
    audit = audit_bandit(learner, samples=400, randomness=SeededRandomness(name + epsilon))
    assert audit.verdict == "holds", audit.failures
    assert audit.worst == pytest.approx(float(Fraction(epsilon)), rel=1e-12) or name == "dp_se"


@pytest.mark.slow
def test_does_hybrid_ucb_as_printed_cost_half_as_much_again() -> None:
    """1.5 ε, which the releases show and the actions do not."""
    printed = made("hybrid_ucb", root="printed")
    audit = audit_bandit(printed, samples=300)
    assert audit.worst == pytest.approx(1.5)
    assert audit.charged == Fraction(3, 2)
    liar = replace(printed, charge=Fraction(1))
    with pytest.raises(BudgetExceeded):
        sampled(liar)


# -- courses that are broken ---------------------------------------------------------------------


@dataclass
class Around:
    """A course around another one; mutants override one answer."""

    course: Course
    releases: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.course, name)

    def released(self, slot: int, arm: int, sums: Sequence[float], chance: Chance) -> None:
        self.releases += 1
        self.course.released(slot, arm, sums[:1], chance)


class RunningTotal(Around):
    """Releases the arm's total beside each phase."""

    def open_from(self, arm: int) -> Sequence[int]:
        return (1, *self.course.open_from(arm))

    def parts(self, arm: int) -> Sequence[Part]:
        (phase,) = self.course.parts(arm)
        return (phase, Part(1, phase.stop, phase.epsilon))


class PhaseNotReset(Around):
    """Every phase begins with the arm's first observation."""

    def open_from(self, arm: int) -> Sequence[int]:
        return (1,)

    def parts(self, arm: int) -> Sequence[Part]:
        (phase,) = self.course.parts(arm)
        return (Part(1, phase.stop, phase.epsilon),)


class ReleasedTwice(Around):
    """A phase is drawn twice, as after a restart that forgot the first draw."""

    def parts(self, arm: int) -> Sequence[Part]:
        return tuple(self.course.parts(arm)) * 2


class ResumedTwice(Around):
    """An open phase is released as far as it is, and drawn anew when it is resumed and full."""

    def _begun(self, arm: int) -> Part | None:
        """The first observation of a longer phase, until it was released."""
        (phase,) = self.course.parts(arm)
        released = self.releases >> arm & 1
        return Part(phase.start, phase.start + 1, phase.epsilon) if not released else None

    def parts(self, arm: int) -> Sequence[Part]:
        begun = self._begun(arm)
        return self.course.parts(arm) if begun is None else (begun,)

    def released(self, slot: int, arm: int, sums: Sequence[float], chance: Chance) -> None:
        (phase,) = self.course.parts(arm)
        if phase.stop == phase.start + 1 or self._begun(arm) is None:
            self.course.released(slot, arm, sums, chance)
            self.releases &= ~(1 << arm)
        else:
            self.releases |= 1 << arm


def broken(course: type[Around], charge: Fraction = Fraction(10)) -> Bandit:
    """Lazy-UCB with a broken course, and a charge so large that its account does not refuse it."""
    learner = made()
    return replace(learner, charge=charge, begin=lambda: cast("Course", course(learner.begin())))


@pytest.mark.slow
@pytest.mark.parametrize("course", [RunningTotal, PhaseNotReset, ReleasedTwice, ResumedTwice])
def test_is_an_observation_in_two_releases_found(course: type[Around]) -> None:
    """The enumeration finds 2 ε or more, and the account refuses it before anything is drawn."""
    assert exposure(broken(course)) >= 2
    with pytest.raises(BudgetExceeded):
        sampled(broken(course, Fraction(1)))


# -- engines that are broken ---------------------------------------------------------------------


class ReadsUnplayed(BanditEngine):
    """Enters every arm's loss, whichever was played."""

    def observe(self, action: str | None, loss: object) -> list[BanditRelease]:
        releases = super().observe(action, loss)
        for other in range(len(self.learner.actions)):
            if self.learner.actions[other] != action:
                releases += self._enter(other, on_grid(loss))
        return releases


class ClosesOnLoss(BanditEngine):
    """Ends a phase when the raw losses reach a level."""

    def _enter(self, arm: int, units: int) -> list[BanditRelease]:
        if units > 1 << 19 and self.slot > 2:
            return []
        return super()._enter(arm, units)


class HalfTheNoise(BanditEngine):
    """Draws with scale 1/(2ε) what is charged ε."""

    def _released(self, arm: int, part: Part, units: int) -> BanditRelease:
        exact = super()._released(arm, replace(part, epsilon=None), units)
        if part.epsilon is None:
            return exact
        noisy = super()._released(arm, part, 0)
        return replace(exact, units=exact.units + noisy.units // 2, epsilon=part.epsilon)


class CreditsByContent(BanditEngine):
    """Takes the arm from the content: a large loss names the other arm."""

    def observe(self, action: str | None, loss: object) -> list[BanditRelease]:
        other = {"a": "b", "b": "a"}
        return super().observe(
            other[action] if action and on_grid(loss) > 1 << 19 else action, loss
        )


class DropsUnusable(BanditEngine):
    """An unusable content takes no place in its arm's phase."""

    def observe(self, action: str | None, loss: object) -> list[BanditRelease]:
        return super().observe(action if isinstance(loss, float) and loss == loss else None, loss)


class TellsRawSums(BanditEngine):
    """Lets the course read a raw loss: it stops resampling early where the loss was large."""

    def _enter(self, arm: int, units: int) -> list[BanditRelease]:
        releases = super()._enter(arm, units)
        if releases and units > 1 << 19:
            self._course.released(self.slot, arm, [0.0], self._chance_of_course())
        return releases

    def _chance_of_course(self) -> Chance:
        return self._draws.chance(Purpose.RESAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "least"),
    [
        (ReadsUnplayed, 2.0),
        (ClosesOnLoss, inf),
        (CreditsByContent, inf),
        (DropsUnusable, inf),
        (TellsRawSums, inf),
    ],
)
def test_is_an_engine_that_reads_too_much_found(engine: type[BanditEngine], least: float) -> None:
    """Other releases, other counts or other plays for neighbours."""
    audit = audit_bandit(made(), samples=100, engine=engine)
    assert audit.worst >= least
    assert audit.verdict == "FAILS"


@pytest.mark.slow
def test_is_half_the_noise_found() -> None:
    """The χ² of the sampler."""
    audit = audit_bandit(made(), samples=1_000, randomness=SeededRandomness(4), engine=HalfTheNoise)
    assert "noise of another law than its charge" in audit.failures


# -- experts -------------------------------------------------------------------------------------


def expert_prices(
    engine: type[ExpertEngine] = ExpertEngine, **options: str | int
) -> tuple[float, list[float]]:
    """The largest log-ratio of one batch's release over replacements of one loss, and all noises.

    The noise is taken away by reading what lies before it; the scales are the released cells'.
    """
    learner = EXPERT_RECIPES[str(options.pop("recipe", "batched_exp4"))](
        actions=ARMS, experts=3, epsilon="1", tau=3, **options
    )
    advice = [[[1, 0], [0, 1], [0.5, 0.5]], [[0, 1], [1, 0], [0.5, 0.5]]]

    def run(losses: Sequence[object]) -> tuple[dict[object, int], tuple[Any, ...]]:
        machine = engine(learner, budget="1", randomness=SeededRandomness(3))
        for at, loss in enumerate(losses[:-1]):
            machine.observe(machine.choose(advice[at % 2]), loss)
        choice = machine.choose(advice[(len(losses) - 1) % 2])
        cells = machine._course.cells(choice.advice, choice.chances, ARMS.index(choice.action))
        sums = dict(machine._sums)
        for cell, weight in cells.items():
            sums[cell] = sums.get(cell, 0) + on_grid(losses[-1]) * weight
        return sums, (dict(machine._course.noises()), tuple(machine._advice))

    worst, base = 0.0, [0.0, 1.0, 0.0]
    sums, public = run(base)
    noises: dict[object, CellNoise] = public[0]
    for at in range(3):
        for content in (0.0, 1.0, float("nan"), "text", 7.0):
            other, others = run([*base[:at], content, *base[at + 1 :]])
            if public != others:
                return inf, []
            price = sum(
                abs(sums.get(cell, 0) - other.get(cell, 0))
                / (1 << 20)
                / float(noises[cell].largest / noises[cell].epsilon)
                for cell in noises
            )
            worst = max(worst, price)
    return worst, [float(noise.epsilon) for noise in noises.values()]


def test_does_a_cell_cost_epsilon_whatever_the_experts() -> None:
    """One cell for each observation, of scale (largest weight)/ε: at most ε, and nearly that."""
    worst, _ = expert_prices()
    assert 0.9 <= worst <= 1
    assert expert_prices(recipe="experts_converted")[0] == pytest.approx(1)


@pytest.mark.parametrize(
    "printed", [{"noise": "printed"}, {"recipe": "improved_batched_exp4"}], ids=str
)
def test_do_printed_sums_cost_their_share_for_each_expert(printed: dict[str, str]) -> None:
    """At most N·e₀ in pure terms, which is less than ε for so few experts."""
    worst, shares = expert_prices(ExpertEngine, delta="1/1000000", **printed)
    assert worst <= sum(shares) <= 1


class ScaleFromLosses(ExpertEngine):
    """Algorithm 7's noise, from the losses that came: none where they were 0."""

    def observe(self, choice: ExpertChoice, loss: object) -> None:
        super().observe(choice, loss)
        course = self._course
        if on_grid(loss) == 0:
            course.cells(choice.advice, choice.chances * 0.5, 0)


class SensitiveAdvice(ExpertEngine):
    """Advice that depends on the loss before."""

    latest: object = 0.0

    def choose(self, advice: object) -> ExpertChoice:
        swapped = np.asarray(advice)[:, ::-1] if on_grid(self.latest) else advice
        return super().choose(swapped)

    def observe(self, choice: ExpertChoice, loss: object) -> None:
        self.latest = loss
        super().observe(choice, loss)


@pytest.mark.parametrize("engine", [ScaleFromLosses, SensitiveAdvice])
def test_is_noise_or_advice_that_reads_losses_found(engine: type[ExpertEngine]) -> None:
    """Neighbours' scales or cells differ: infinite."""
    assert expert_prices(engine)[0] == inf


def delta_of(share: float, epsilon: float, *, experts: int) -> float:
    """The exact δ of N mechanisms of e₀ each at ε (Kairouz, Oh & Viswanath 2015, Theorem 3.3)."""
    total = sum(
        comb(experts, at) * max(0.0, exp((experts - at) * share) - exp(epsilon + at * share))
        for at in range(experts + 1)
    )
    return float(total / (1 + exp(share)) ** experts)


@pytest.mark.parametrize("experts", [2, 20, 124, 400])
@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(1)])
def test_is_the_printed_share_epsilon_delta_private(experts: int, epsilon: Fraction) -> None:
    """The optimal composition of N shares is (ε, δ)-DP; pure where N ≤ 9 ln(1/δ)."""
    delta = Fraction(1, 10**6)
    share = float(printed_share(epsilon, delta, experts=experts))
    assert delta_of(share, float(epsilon), experts=experts) <= delta
    assert (experts * share <= epsilon) == (experts <= 124)


def test_is_a_delta_beyond_the_usual_range_refused() -> None:
    """At δ near 1 the share is larger than ε itself, and its exact δ larger than promised."""
    with pytest.raises(InvalidConfig, match="out of range"):
        printed_share(Fraction(1), Fraction(9, 10), experts=1)
    unbounded = 1 / (3 * (-np.log(0.999)) ** 0.5)
    assert unbounded > 10
    assert delta_of(unbounded, 1.0, experts=1) > 0.999
