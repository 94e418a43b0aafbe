"""Are simulated worlds what they say, and do runs side by side play as runs one by one do?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from streamdp.lab.papers.learners import BANDIT_RECIPES, EXPERT_RECIPES, Bandit
from streamdp.lab.papers.learners.hybrid_ucb import TreeCourse
from streamdp.lab.papers.play import (
    BanditOutcome,
    BanditRun,
    NumpyChance,
    Trees,
    WorldLosses,
    simulate_bandit,
    simulate_experts,
    simulate_hybrid,
    steady,
)
from streamdp.lab.worlds import World

ARMS = ["a", "b", "c"]
CHANGING = World.of_rewards("changing", (0.9, 0.1, 0.2), (0.1, 0.8, 0.2))
SHORT = WorldLosses(CHANGING, 300)
ADVERSARY = World.of_rewards(
    "two arms take turns", *[(1.0, 0.0, 0.6), (0.0, 1.0, 0.6)] * 32, yardstick="fixed"
)


def one_by_one(learner: Bandit, world: WorldLosses, *, runs: int, horizon: int) -> BanditOutcome:
    """From release to release, each run apart."""
    regrets = np.empty((runs, 1))
    for run in range(runs):
        played = BanditRun(learner, world.loss, np.random.default_rng((7, run)), horizon).played()
        regrets[run] = world.regret_of(played, (horizon,))
    return BanditOutcome((horizon,), regrets)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "world"),
    [
        ({}, SHORT),
        ({"tau": "3"}, WorldLosses(ADVERSARY, 300)),
        ({"base": "exp3", "horizon": "300"}, steady((0.7, 0.4, 0.4))),
        ({"base": "ftpl", "horizon": "300", "constants": "printed"}, SHORT),
    ],
)
def test_is_regret_side_by_side_that_of_runs_one_by_one(
    options: dict[str, str], world: WorldLosses
) -> None:
    """Means of independent runs: within five standard errors; false alarm below 1e-6."""
    learner = BANDIT_RECIPES["converted"](actions=ARMS, epsilon="1", **options)
    apart = one_by_one(learner, world, runs=8, horizon=300)
    finished: list[int] = []
    together = simulate_bandit(
        learner, world, runs=100, horizon=300, seed=3, progress=finished.append
    )
    error = float(np.hypot(apart.error, together.error))
    assert abs(apart.mean - together.mean) < 5 * error, (str(apart), str(together))
    assert finished == [100]


def test_do_trees_in_rows_play_what_the_shipped_course_plays() -> None:
    """Without noise and with the same rewards: the same arms, slot by slot, for both budgets."""
    budgets, slots = (Fraction(1), Fraction(40)), 600
    rewards = np.random.default_rng(5).random((slots, len(ARMS))) < (0.7, 0.5, 0.45)
    trees = Trees(np.array([1.0, 40.0]), len(ARMS), horizon=slots)
    courses = [TreeCourse(len(ARMS), budget, printed=False) for budget in budgets]
    totals = np.zeros((2, len(ARMS), slots + 1))
    counts = np.zeros((2, len(ARMS)), dtype=int)
    chance = NumpyChance(np.random.default_rng(1))
    for slot in range(slots):
        arms = trees.play(slot + 1)
        for at, course in enumerate(courses):
            arm = int(course.plays(slot + 1, 1, chance)[0])
            assert arm == arms[at], f"slot {slot + 1}"
            counts[at, arm] += 1
            upto, before = totals[at, arm], counts[at, arm] - 1
            upto[before + 1] = upto[before] + 1 - rewards[slot, arm]
            parts = course.parts(arm)
            sums = [float(upto[part.stop - 1] - upto[part.start - 1]) for part in parts]
            course.released(slot + 1, arm, sums, chance)
        trees.learn(arms, rewards[slot, arms].astype(float), np.zeros(2))
    assert (counts.max(axis=1) > 100).all()


def test_are_trees_in_rows_as_noisy_as_the_shipped_ones() -> None:
    """Mean regret at small ε, which noise decides: within five standard errors of the course's."""
    learner = BANDIT_RECIPES["hybrid_ucb"](actions=ARMS, epsilon="4")
    world = steady((0.9, 0.1, 0.1))
    apart = one_by_one(learner, world, runs=10, horizon=300)
    (together,) = simulate_hybrid([Fraction(4)], world, runs=100, horizon=300, seed=(2,))
    error = float(np.hypot(apart.error, together.error))
    assert abs(apart.mean - together.mean) < 5 * error, (str(apart), str(together))


def test_is_regret_against_a_fixed_arm_less_than_against_each_moment() -> None:
    """Arm 0 is the best fixed one (.5 in the mean); arm 1 loses to it first, and wins back."""
    fixed = WorldLosses(replace(CHANGING, yardstick="fixed"), 1000)
    played = np.ones(1000, dtype=np.int64)
    moment = WorldLosses(CHANGING, 1000)
    assert moment.regret_of(played, [500, 1000]).tolist() == pytest.approx([400, 400])
    assert fixed.regret_of(played, [500, 1000]).tolist() == pytest.approx([400, 50])
    assert fixed.regret(np.array([1, 0]), 400, 600).tolist() == pytest.approx([10, 0])


def test_do_beta_rewards_come_for_rows() -> None:
    """The mean of many rows: within five standard errors."""
    world = WorldLosses(World.of_rewards("beta", (0.7, 0.2), concentration=4.0))
    lost = world.losses(np.repeat([0, 1], 2_000), 0, 3, np.random.default_rng(1))
    for arm, mean in enumerate((0.3, 0.8)):
        own = lost[2_000 * arm : 2_000 * (arm + 1)]
        assert abs(own.mean() / 3 - mean) < 5 * (mean * (1 - mean) / 5 / 6_000) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["batched_exp4", "improved_batched_exp4"])
def test_does_it_matter_whether_slots_of_a_batch_are_drawn_together(recipe: str) -> None:
    """Slots of the same advice at once, or each as advice of its own: within five standard errors.

    Printed noise, whose cells are the experts, so that only the draws differ.
    """
    slots, generator = 240, np.random.default_rng(3)
    losses = (generator.random((slots, 3)) < (0.2, 0.5, 0.8)).astype(float)
    contexts = generator.integers(0, 2, slots)
    advice = [np.eye(3)[[0, 1, 2, 0]], np.eye(3)[[0, 2, 1, 1]]]
    printed = {"noise": "printed"} if recipe == "batched_exp4" else {}
    learner = EXPERT_RECIPES[recipe](
        actions=ARMS, experts=4, epsilon="8", delta="1/1000000", tau="12", eta="1/5",
        gamma="1/5", **printed,
    )  # fmt: skip
    together = simulate_experts(learner, losses, advice, contexts, runs=60)
    advice_of_slots = [advice[context] for context in contexts.tolist()]
    apart = simulate_experts(learner, losses, advice_of_slots, np.arange(slots), runs=60, seed=2)
    error = float(np.hypot(together.error, apart.error))
    assert abs(together.mean - apart.mean) < 5 * error, (str(together), str(apart))
