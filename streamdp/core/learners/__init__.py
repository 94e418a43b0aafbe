"""Learners as recipes: one file for each paper's algorithm, composed of the core's parts.

A recipe is a function from actions, ε and a few options to a `Leader`. To add one, write a file
in this folder whose function carries the `@recipe` decorator: it is found by its place, appears in
`RECIPES`, in configurations and on the command line, and is run through the conformance kit and
the audit like the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules

from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner, feedback_learner_of
from streamdp.core.learners.leader import (
    RECIPES,
    Leader,
    learner_of,
    recipe,
)

Learner = Leader | PolicyLearner
"""What an engine runs: a learner that sees all losses, or the loss of the shown action only."""


def kind_of(config: Mapping[str, str], *, actions: Sequence[str]) -> Learner:
    """The learner of any kind that a ledger or a state names: a recipe with all of its options."""
    of_feedback = config.get("recipe") in FEEDBACK_RECIPES
    return (feedback_learner_of if of_feedback else learner_of)(config, actions=actions)


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "FEEDBACK_RECIPES",
    "RECIPES",
    "Leader",
    "Learner",
    "PolicyLearner",
    "kind_of",
    "learner_of",
    "recipe",
]
