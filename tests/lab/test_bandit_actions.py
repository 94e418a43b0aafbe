"""Do actions alone tell at most ε, and do the shipped learners play by the law that says so?"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from streamdp.core.randomness import SeededRandomness
from streamdp.lab.audit.sampler import chi2
from streamdp.lab.papers.bandit import BanditEngine
from streamdp.lab.papers.learners import BANDIT_RECIPES
from streamdp.lab.papers.learners.lazy_ucb import index
from tests.support.law_of_actions import Law, worst_of_actions


def law(epsilon: float, *, steps: int, noise: float = 1.0) -> Law:
    return Law(index, epsilon, second=2, steps=steps, noise=noise)


def test_do_seven_actions_tell_almost_epsilon() -> None:
    """Anytime-Lazy-UCB: at most ε, and nearly that: the printed scale is tight."""
    assert 0.99 < worst_of_actions(law(1.0, steps=4), slots=7) <= 1 + 1e-9


def test_do_five_actions_show_half_the_noise() -> None:
    """Lap(1/(2ε)): 2 ε."""
    assert 1.99 < worst_of_actions(law(1.0, steps=4, noise=0.5), slots=5) <= 2 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("losses", [(1, 0, 0, 1, 1)])
def test_does_the_shipped_engine_play_by_the_law(losses: tuple[int, ...]) -> None:
    """χ² of five actions of 1,200 runs; a sound engine fails once in 10⁹ tests."""
    learner = BANDIT_RECIPES["lazy_ucb"](actions=["a", "b"], epsilon="1")
    expected = law(1.0, steps=32).of(losses)
    runs, seen = 1_200, Counter[tuple[int, ...]]()
    for run in range(runs):
        engine = BanditEngine(learner, budget=1, randomness=SeededRandomness(f"{run}"))
        actions = []
        for loss in losses:
            actions.append("ab".index(engine.action()))
            engine.observe(engine.action(), float(loss))
        seen[tuple(actions)] += 1
    sequences = sorted(expected)
    observed = np.array([seen[sequence] for sequence in sequences])
    assert chi2(observed, np.array([expected[sequence] for sequence in sequences]) * runs).passed
