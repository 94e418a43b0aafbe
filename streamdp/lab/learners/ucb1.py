"""UCB1: the baseline that is not private.

Privacy: none (ε = ∞): it releases exact sums after every slot. The service refuses it.

Reference: Auer, Cesa-Bianchi & Fischer 2002, Fig. 1; in blocks, if a schedule says so
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.evidence.policy_arithmetic import logarithm, ordered_sum
from streamdp.core.evidence.policy_posterior import NoiseVariance
from streamdp.core.evidence.policy_rule import Pairs
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners.feedback.learner import feedback_recipe
from streamdp.core.learners.leader import read_actions, read_schedule
from streamdp.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class UpperBound:
    """The arm with the largest mean + √(2 ln t/n): UCB1 (Auer, Cesa-Bianchi & Fischer 2002)."""

    name: str = "upper bound"
    history: ClassVar[Pairs] = Pairs("nothing")

    def parameters(self) -> Mapping[str, str]:
        """Nothing to choose."""
        return {}

    def learned(self, state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
        """Add up shows and gains."""
        return state + np.stack([shown, gains], axis=1)

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        """One arm always: the first that was never shown, or else the one of largest index."""
        shown, gains = state[:, 0], state[:, 1]
        slots = np.maximum(ordered_sum(shown.T), 1.0)
        logs = np.array([logarithm(int(slot)) for slot in slots.tolist()])
        counts = np.maximum(shown, 1.0)
        index = gains / counts + np.sqrt(2.0 * logs[:, None] / counts)
        chosen = np.where(shown == 0, np.inf, index).argmax(axis=1)
        policy = np.zeros(shown.shape, dtype=np.uint32)
        policy[np.arange(len(policy)), chosen] = PARTS
        return policy


@feedback_recipe
def ucb1(*, actions: Sequence[str], schedule: Schedule | str = "capped 1") -> PolicyLearner:
    """The largest optimistic mean, from exact sums: not private.

    Privacy: none (ε = ∞); the service refuses it.
    Arguments: `schedule` says how blocks grow; `capped 1` chooses anew at every slot.
    Reference: Auer, Cesa-Bianchi & Fischer 2002, Fig. 1.

    >>> ucb1(actions=["a", "b"]).charge is None
    True
    """
    return PolicyLearner(
        actions=read_actions(actions),
        schedule=read_schedule(schedule),
        rule=UpperBound(),
        charge=None,
    )
