"""Is a bandit learner of one's own a few lines, and does the kit hold it to its promises?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from streamdp.core.arrays import Ints
from streamdp.lab.papers.kit import check_bandit
from streamdp.lab.papers.learners import BANDIT_RECIPES, Bandit, Chance, bandit_recipe
from streamdp.lab.papers.learners.phases import ArmPhases, best, constant, phased

ARMS = ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BANDIT_RECIPES))
def test_does_a_shipped_bandit_keep_its_promises(name: str) -> None:
    check_bandit(BANDIT_RECIPES[name](actions=ARMS, epsilon="1/2"))


def best_so_far(known: ArmPhases, slot: int, most: int, chance: Chance) -> Ints:
    """Every tenth slot the arms in turn."""
    if slot % 10 == 0:
        return constant(slot // 10 % len(known.mean), 1)
    return constant(best(known.mean), min(most, 10 - slot % 10))


@pytest.fixture
def greedy() -> Iterator[Bandit]:
    @bandit_recipe
    def greedy(*, actions: list[str], epsilon: str) -> Bandit:
        return phased(actions, epsilon, best_so_far)

    yield greedy(actions=ARMS, epsilon="1")
    del BANDIT_RECIPES["greedy"]


@pytest.mark.slow
def test_does_a_learner_of_ones_own_pass_the_kit(greedy: Bandit) -> None:
    """A rule of a few lines on doubling phases is a private learner."""
    check_bandit(greedy)


def test_does_the_kit_find_a_charge_that_is_too_low(greedy: Bandit) -> None:
    """A learner that says a quarter of what its recipe makes is none that its options make."""
    with pytest.raises(AssertionError, match="give an equal learner"):
        check_bandit(replace(greedy, charge=Fraction(1, 4)))
