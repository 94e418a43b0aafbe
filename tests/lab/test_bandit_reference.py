"""Do the papers' bandit learners have the regret that an independent implementation of each has?

The references are means over 20 runs (5 to 20 for those of late feedback) of another
implementation, with their standard errors; five arms, a million slots. A test fails where the
difference is beyond three standard errors of both together; the seed is fixed.
"""

from __future__ import annotations

from math import hypot

import pytest

from streamdp.lab.papers.learners import BANDIT_RECIPES
from streamdp.lab.papers.play import simulate_bandit, steady

ARMS = ["a", "b", "c", "d", "e"]
GRADED = (0.75, 0.625, 0.5, 0.375, 0.25)
HORIZON = 10**6
LAZY, HELD = {"play": "slot"}, {"play": "held"}

REFERENCES = [
    ("lazy_ucb", LAZY, "1/4", 4701, 115, 10),
    ("lazy_ucb", LAZY, "1", 2533, 41, 10),
    ("lazy_ucb", HELD, "1/2", 3256, 39, 10),
    ("lazy_ucb", HELD, "1", 2412, 19, 10),
    ("lazy_thompson", HELD, "1/4", 1893, 18, 10),
    ("lazy_thompson", HELD, "1/2", 978, 22, 10),
    ("lazy_thompson", HELD, "1", 496, 11, 10),
    ("lazy_thompson", LAZY, "1/2", 1226, 28, 4),
    ("lazy_thompson", {"log": "2"}, "1", 1008, 25, 4),
    ("adap_klucb", {}, "1/2", 2170, 66, 20),
    ("adap_klucb", {}, "1", 1558, 27, 6),
    ("adap_ucb", {}, "1/4", 3712, 51, 10),
    ("dp_se", {"horizon": str(HORIZON)}, "1/2", 3953, 0, 4),
    ("dp_se", {"horizon": str(HORIZON)}, "1", 3780, 94, 10),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "epsilon", "mean", "error", "runs"), REFERENCES)
def test_is_the_regret_that_of_the_reference(
    name: str, options: dict[str, str], epsilon: str, mean: float, error: float, runs: int
) -> None:
    """Within three standard errors; where both are exact, within 1 %."""
    learner = BANDIT_RECIPES[name](actions=ARMS, epsilon=epsilon, **options)
    outcome = simulate_bandit(learner, steady(GRADED), runs=runs, horizon=HORIZON, seed=2026)
    allowed = 3 * hypot(outcome.error, error) or 0.01 * mean
    assert abs(outcome.mean - mean) <= allowed, f"{outcome}, reference {mean} ± {error}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "delay", "mean"), [(LAZY, 1000, 851), (HELD, 1000, 1478), (HELD, 10_000, 2832)]
)
def test_is_holding_worse_where_feedback_is_late(
    options: dict[str, str], delay: int, mean: float
) -> None:
    """Drawing for each impression spreads exploration while answers are outstanding: within 15 %.

    The references are of five runs and have no standard errors.
    """
    learner = BANDIT_RECIPES["lazy_thompson"](actions=ARMS, epsilon="1", **options)
    outcome = simulate_bandit(
        learner, steady(GRADED), runs=4, horizon=HORIZON, seed=2026, delay=delay
    )
    assert abs(outcome.mean - mean) <= 0.15 * mean + 3 * outcome.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "mean"),
    [
        ({"base": "exp3", "horizon": "10000", "constants": "printed"}, 789),
        ({"base": "ftpl", "horizon": "10000", "constants": "printed"}, 789),
    ],
)
def test_are_printed_conversions_no_better_than_uniform_play(
    options: dict[str, str], mean: float
) -> None:
    """At ten thousand slots: 800 is uniform play."""
    learner = BANDIT_RECIPES["converted"](actions=ARMS, epsilon="1", **options)
    world = steady((0.5, 0.4, 0.4, 0.4, 0.4))
    outcome = simulate_bandit(learner, world, runs=2, horizon=10_000, seed=2026)
    assert abs(outcome.mean - mean) <= 0.02 * mean
