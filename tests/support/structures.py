"""Learners that differ in nothing but how much noise their choice adds, counted once.

What an engine does with slots, windows, blocks and memories depends on a learner's *structure*: all
of it but ε, from which follow the rate of its choice, its charge and its name. What is asked of the
engine alone is asked of one learner of each structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from streamdp.core.learners import Leader
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.selection import PermuteAndFlip

_ANY = PermuteAndFlip(Fraction(1, 2))


def structure(learner: Leader) -> Leader:
    """The learner without what follows from ε and from the name of its noise."""
    actions = tuple(str(number) for number in range(len(learner.actions)))
    return replace(learner, actions=actions, choose=_ANY, charge=None, name="", options=())


def one_of_each(
    learners: Iterable[Leader], *, and_of_each: Callable[[Leader], object] = lambda learner: None
) -> list[Leader]:
    """The first learner of each structure, and of whatever else tells some apart."""
    first: dict[object, Leader] = {}
    for learner in learners:
        first.setdefault((structure(learner), and_of_each(learner)), learner)
    return list(first.values())


def one_policy_of_each(
    policies: Mapping[str, PolicyLearner], of: Callable[[PolicyLearner], object]
) -> dict[str, PolicyLearner]:
    """The first of each, by its name."""
    first: dict[object, str] = {}
    for name, learner in policies.items():
        first.setdefault(of(learner), name)
    return {name: policies[name] for name in first.values()}
