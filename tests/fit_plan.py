"""Fits the constants of `FORMULAS` to simulations: ``python -m tests.fit_plan policy_blocks``.

Every point is the learner simulated until the best action is found, which is seen at a block's end.
The fit is to its logarithm.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from itertools import product

import numpy as np
from scipy.optimize import least_squares

from streamdp.lab.planning import Formula, Wish, plan_for

RUNS = 200
HORIZON = 1 << 25
ACTIONS = (2, 4, 10, 30)
RATES = (0.02, 0.1, 0.5)
GAPS = (0.25, 0.5, 1.0)  # of the rate, at most what is left above it
EPSILONS = ("0.1", "0.5", "2")


def points(text: str) -> list[tuple[Wish, Fraction, float]]:
    """Every combination, and the events until found."""
    wishes = []
    for actions, rate, part, epsilon in product(ACTIONS, RATES, GAPS, EPSILONS):
        gap = min(rate * part, 0.45)
        wish = Wish.of_clicks(text, actions, rate, gap, HORIZON)
        after = plan_for(wish, Fraction(epsilon), runs=RUNS).settled
        if after:
            wishes.append((wish, Fraction(epsilon), float(after)))
    return wishes


def fitted(measured: list[tuple[Wish, Fraction, float]]) -> Formula:
    """The constants that come closest, in the logarithm."""

    def off(constants: np.ndarray) -> np.ndarray:
        formula = Formula(*constants.tolist())
        return np.array([_log_ratio(formula, *point) for point in measured])

    best = least_squares(off, [1.5, 0.5, 5.0], loss="soft_l1", f_scale=0.35)
    return Formula(*np.round(best.x, 2).tolist())


def _log_ratio(formula: Formula, wish: Wish, epsilon: Fraction, after: float) -> float:
    said = formula.events(
        actions=wish.actions, rate=wish.rate, gap=wish.gap, epsilon=float(epsilon)
    )
    return float(np.log(said / after))


def main() -> None:
    """Print the constants, and how far they are off."""
    text = sys.argv[1]
    measured = points(text)
    formula = fitted(measured)
    ratios = np.exp([_log_ratio(formula, *point) for point in measured])
    print(text, formula, f"{len(measured)} points")
    print("formula ÷ simulation:", np.percentile(ratios, [0, 5, 25, 50, 75, 95, 100]).round(2))
    for wish, epsilon, after in measured:
        if not 0.5 < np.exp(_log_ratio(formula, wish, epsilon, after)) < 2:
            print("off:", wish, epsilon, round(after))


if __name__ == "__main__":
    main()
