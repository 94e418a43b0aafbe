"""Learners that see the played action's loss only; every file in this folder is found.

A recipe is a function with the `@feedback_recipe` decorator that makes a `PolicyLearner` of a
schedule, a noise and a rule (`core.evidence.policy_rules`). It then appears in `FEEDBACK_RECIPES`
and in configurations, and the conformance kit and the audit are run over it.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners.feedback.learner import (
    FEEDBACK_RECIPES,
    feedback_learner_of,
    feedback_recipe,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["FEEDBACK_RECIPES", "PolicyLearner", "feedback_learner_of", "feedback_recipe"]
