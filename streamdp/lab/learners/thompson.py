"""Thompson sampling with a normal posterior: the baseline that is not private.

Privacy: none (ε = ∞): it releases exact sums. The service refuses it. It is `policy_blocks` without
noise and without a floor: each request draws its arm with the arm's probability of being the best,
which is the rule of Thompson (1933). The difference from it is the cost of privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from streamdp.core.evidence.policy_rules import BestArm
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners.feedback.learner import feedback_recipe
from streamdp.core.learners.leader import read_actions, read_schedule
from streamdp.core.schedule import Schedule


@feedback_recipe
def thompson(*, actions: Sequence[str], schedule: Schedule | str = "geometric 2") -> PolicyLearner:
    """Play an arm as often as it is likely to be the best, from exact sums: not private.

    Privacy: none (ε = ∞); the service refuses it.
    Arguments: `schedule` says how blocks grow.
    Reference: Thompson 1933.

    >>> thompson(actions=["a", "b"]).charge is None
    True
    """
    return PolicyLearner(
        actions=read_actions(actions),
        schedule=read_schedule(schedule),
        rule=BestArm(Fraction(1), Fraction(0)),
        charge=None,
    )
