"""The 21 panels of Hu et al. 2021: seven ε in three settings of means. Measured if named.

The root of Hybrid-UCB's tree is the array here, which is ε-DP; the printed version plays by the
same noisy sums and releases one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

from streamdp.lab.common.cells import epsilon_text
from streamdp.lab.papers.claims import ClaimResult, Curve, Effort, Measured, Picture, ratio
from streamdp.lab.papers.claims.bandits import (
    FIRST,
    KLUCB,
    LAZY_UCB,
    NO_MORE,
    OLDER,
    SUCCESSIVE,
    THOMPSON,
    FigureLearner,
    Regrets,
    Rule,
    marks_of,
    regrets,
    runs_of,
    spread_of,
)
from streamdp.lab.papers.play import simulate_hybrid, steady

SETTINGS = (
    (0.75, 0.7, 0.7, 0.7, 0.7),
    FIRST,
    (0.75, 0.15, 0.15, 0.15, 0.15),
)
BUDGETS = tuple(Fraction(text) for text in ("0.1", "0.25", "0.5", "1", "8", "64", "128"))
MIDDLE, LARGE = BUDGETS[2:4], BUDGETS[4:]
HORIZON = 1 << 22
HYBRID = FigureLearner("Hybrid-UCB", "hybrid_ucb")
SHOWN = (LAZY_UCB, HYBRID, SUCCESSIVE, THOMPSON, KLUCB)


def panels(size: Effort) -> Measured:
    """The report's sentences about the panels, setting by setting."""
    settings = [panel(means, size, horizon=HORIZON) for means in SETTINGS]
    findings = [
        statement
        for number, outcomes in enumerate(settings, 1)
        for statement in statements(outcomes, f"{OLDER}, §6, mean reward setting {number}")
    ]
    return Measured(findings, _picture(settings[0]))


def panel(means: Sequence[float], size: Effort, *, horizon: int) -> Regrets:
    """Every learner at every ε in one setting."""
    others = [learner for learner in SHOWN if learner is not HYBRID]
    outcomes = dict(regrets(others, BUDGETS, means, size, horizon=horizon))
    hybrids = simulate_hybrid(
        BUDGETS,
        steady(means),
        runs=runs_of(size),
        horizon=horizon,
        seed=(size.seed, len(SHOWN)),
        marks=marks_of(horizon),
        progress=size.watch(f"{HYBRID.name}, every ε, slots", horizon),
    )
    outcomes |= {(HYBRID.name, epsilon): run for epsilon, run in zip(BUDGETS, hybrids, strict=True)}
    return outcomes


COMPETITIVE = Rule("the ratio is at most 1.25", at_most=1.25)
TWICE = Rule("its regret is at least twice that of DP-SE", at_least=2.0)
AT_MOST_THAT = Rule("its regret is at most that of DP-SE", at_most=1.0)


def statements(outcomes: Regrets, source: str) -> list[ClaimResult]:
    """The statements of the text, each at the ε that it names or at all of them."""
    competitive = "Anytime-Lazy-UCB is competitive with DP-SE"
    small = "Hybrid-UCB does not perform well at small ε"
    large = "Hybrid-UCB performs well at large ε"
    ours = f"{THOMPSON.name} loses no more than {SUCCESSIVE.name}"
    findings: list[ClaimResult] = []
    for epsilon in BUDGETS:
        of = source if epsilon in MIDDLE else f"{source} (a plot, no text)"
        findings += COMPETITIVE.at_each(outcomes, (epsilon,), LAZY_UCB, SUCCESSIVE, competitive, of)
    findings += TWICE.at_each(outcomes, MIDDLE, HYBRID, SUCCESSIVE, small, source)
    findings += AT_MOST_THAT.at_each(outcomes, LARGE, HYBRID, SUCCESSIVE, large, source)
    findings += [_falls(outcomes, learner, source) for learner in (LAZY_UCB, HYBRID)]
    findings.append(
        Rule("regret at ε = 0.1 over that at ε = 128 is 0.8 … 1.25", 0.8, 1.25).of(
            outcomes[SUCCESSIVE.name, BUDGETS[0]],
            outcomes[SUCCESSIVE.name, BUDGETS[-1]],
            "the regret of DP-SE is flat in ε",
            source,
            SUCCESSIVE.name,
        )
    )
    beside = "ours, beside the panels"
    return findings + NO_MORE.at_each(outcomes, BUDGETS, THOMPSON, SUCCESSIVE, ours, beside)


def _falls(by_learner: Regrets, shown: FigureLearner, source: str) -> ClaimResult:
    """The worst step from an ε to the next larger one."""
    outcomes = [by_learner[shown.name, epsilon].regrets[:, -1] for epsilon in BUDGETS]
    value, low, high = max(ratio(after, before) for before, after in pairwise(outcomes))
    course = ", ".join(f"{regrets.mean():.0f}" for regrets in outcomes)
    return ClaimResult(
        "the regret of UCB-based learners falls with ε",
        source,
        shown.name,
        "from each ε to the next larger one it grows by a tenth at most",
        f"{value:.2f}; at ε = {epsilon_text(BUDGETS[0])} … {epsilon_text(BUDGETS[-1])}: {course}",
        (low, high),
        len(outcomes[0]),
        at_most=1.1,
    )


def _picture(by_learner: Regrets) -> Picture:
    """The final regret over ε in the first setting, as in Hu et al. 2021, Fig. 5, 10 and 12a."""
    budgets = np.array([float(epsilon) for epsilon in BUDGETS])
    curves = []
    for shown in SHOWN:
        runs = [by_learner[shown.name, epsilon].regrets[:, -1] for epsilon in BUDGETS]
        spread = spread_of(np.stack(runs, axis=1))
        curves.append(Curve.around(shown.name, budgets, *spread, least=1.0, whiskers=True))
    return Picture("Mean reward setting 1: final regret", "ε", "regret", curves)
