"""Batched successive elimination: play equally the arms that are not clearly worse than the best.

Privacy: ε-DP for replacing one record's content, as for every policy learner: discrete Laplace
noise on all arms' sums of a block; policies read released numbers.

The idea is that of Even-Dar, Mannor & Mansour (2006) and, made private, of Sajed & Sheffet (2019).
Differs from them: intervals come from all of an arm's private means and not from its latest phase
alone, and are compared after every block, so an arm that only seemed worse comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from streamdp.core.calibration import parse_epsilon
from streamdp.core.evidence.policy_rules import Intervals
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners.feedback.learner import (
    feedback_recipe,
    read_played,
    read_share,
)
from streamdp.core.learners.leader import read_actions, read_schedule
from streamdp.core.schedule import Schedule

WIDTH = Fraction(5, 2)


@feedback_recipe
def policy_elimination(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    schedule: Schedule | str = "geometric 2",
    width: str | Fraction | int = WIDTH,
    forgetting: str | Fraction | int = 1,
    played: str = "header",
) -> PolicyLearner:
    """Play equally all arms whose interval reaches the best one's.

    Privacy: ε-DP for replacing one record's content.
    Arguments: `width` is how many standard deviations an interval reaches to either side;
    `forgetting` multiplies what is known at each block's end; `played` says where the shown action
    stands, `header` or `value`; `schedule` says how blocks grow.
    Reference: Even-Dar, Mannor & Mansour 2006; Sajed & Sheffet 2019.

    >>> str(policy_elimination(actions=["a", "b"], epsilon="1", width="3").rule.width)
    '3'
    """
    exact = parse_epsilon(epsilon, "learner.epsilon")
    return PolicyLearner(
        actions=read_actions(actions),
        schedule=read_schedule(schedule),
        rule=Intervals(parse_epsilon(width, "learner.width")),
        charge=exact,
        played=read_played(played),
        forgetting=read_share(forgetting, where="learner.forgetting"),
    )
