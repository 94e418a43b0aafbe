"""The results of a feedback replay: for each learner at each ε, what the log can answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.experiment import Arms
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.schedule import Schedule
from streamdp.lab.common.answer import Shares, Trajectory
from streamdp.lab.common.cells import Candidate, Epsilon, LearnerCell, crossed, parse_candidate
from streamdp.lab.offpolicy.estimators import MeanReward, PolicyValues
from streamdp.lab.papers.learners import EXPERT_RECIPES, Bandit
from streamdp.lab.play import Charge

K = TypeVar("K")

FeedbackCell = LearnerCell[PolicyLearner]
"""A learner of policies: it releases when a block ends."""

PhasedCell = LearnerCell[Bandit]
"""One of the papers' learners: it releases by an action's own count."""

AnyCell = LearnerCell[PolicyLearner | Bandit]


@dataclass(frozen=True, slots=True)
class FeedbackAnswer:
    """The result of one cell.

    `course` is the estimated value over time, or the regret if losses of all actions are known.
    """

    cell: AnyCell
    estimate: MeanReward | None  # of a record; None: the log does not tell
    by_seed: Floats  # the same for each seed
    course: Trajectory
    shares: Shares
    charge: Charge
    arms: Arms | None = None
    """The watched key's first seed, as its page would show it; None where arms are of cells."""
    value: PolicyValues | None = None  # from propensities
    accepted: Ints | None = None  # by rejection: the number of records that each seed learned from
    regret: Floats | None = None  # exactly: by seed


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
    [('Bandit', Fraction(1, 1)), ('PolicyLearner', None)]
    """
    for text in learners:
        if (name := text.split(":")[0]) in EXPERT_RECIPES:
            what = "advice comes with each choice, so no log holds it"
            expected = "a learner without advice, or streamdp.lab.papers.experts"
            raise InvalidConfig("learners", what, expected=expected, got=name)

    def made(candidate: Candidate, epsilon: Epsilon) -> PolicyLearner | Bandit:
        arms = actions
        if candidate.takes("context"):
            if contexts is None:
                expected = "--context, as the stream's configuration declares its fields"
                raise InvalidConfig(
                    "learners", "no contexts", expected=expected, got=candidate.text
                )
            options = (*candidate.options, ("context", str(contexts)))
            candidate, arms = replace(candidate, options=options), contexts.arms(actions)
        learner = candidate.learner(epsilon, actions=arms)
        assert isinstance(learner, PolicyLearner | Bandit)
        return learner

    candidates = [parse_candidate(text, observes="feedback") for text in learners]
    return crossed(candidates, epsilons, made)


def of_kind(cells: Sequence[AnyCell], kind: type[K]) -> tuple[LearnerCell[K], ...]:
    """The cells whose learners are of this type."""
    return tuple(
        LearnerCell(cell.candidate, cell.epsilon, cell.learner)
        for cell in cells
        if isinstance(cell.learner, kind)
    )


def ends_of(schedule: Schedule, blocks: int, *, longest: int) -> Ints:
    """The slots at which each of the first blocks ends, at most `longest`."""
    return np.minimum(schedule.stops(np.arange(blocks)) - 1, longest)
