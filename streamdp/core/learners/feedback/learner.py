"""Recipes of feedback learners; a `PolicyLearner` is what they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import wraps
from typing import Any, ParamSpec

from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.kinds.feedback import PLAYED, PolicyLearner
from streamdp.core.kinds.recipe import Played
from streamdp.core.learners.recipes import OBSERVED, Recipes, registered

FEEDBACK_RECIPES: Recipes[PolicyLearner] = Recipes(default="policy_following")
"""Every recipe of a feedback learner by its name."""
OBSERVED["feedback"] = FEEDBACK_RECIPES

P = ParamSpec("P")


def feedback_recipe(function: Callable[P, PolicyLearner]) -> Callable[P, PolicyLearner]:
    """Register a recipe under its function's name, and write its options on what it makes.

    Each has one more option, `room`: the last so many of `actions`, with contexts of each cell, are
    spare columns. What follows from the number of actions follows from that of the others.
    """
    registered(FEEDBACK_RECIPES, function)
    made: Callable[..., PolicyLearner] = FEEDBACK_RECIPES.made[function.__name__]

    @wraps(function)
    def roomy(*args: P.args, **kwargs: P.kwargs) -> PolicyLearner:
        options: dict[str, Any] = {**kwargs}
        room, columns = options.pop("room", 0), options.get("actions", ())
        if room in (0, "0") or args or not isinstance(columns, list | tuple):
            return made(*args, **options)
        spare, many = int(room) if str(room).isdecimal() else -1, len(columns)
        if "context" in options:
            contexts = Contexts.read(options["context"])
            if many == 2 + spare:  # no table is so small: they stand for any number
                contexts.actions_in(contexts.cells * many)
                columns = contexts.arms(tuple(columns))
            many = contexts.actions_in(len(columns))
        if not 0 < spare <= many - 2:
            expected, got = f"0 … {many - 2}", f"{room} of {many} columns"
            raise InvalidConfig("learner.room", "no number of columns", expected=expected, got=got)
        options["actions"] = [of for at, of in enumerate(columns) if at % many < many - spare]
        learner = made(**options)
        rule = learner.rule
        if isinstance(rule, ContextModel):
            rule = replace(rule, actions=many, room=spare)
        return replace(
            learner,
            actions=tuple(columns),
            rule=rule,
            room=spare,
            options=(*learner.options, ("room", str(spare))),
        )

    FEEDBACK_RECIPES[function.__name__] = roomy
    return roomy


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
