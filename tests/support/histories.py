"""A feedback learner's histories, folded by hand: what is known of rows after some blocks."""

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.policy import Policy
from streamdp.core.kinds.feedback import PolicyLearner


def nothing_known(learner: PolicyLearner, rows: int = 1) -> Floats:
    """The histories of new rows."""
    return np.zeros((rows, *learner.rule.history.shape(learner.numbers)))


def history_after(learner: PolicyLearner, state: Floats, first: Ints, second: Ints) -> Floats:
    """The histories after a block that released these two numbers of each arm."""
    return learner.evidence.learned(state, np.concatenate([first, second], axis=-1))


def policy_after(learner: PolicyLearner, state: Floats, blocks: Ints) -> Policy:
    """The policies in force during these blocks, for rows with these histories."""
    return learner.rule.policy(state, learner.schedule.lengths(blocks))
