"""The learners of a replay of feedback, at each ε."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.schedule import Schedule
from streamdp.lab.common.cells import Candidate, Epsilon, LearnerCell, crossed, parse_candidate

FeedbackCell = LearnerCell[PolicyLearner]
"""A learner of policies: it releases when a block ends."""

AnyCell = LearnerCell[Any]


def cells_of(
    learners: tuple[str, ...],
    epsilons: tuple[Epsilon, ...],
    *,
    actions: tuple[str, ...],
    contexts: Contexts | None = None,
) -> tuple[AnyCell, ...]:
    """Every combination, in the order of the question; a baseline has one cell, without privacy.

    A recipe with an option `context` learns by the log's contexts; all others see none.

    >>> from fractions import Fraction
    >>> cells = cells_of(("lazy_ucb", "thompson"), (Fraction(1),), actions=("a", "b"))
    >>> [(type(cell.learner).__name__, cell.epsilon) for cell in cells]
    [('PaperLearner', Fraction(1, 1)), ('PolicyLearner', None)]
    """

    def made(candidate: Candidate, epsilon: Epsilon) -> Any:
        arms = actions
        if candidate.takes("context"):
            if contexts is None:
                expected = "--context, as the stream's configuration declares its fields"
                raise InvalidConfig(
                    "learners", "no contexts", expected=expected, got=candidate.text
                )
            options = (*candidate.options, ("context", str(contexts)))
            candidate, arms = replace(candidate, options=options), contexts.arms(actions)
        return candidate.learner(epsilon, actions=arms)

    candidates = [parse_candidate(text, observes="feedback") for text in learners]
    return crossed(candidates, epsilons, made)


def ends_of(schedule: Schedule, blocks: int, *, longest: int) -> Ints:
    """The slots at which each of the first blocks ends, at most `longest`."""
    return np.minimum(schedule.stops(np.arange(blocks)) - 1, longest)
