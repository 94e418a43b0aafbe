"""The papers' feedback learners: one paper's algorithm per file of this folder.

They see the loss of the played action only, and a phase ends when an arm's own count is full. A
recipe is a function with the `@bandit_recipe` decorator that makes a `Bandit`; it then appears in
`BANDIT_RECIPES`, in `simulate` and `reproduce`, and the conformance kit and the audit run over it.
These learners run in the library, in replays and in simulations; the service runs `policy_*`
(`core.learners.feedback`), whose blocks end by slot number.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from streamdp.lab.papers.learners.bandit import (
    BANDIT_RECIPES,
    Bandit,
    Chance,
    Course,
    Part,
    bandit_of,
    bandit_recipe,
)
from streamdp.lab.papers.learners.experts import (
    EXPERT_RECIPES,
    ExpertCourse,
    ExpertLearner,
    expert_recipe,
)

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
    "expert_recipe",
]
