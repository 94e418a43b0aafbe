"""The papers' claims about bandit feedback with independent rewards: figures of regret, and a flaw.

No number can be read off the papers' plots, so the claims are what their texts say: which learner
is below which. A ratio's interval is that of two independent sets of runs (99 %).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Floats
from streamdp.lab.common.cells import epsilon_text
from streamdp.lab.papers.audit import exposure
from streamdp.lab.papers.claims import (
    ClaimResult,
    Curve,
    Effort,
    Measured,
    Picture,
    Z,
    ratio,
)
from streamdp.lab.papers.learners import BANDIT_RECIPES, Bandit
from streamdp.lab.papers.play import BanditOutcome, simulate_bandit, steady

HORIZON = 10**6
FIRST = (0.75, 0.625, 0.5, 0.375, 0.25)
SECOND = (0.5, 0.4, 0.4, 0.4, 0.4)
BUDGETS = (Fraction(1, 4), Fraction(1, 2), Fraction(1))

NEWEST = "Hu et al. 2025"
OLDER = "Hu et al. 2021"

_EACH = 100  # full-information runs for one run here, which takes much longer


@dataclass(frozen=True, slots=True)
class FigureLearner:
    """A learner of a figure."""

    name: str
    recipe: str
    options: tuple[tuple[str, str], ...] = ()

    def made(self, epsilon: Fraction, arms: int, horizon: int) -> Bandit:
        """The learner at an ε."""
        options = dict(self.options)
        if self.recipe == "dp_se":
            options["horizon"] = str(horizon)
        actions = [str(arm) for arm in range(arms)]
        return BANDIT_RECIPES[self.recipe](actions=actions, epsilon=epsilon, **options)


LAZY_UCB = FigureLearner("Anytime-Lazy-UCB", "lazy_ucb")
THOMPSON_2 = FigureLearner("Lazy-DP-TS, log₂", "lazy_thompson", (("log", "2"),))
THOMPSON = FigureLearner("Lazy-DP-TS, ln", "lazy_thompson")
HELD = FigureLearner("Lazy-DP-TS, ln, held", "lazy_thompson", (("play", "held"),))
KLUCB = FigureLearner("AdaP-KLUCB", "adap_klucb")
SUCCESSIVE = FigureLearner("DP-SE", "dp_se")
FIGURE = (LAZY_UCB, THOMPSON_2, THOMPSON, HELD, KLUCB, SUCCESSIVE)


def runs_of(size: Effort) -> int:
    """The number of runs of each learner: 20, as in the papers, at the default size."""
    return max(4, size.runs // _EACH)


def marks_of(horizon: int) -> list[int]:
    """The numbers of slots at which curves have points."""
    return sorted({int(mark) for mark in np.geomspace(1_000, horizon, 12)})


Regrets = Mapping[tuple[str, Fraction], BanditOutcome]


def regrets(
    learners: Sequence[FigureLearner],
    budgets: Sequence[Fraction],
    means: Sequence[float],
    size: Effort,
    *,
    horizon: int,
) -> Regrets:
    """Every learner at every ε, with the regret at ten marks."""
    marks = marks_of(horizon)
    world = steady(means)
    runs = runs_of(size)
    return {
        (shown.name, epsilon): simulate_bandit(
            shown.made(epsilon, len(means), horizon),
            world,
            runs=runs,
            horizon=horizon,
            seed=(size.seed, at),
            marks=marks,
            progress=size.watch(f"{shown.name}, ε = {epsilon_text(epsilon)}", runs),
        )
        for at, shown in enumerate(learners)
        for epsilon in budgets
    }


@dataclass(frozen=True, slots=True)
class Rule:
    """The range in which a claim wants a ratio of two regrets, and how that is said."""

    says: str
    at_least: float = -np.inf
    at_most: float = np.inf

    def of(
        self, top: BanditOutcome, bottom: BanditOutcome, claim: str, source: str, learner: str
    ) -> ClaimResult:
        """Judge the ratio of the regrets of two learners, or of one at two ε."""
        value, low, high = ratio(top.regrets[:, -1], bottom.regrets[:, -1])
        return ClaimResult(
            claim,
            source,
            learner,
            self.says,
            f"{top} against {bottom}: {value:.2f}",
            (low, high),
            len(top.regrets),
            at_least=self.at_least,
            at_most=self.at_most,
        )

    def at_each(
        self,
        outcomes: Regrets,
        budgets: Sequence[Fraction],
        one: FigureLearner,
        other: FigureLearner,
        claim: str,
        source: str,
    ) -> list[ClaimResult]:
        """Judge one learner beside another, at each ε."""
        return [
            self.of(
                outcomes[one.name, epsilon],
                outcomes[other.name, epsilon],
                claim,
                source,
                f"ε = {epsilon_text(epsilon)}",
            )
            for epsilon in budgets
        ]


NO_MORE = Rule("the ratio is at most 1", at_most=1.0)
SIMILAR = Rule("the ratio is 0.8 … 1.25", 0.8, 1.25)


def figure(number: int, means: Sequence[float]) -> Callable[[Effort], Measured]:
    """A figure of regret over slots: five arms, a million slots, three ε."""

    def measured(size: Effort) -> Measured:
        outcomes = regrets(FIGURE, BUDGETS, means, size, horizon=HORIZON)
        newest, older = f"{NEWEST}, Fig. {number}", f"{OLDER}, §5"
        findings = []
        for rule, one, verb, other, source in (
            (NO_MORE, THOMPSON_2, "loses no more than", SUCCESSIVE, newest),
            (NO_MORE, THOMPSON_2, "loses no more than", LAZY_UCB, newest),
            (SIMILAR, THOMPSON_2, "is similar to", KLUCB, newest),
            (NO_MORE, LAZY_UCB, "loses no more than", SUCCESSIVE, older),
        ):
            claim = f"{one.name} {verb} {other.name}"
            findings += rule.at_each(outcomes, BUDGETS, one, other, claim, source)
        title = f"Figure {number}, at ε = 1"
        return Measured(findings, over_slots(title, FIGURE, outcomes))

    return measured


def over_slots(title: str, learners: Sequence[FigureLearner], outcomes: Regrets) -> Picture:
    """Mean regret over slots at ε = 1, each with the band of its interval."""
    curves = []
    for shown in learners:
        outcome = outcomes[shown.name, Fraction(1)]
        slots = np.array(outcome.marks, dtype=np.float64)
        curves.append(Curve.around(shown.name, slots, *spread_of(outcome.regrets), least=1.0))
    return Picture(title, "slots", "regret", curves)


def spread_of(regrets: Floats) -> tuple[Floats, Floats]:
    """The mean over runs and half the width of its interval."""
    half = Z * regrets.std(axis=0, ddof=1) / np.sqrt(len(regrets))
    return regrets.mean(axis=0), half


def flat(size: Effort) -> Measured:
    """DP-SE's regret does not depend on ε in the range of the figures."""
    outcomes = regrets((SUCCESSIVE,), BUDGETS, FIRST, size, horizon=HORIZON)
    few, many = (outcomes[SUCCESSIVE.name, epsilon] for epsilon in (BUDGETS[0], BUDGETS[-1]))
    rule = Rule("regret at ε = 1/4 over that at ε = 1 is 0.8 … 1.25", 0.8, 1.25)
    claim = "the regret of DP-SE is flat in ε"
    return Measured([rule.of(few, many, claim, f"{OLDER}, §5", SUCCESSIVE.name)])


def hybrid(size: Effort) -> Measured:
    """The exact cost of Hybrid-UCB's releases: as printed, and with the array as the root."""
    findings = []
    for root in ("printed", "array"):
        learner = BANDIT_RECIPES["hybrid_ucb"](actions=["a", "b"], epsilon="1", root=root)
        worst = exposure(learner)
        printed = root == "printed"
        findings.append(
            ClaimResult(
                "Hybrid-UCB is ε-differentially private",
                f"{OLDER}, Theorem on Hybrid-UCB" if printed else "ours: the array is the root",
                f"hybrid_ucb:root={root}",
                "the largest log-ratio of releases over all headers and replacements of five slots"
                " is at most ε = 1",
                f"{worst:.4f} ε",
                (worst, worst),
                1,
                at_most=1.0 + 1e-9,
            )
        )
    return Measured(findings)
