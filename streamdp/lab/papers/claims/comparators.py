"""AdaP-KLUCB's own figures, as far as the comparisons with it lean on them.

Reference: Azize & Basu 2022, Fig. 2 and 3; the rules are ours
"""

from __future__ import annotations

from fractions import Fraction

from streamdp.lab.papers.claims import ClaimResult, Effort, Measured
from streamdp.lab.papers.claims.bandits import (
    FIRST,
    KLUCB,
    SUCCESSIVE,
    FigureLearner,
    Rule,
    over_slots,
    regrets,
)

HORIZON = 10**7
PAPER = "Azize & Basu 2022"
UCB = FigureLearner("AdaP-UCB", "adap_ucb")
FAR_APART = (0.8, 0.1, 0.1, 0.1, 0.1)
ONE = Fraction(1)


def adap(size: Effort) -> Measured:
    """Fig. 2: the order at ten million slots. Fig. 3: no price of privacy above ε = 0.3."""
    learners = (KLUCB, UCB, SUCCESSIVE)
    outcomes = regrets(learners, (ONE,), FIRST, size, horizon=HORIZON)
    source = f"{PAPER}, Fig. 2"
    no_more = Rule("the ratio is at most 1 after 10⁷ slots", at_most=1.0)
    many_times = Rule("the ratio is at least 7 after 10⁷ slots", at_least=7.0)
    order = "AdaP-KLUCB loses no more than AdaP-UCB"
    times = "DP-SE loses almost ten times what AdaP-KLUCB does"
    findings = [
        *no_more.at_each(outcomes, (ONE,), KLUCB, UCB, order, source),
        *many_times.at_each(outcomes, (ONE,), SUCCESSIVE, KLUCB, times, source),
        _flat(size),
    ]
    return Measured(findings, over_slots("AdaP-KLUCB, Fig. 2, at ε = 1", learners, outcomes))


def _flat(size: Effort) -> ClaimResult:
    few, many = Fraction(3, 10), Fraction(10)
    outcomes = regrets((KLUCB,), (few, many), FAR_APART, size, horizon=HORIZON)
    says = "means (0.8, 0.1⁴): regret at ε = 0.3 over that at ε = 10 is 0.8 … 1.25 after 10⁷ slots"
    return Rule(says, 0.8, 1.25).of(
        outcomes[KLUCB.name, few],
        outcomes[KLUCB.name, many],
        "above ε = 0.3 privacy costs AdaP-KLUCB nothing where gaps are large",
        f"{PAPER}, Fig. 3",
        KLUCB.name,
    )
