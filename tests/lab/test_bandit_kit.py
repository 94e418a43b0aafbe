"""Is a bandit learner of one's own a few lines, and does the kit hold it to its promises?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from streamdp.core.arrays import Ints
from streamdp.core.learners.leader import read_actions
from streamdp.lab.papers.kit import check_bandit
from streamdp.lab.papers.learners import BANDIT_RECIPES, Bandit, Chance, bandit_recipe
from streamdp.lab.papers.learners.phases import ArmPhases, PhaseCourse, best, constant

ARMS = ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BANDIT_RECIPES))
def test_does_a_shipped_bandit_keep_its_promises(name: str) -> None:
    check_bandit(BANDIT_RECIPES[name](actions=ARMS, epsilon="1/2"))


class Greedy:
    """The best mean so far, and every tenth slot the arms in turn."""

    def chosen(self, known: ArmPhases, slot: int, most: int, chance: Chance) -> Ints:
        if slot % 10 == 0:
            return constant(slot // 10 % len(known.mean), 1)
        return constant(best(known.mean), min(most, 10 - slot % 10))


@pytest.fixture
def greedy() -> Iterator[Bandit]:
    @bandit_recipe
    def greedy(*, actions: list[str], epsilon: str) -> Bandit:
        names, exact = read_actions(actions), Fraction(epsilon)
        return Bandit(
            names, exact, lambda: PhaseCourse(len(names), exact, Greedy(), second=2, held=False)
        )

    yield greedy(actions=ARMS, epsilon="1")
    del BANDIT_RECIPES["greedy"]


@pytest.mark.slow
def test_does_a_learner_of_ones_own_pass_the_kit(greedy: Bandit) -> None:
    """A rule of a few lines on doubling phases is a private learner."""
    check_bandit(greedy)


@pytest.mark.parametrize(
    ("page", "kit"),
    [("bandits.md", "check_bandit("), ("extending.md", "check_kind(")],
)
def test_is_a_learner_of_ones_own_less_than_forty_lines(page: str, kit: str) -> None:
    """The documents' examples, imports and check included; that they pass is tested by following
    the pages."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    (example,) = [block for block in blocks if kit in block and "_recipe\n" in block]
    assert len(example.splitlines()) < 40


def test_does_the_kit_find_a_charge_that_is_too_low(greedy: Bandit) -> None:
    """A learner that says a quarter of what its recipe makes is none that its options make."""
    with pytest.raises(AssertionError, match="give an equal learner"):
        check_bandit(replace(greedy, charge=Fraction(1, 4)))
