"""Recipes of learners that see all losses; a `Leader` is what they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import ParamSpec

from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig
from streamdp.core.kinds.losses import Leader, Resample, Window
from streamdp.core.kinds.names import read_actions
from streamdp.core.learners.recipes import OBSERVED, Recipes, registered
from streamdp.core.schedule import Schedule, schedule_of

__all__ = [
    "RECIPES",
    "Leader",
    "Resample",
    "Window",
    "learner_of",
    "one_of",
    "read_actions",
    "read_bonus",
    "read_schedule",
    "recipe",
]

MOST_BONUS = Fraction(1000)
RECIPES: Recipes[Leader] = Recipes(default="remembering_leader")
"""Every recipe of a learner that sees all losses, by its name."""
OBSERVED["losses"] = RECIPES


P = ParamSpec("P")


def recipe(function: Callable[P, Leader]) -> Callable[P, Leader]:
    """Register a recipe under its function's name, and write its options on what it makes."""
    return registered(RECIPES, function)


def learner_of(config: Mapping[str, str], *, actions: Sequence[str]) -> Leader:
    """The learner that a configuration's table names; the inverse of `config_of`."""
    return RECIPES.read(config, actions=actions)


def read_schedule(option: object) -> Schedule:
    """A schedule, given as such or as text, such as ``"geometric 5/2"``."""
    if isinstance(option, Schedule):
        return option
    if not isinstance(option, str):
        got = type(option).__name__
        raise InvalidConfig(
            "learner.schedule", "unknown", expected="a schedule or its name", got=got
        )
    name, _, parameter = option.partition(" ")
    try:
        return schedule_of(name, parameter or None)
    except InvalidConfig as error:
        raise error.at(f"learner.{error.where}") from None


def read_bonus(option: str | Fraction | int) -> Fraction:
    """The bonus of the action in force, in noise units; 0 for none."""
    if option in (0, "0"):
        return Fraction(0)
    bonus = parse_epsilon(option, "learner.bonus")
    if bonus > MOST_BONUS:
        raise InvalidConfig("learner.bonus", "too large", expected=f"≤ {MOST_BONUS}", got=bonus)
    return bonus


def one_of(option: str, choices: Sequence[str], *, where: str) -> str:
    """An option that must be one of some words."""
    if option not in choices:
        raise InvalidConfig(where, "unknown", expected=" | ".join(choices), got=option)
    return option
