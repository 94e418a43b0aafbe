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
from streamdp.lab.audit.bandits import exposure
from streamdp.lab.papers.claims import (
    ClaimResult,
    Curve,
    Effort,
    Measured,
    Picture,
    Z,
    ratio,
    verdict,
)
from streamdp.lab.papers.learners import BANDIT_RECIPES, Bandit
from streamdp.lab.papers.play import BanditOutcome, simulate_bandit, steady
from streamdp.lab.replay.cells import epsilon_text

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


def figure(number: int, means: Sequence[float]) -> Callable[[Effort], Measured]:
    """A figure of regret over slots: five arms, a million slots, three ε."""

    def measured(size: Effort) -> Measured:
        outcomes = regrets(FIGURE, BUDGETS, means, size, horizon=HORIZON)
        source = f"{NEWEST}, Fig. {number}"
        findings = [
            *below(outcomes, THOMPSON_2, SUCCESSIVE, BUDGETS, source),
            *below(outcomes, THOMPSON_2, LAZY_UCB, BUDGETS, source),
            *(
                compared(
                    outcomes,
                    THOMPSON_2,
                    KLUCB,
                    epsilon,
                    (f"{THOMPSON_2.name}, is similar to {KLUCB.name}", source),
                    rule="the ratio is 0.8 … 1.25",
                    at_least=0.8,
                    at_most=1.25,
                )
                for epsilon in BUDGETS
            ),
            *below(outcomes, LAZY_UCB, SUCCESSIVE, BUDGETS, f"{OLDER}, §5"),
        ]
        return Measured(tuple(findings), _picture(outcomes, number))

    return measured


def below(
    outcomes: Regrets,
    one: FigureLearner,
    other: FigureLearner,
    budgets: Sequence[Fraction],
    source: str,
) -> list[ClaimResult]:
    """One learner against another, at each ε."""
    claim = f"{one.name} loses no more than {other.name}"
    return [
        compared(
            outcomes,
            one,
            other,
            epsilon,
            (claim, source),
            rule="the ratio is at most 1",
            at_most=1.0,
        )
        for epsilon in budgets
    ]


def compared(
    outcomes: Regrets,
    one: FigureLearner,
    other: FigureLearner,
    epsilon: Fraction,
    said: tuple[str, str],
    *,
    rule: str,
    at_least: float = -np.inf,
    at_most: float = np.inf,
) -> ClaimResult:
    """The ratio of two learners' regrets."""
    top, bottom = outcomes[one.name, epsilon], outcomes[other.name, epsilon]
    value, low, high = ratio(top.regrets[:, -1], bottom.regrets[:, -1])
    return ClaimResult(
        said[0],
        said[1],
        f"ε = {epsilon_text(epsilon)}",
        rule,
        f"{top} against {bottom}: {value:.2f}",
        low,
        high,
        len(top.regrets),
        verdict(low, high, at_least=at_least, at_most=at_most),
    )


def _picture(by_learner: Regrets, number: int) -> Picture:
    outcomes = {shown.name: by_learner[shown.name, Fraction(1)] for shown in FIGURE}
    return Picture(f"Figure {number}, at ε = 1", "slots", "regret", over_slots(outcomes))


def over_slots(outcomes: Mapping[str, BanditOutcome]) -> tuple[Curve, ...]:
    """Mean regret over slots, each with the band of its interval."""
    curves = []
    for name, outcome in outcomes.items():
        mean, half = spread_of(outcome.regrets)
        slots = np.array(outcome.marks, dtype=np.float64)
        low = np.maximum(mean - half, 1.0)
        curves.append(Curve(name, slots, mean, low=low, high=mean + half))
    return tuple(curves)


def spread_of(regrets: Floats) -> tuple[Floats, Floats]:
    """The mean over runs and half the width of its interval."""
    half = Z * regrets.std(axis=0, ddof=1) / np.sqrt(len(regrets))
    return regrets.mean(axis=0), half


def flat(size: Effort) -> Measured:
    """DP-SE's regret does not depend on ε in the range of the figures."""
    outcomes = regrets((SUCCESSIVE,), BUDGETS, FIRST, size, horizon=HORIZON)
    value, low, high = ratio(
        outcomes[SUCCESSIVE.name, BUDGETS[0]].regrets[:, -1],
        outcomes[SUCCESSIVE.name, BUDGETS[-1]].regrets[:, -1],
    )
    return Measured(
        (
            ClaimResult(
                "the regret of DP-SE is flat in ε",
                f"{OLDER}, §5",
                SUCCESSIVE.name,
                "regret at ε = 1/4 over that at ε = 1 is 0.8 … 1.25",
                f"{value:.2f}",
                low,
                high,
                runs_of(size),
                verdict(low, high, at_least=0.8, at_most=1.25),
            ),
        )
    )


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
                worst,
                worst,
                1,
                verdict(worst, worst, at_most=1.0 + 1e-9),
            )
        )
    return Measured(tuple(findings))
