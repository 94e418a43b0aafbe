"""Learners as recipes: one file for each paper's algorithm, composed of the core's parts.

A recipe is a function from actions, ε and a few options to a `Leader`. To add one, write a file
in this folder whose function carries the `@recipe` decorator: it is found by its place, appears in
`RECIPES`, in configurations and on the command line, and is run through the conformance kit and
the audit like the others.

`recipes` finds recipes of all sorts; `leader` has those of losses, `feedback` those of feedback.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.learners.leader import (
    RECIPES,
    Leader,
    learner_of,
    recipe,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "FEEDBACK_RECIPES",
    "RECIPES",
    "Leader",
    "PolicyLearner",
    "learner_of",
    "recipe",
]
