"""A feedback learner's histories, folded by hand: what is known of rows after some blocks."""

from typing import Any

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.evidence.policies import ReleasedSums
from streamdp.core.evidence.policy import Policy
from streamdp.core.kinds.feedback import PolicyLearner


def nothing_known(learner: PolicyLearner, rows: int = 1) -> Any:
    """The histories of new rows; of contexts the public columns, which name a table too."""
    evidence = learner.evidence
    if isinstance(evidence, ReleasedSums):
        return np.zeros((rows, *evidence.rule.history.shape(evidence.numbers)))
    return {of.name: np.zeros((rows, *of.shape), of.dtype) for of in evidence.fields}


def history_after(learner: PolicyLearner, state: Any, first: Ints, second: Ints) -> Any:
    """The histories after a block with these two numbers of each arm; of contexts after 1,024 slots
    whose table the numbers are added up to.
    """
    evidence = learner.evidence
    if isinstance(evidence, ReleasedSums):
        return evidence.learned(state, np.concatenate([first, second], axis=-1))
    arms = dict(zip([of.name for of in learner.fields], (first, second), strict=True))
    released, _ = learner.exact(arms, state)
    return state | evidence.fold(state, released, np.full(len(first), 1024))


def policy_after(learner: PolicyLearner, state: Any, blocks: Ints) -> Policy:
    """The policies in force during these blocks, for rows with these histories."""
    lengths = learner.schedule.lengths(blocks)
    evidence = learner.evidence
    if isinstance(evidence, ReleasedSums):
        return evidence.rule.policy(state, lengths)
    return evidence.in_force(state, lengths)
