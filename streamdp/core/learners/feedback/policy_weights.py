"""Exponential weights on importance-weighted private sums, for adversarial losses.

Privacy: ε-DP for replacing one record's content, as for every policy learner: discrete Laplace
noise on all arms' sums of a block; policies read released numbers. Sums are divided by how often an
arm was shown after the noise is added; noise on weighted sums would have to be as large as the
weights.

It is of the family of Hu et al. (2025) and of Exp3 (Auer et al. 2002), with blocks that stop
growing: losses may change in any way between releases, and a block that holds half of all slots
would cause half of all regret. With `forgetting` below 1 the weights remember about
1/(1 − forgetting) blocks, for losses that drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from streamdp.core.calibration import parse_epsilon
from streamdp.core.evidence.policy_rules import ExponentialWeights
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners.feedback.learner import (
    feedback_recipe,
    read_played,
    read_share,
)
from streamdp.core.learners.leader import read_actions, read_schedule
from streamdp.core.schedule import Schedule

MIXING = Fraction(1, 20)


@feedback_recipe
def policy_weights(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    schedule: Schedule | str = "capped 512",
    mixing: str | Fraction | int = MIXING,
    forgetting: str | Fraction | int = 1,
    played: str = "header",
) -> PolicyLearner:
    """Exponential weights on importance-weighted private sums, and a share of uniform play.

    Privacy: ε-DP for replacing one record's content.
    Arguments: `mixing` is the share of uniform play; `forgetting` multiplies what is known at each
    block's end; `played` says where the shown action stands, `header` or `value`; `schedule` says
    how blocks grow.
    Reference: Auer et al. 2002 for the weights; blocks and noise are ours.

    >>> learner = policy_weights(actions=["a", "b"], epsilon="1", mixing="1/10")
    >>> dict(learner.options)["mixing"]
    '1/10'
    """
    exact = parse_epsilon(epsilon, "learner.epsilon")
    return PolicyLearner(
        actions=read_actions(actions),
        schedule=read_schedule(schedule),
        rule=ExponentialWeights(read_share(mixing, where="learner.mixing")),
        charge=exact,
        played=read_played(played),
        forgetting=read_share(forgetting, where="learner.forgetting"),
    )
