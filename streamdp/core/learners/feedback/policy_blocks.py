"""For a world that does not change: play an arm as often as it is likely to be the best.

Privacy: ε-DP for replacing one record's content. Sensitivity: 1 in L1 for the centred sums of all
arms together (2 for rewards and losses, where the action stands in the content). Why: discrete
Laplace noise of scale 1/ε (2/ε) on every number of a block; policies read released numbers
and public counts.

Every observation is used, and exploration follows probability instead of a worst-case bonus. With
growing blocks the noise costs nearly nothing. `streamdp simulate --observes feedback` repeats the
tables from which `spread` and `floor` were chosen: a smaller spread lowers the mean regret a little
but has rare runs that never find the best arm; the floor (shows of each arm in a block, times ε)
lets such a run recover. Blocks that grow for ever do not follow change: `policy_following` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from streamdp.core.calibration import parse_epsilon
from streamdp.core.evidence.policy_rules import BestArm
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners.feedback.learner import (
    feedback_recipe,
    read_played,
    read_share,
)
from streamdp.core.learners.leader import read_actions, read_schedule
from streamdp.core.schedule import Schedule

SPREAD = Fraction(6, 5)
FLOOR = Fraction(8)


@feedback_recipe
def policy_blocks(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    schedule: Schedule | str = "geometric 2",
    spread: str | Fraction | int = SPREAD,
    floor: str | Fraction | int = FLOOR,
    forgetting: str | Fraction | int = 1,
    played: str = "header",
) -> PolicyLearner:
    """For a world that stands still: play an arm as often as it is likely to be the best.

    Privacy: ε-DP for replacing one record's content.
    Arguments: `spread` multiplies the standard deviations of the means; each arm's expected shows
    in a block are at least `floor`/ε; `forgetting` multiplies what is known at each block's end;
    `played` says where the shown action stands, `header` or `value`; `schedule` says how blocks
    grow.
    Reference: Thompson 1933 for the rule; blocks, noise and floor are ours.

    >>> learner = policy_blocks(actions=["a", "b"], epsilon="1/2", floor="16")
    >>> str(learner.charge), learner.options[3]
    ('1/2', ('floor', '16'))
    """
    exact = parse_epsilon(epsilon, "learner.epsilon")
    shows = parse_epsilon(floor, "learner.floor") / exact
    return PolicyLearner(
        actions=read_actions(actions),
        schedule=read_schedule(schedule),
        rule=BestArm(parse_epsilon(spread, "learner.spread"), shows),
        charge=exact,
        played=read_played(played),
        forgetting=read_share(forgetting, where="learner.forgetting"),
    )
