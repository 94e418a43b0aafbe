"""Recipes of feedback learners; a `PolicyLearner` is what they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import ParamSpec

from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig
from streamdp.core.kinds.feedback import PLAYED, PolicyLearner
from streamdp.core.kinds.recipe import Played
from streamdp.core.learners.recipes import OBSERVED, Recipes, registered

FEEDBACK_RECIPES: Recipes[PolicyLearner] = Recipes(default="policy_following")
"""Every recipe of a feedback learner by its name."""
OBSERVED["feedback"] = FEEDBACK_RECIPES

P = ParamSpec("P")


def feedback_recipe(function: Callable[P, PolicyLearner]) -> Callable[P, PolicyLearner]:
    """Register a recipe under its function's name, and write its options on what it makes."""
    return registered(FEEDBACK_RECIPES, function)


def feedback_learner_of(config: Mapping[str, str], *, actions: Sequence[str]) -> PolicyLearner:
    """The learner that a configuration's table names; the inverse of `config_of`."""
    return FEEDBACK_RECIPES.read(config, actions=actions)


def read_share(option: str | Fraction | int, *, where: str) -> Fraction:
    """An exact number above 0 and at most 1."""
    share = parse_epsilon(option, where)
    if share > 1:
        raise InvalidConfig(where, "too large", expected="≤ 1", got=share)
    return share


def read_played(option: str) -> Played:
    """Check the option that says where the action of a record stands."""
    for kind in PLAYED:
        if option == kind:
            return kind
    raise InvalidConfig("learner.played", "unknown", expected=" | ".join(PLAYED), got=option)
