"""UCB1: the baseline that is not private.

Privacy: none (ε = ∞): it releases exact sums after every slot. The service refuses it.

Reference: Auer, Cesa-Bianchi & Fischer 2002, Fig. 1; in blocks, if a schedule says so
"""

from __future__ import annotations

from collections.abc import Sequence

from streamdp.core.evidence.policy_rules import UpperBound
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners.feedback.learner import feedback_recipe
from streamdp.core.learners.leader import read_actions, read_schedule
from streamdp.core.schedule import Schedule


@feedback_recipe
def ucb1(*, actions: Sequence[str], schedule: Schedule | str = "capped 1") -> PolicyLearner:
    """The largest optimistic mean, from exact sums: not private.

    Privacy: none (ε = ∞); the service refuses it.
    Arguments: `schedule` says how blocks grow; `capped 1` chooses anew at every slot.
    Reference: Auer, Cesa-Bianchi & Fischer 2002, Fig. 1.

    >>> ucb1(actions=["a", "b"]).private
    False
    """
    return PolicyLearner(
        actions=read_actions(actions),
        schedule=read_schedule(schedule),
        rule=UpperBound(),
        charge=None,
    )
