"""The papers' feedback learners: one paper's algorithm per file, found by its place.

They see the loss of the played action only, and their phases end by an arm's own count. A recipe is
a function with the `@bandit_recipe` decorator that makes a `Bandit`; it then appears in
`BANDIT_RECIPES`, in `simulate` and `reproduce`, and the conformance kit and the audit run over it.
They run in library, replay and simulation; the service runs `policy_*` (`core.learners.feedback`),
whose blocks end by slot number.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from streamdp.core.learners.bandits.bandit import (
    BANDIT_RECIPES,
    Bandit,
    Chance,
    Course,
    Part,
    bandit_of,
    bandit_recipe,
)
from streamdp.core.learners.bandits.experts import (
    EXPERT_RECIPES,
    ExpertCourse,
    ExpertLearner,
    expert_learner_of,
    expert_recipe,
)
from streamdp.core.learners.bandits.refusal import refuse_in_blocks

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "BANDIT_RECIPES",
    "EXPERT_RECIPES",
    "Bandit",
    "Chance",
    "Course",
    "ExpertCourse",
    "ExpertLearner",
    "Part",
    "bandit_of",
    "bandit_recipe",
    "expert_learner_of",
    "expert_recipe",
    "refuse_in_blocks",
]
