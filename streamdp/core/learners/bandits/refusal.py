"""Refuses the papers' feedback learners where blocks are needed, and names those that run there."""

from __future__ import annotations

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.learners.bandits.bandit import BANDIT_RECIPES
from streamdp.core.learners.bandits.experts import EXPERT_RECIPES


def refuse_in_blocks(recipe: str) -> None:
    """Refuse a learner of phases where blocks are needed, and name learners to use instead.

    >>> refuse_in_blocks("lazy_ucb")
    Traceback (most recent call last):
    streamdp.core.errors.InvalidConfig: learner.recipe: phases that end by an arm's count run in \
library, replay and simulation; expected policy_blocks, policy_elimination or policy_weights, got \
'lazy_ucb'
    >>> refuse_in_blocks("policy_blocks")
    """
    if recipe in BANDIT_RECIPES or recipe in EXPERT_RECIPES:
        what = "phases that end by an arm's count run in library, replay and simulation"
        expected = "policy_blocks, policy_elimination or policy_weights"
        raise InvalidConfig(complaint("learner.recipe", what, expected=expected, got=repr(recipe)))
