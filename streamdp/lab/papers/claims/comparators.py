"""AdaP-KLUCB's own figures, as far as the comparisons with it lean on them.

Reference: Azize & Basu 2022, Fig. 2 and 3; the rules are ours
"""

from __future__ import annotations

from fractions import Fraction

from streamdp.lab.papers.claims import ClaimResult, Effort, Measured, Picture, ratio, verdict
from streamdp.lab.papers.claims.bandits import (
    FIRST,
    KLUCB,
    SUCCESSIVE,
    FigureLearner,
    compared,
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
    outcomes = regrets((KLUCB, UCB, SUCCESSIVE), (ONE,), FIRST, size, horizon=HORIZON)
    findings = [
        compared(
            outcomes,
            KLUCB,
            UCB,
            ONE,
            ("AdaP-KLUCB loses no more than AdaP-UCB", f"{PAPER}, Fig. 2"),
            rule="the ratio is at most 1 after 10⁷ slots",
            at_most=1.0,
        ),
        compared(
            outcomes,
            SUCCESSIVE,
            KLUCB,
            ONE,
            ("DP-SE loses almost ten times what AdaP-KLUCB does", f"{PAPER}, Fig. 2"),
            rule="the ratio is at least 7 after 10⁷ slots",
            at_least=7.0,
        ),
        _flat(size),
    ]
    curves = over_slots({name: outcome for (name, _), outcome in outcomes.items()})
    picture = Picture("AdaP-KLUCB, Fig. 2, at ε = 1", "slots", "regret", curves)
    return Measured(tuple(findings), picture)


def _flat(size: Effort) -> ClaimResult:
    few, many = Fraction(3, 10), Fraction(10)
    outcomes = regrets((KLUCB,), (few, many), FAR_APART, size, horizon=HORIZON)
    top, bottom = outcomes[KLUCB.name, few], outcomes[KLUCB.name, many]
    value, low, high = ratio(top.regrets[:, -1], bottom.regrets[:, -1])
    return ClaimResult(
        "above ε = 0.3 privacy costs AdaP-KLUCB nothing where gaps are large",
        f"{PAPER}, Fig. 3",
        KLUCB.name,
        "means (0.8, 0.1⁴): regret at ε = 0.3 over that at ε = 10 is 0.8 … 1.25 after 10⁷ slots",
        f"{top} against {bottom}: {value:.2f}",
        low,
        high,
        len(top.regrets),
        verdict(low, high, at_least=0.8, at_most=1.25),
    )
