"""The default for feedback: as often as an arm is likely to be the best now, in a changing world.

Privacy: ε-DP for replacing one record's content. Sensitivity: 1 in L1 for the centred sums of all
arms together (2 for rewards and losses, where the action stands in the content). Why: discrete
Laplace noise of scale 1/ε (2/ε) on every number of a block; policies read released numbers
and public counts.
Following change costs no ε, because only released numbers are looked at.

Blocks double up to a longest one, so that a change is seen after a block or two, and a run-length
filter over the blocks (`core.evidence.policy_regimes`) says which of them still tell what is best.

The longest block follows from K and ε, never from data: max(512, 400·K/ε) slots. A block shows an
arm 400/ε times if it shows all equally: then noise of scale 1/ε in its sum is small beside what
sampling does at click rates. Shorter blocks follow faster and cost more where nothing changes.
`tests/bench/bench_following.py` makes the tables from which cap, floor, hazard and `among` were
chosen.

Of many actions some always look better than they are. To play each as often as it is likely to be
the best then tries too many of them for too long, above all after a change: so deviations count
less where there are more than six (`among`). It costs nothing in privacy: K is public.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from streamdp.core.calibration import parse_epsilon
from streamdp.core.evidence.policy_regimes import BestNow
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners.feedback.learner import (
    feedback_recipe,
    read_played,
    read_share,
)
from streamdp.core.learners.leader import read_actions, read_schedule
from streamdp.core.learners.recipes import FITTING
from streamdp.core.schedule import LAST_SLOT, Schedule, capped

HAZARD = Fraction(1, 1000)
FLOOR = Fraction(4)

_SHORTEST_LAST_BLOCK = 512
_SHOWS = 400  # of each arm in a longest block, at ε = 1


@feedback_recipe
def policy_following(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    schedule: Schedule | str = FITTING,
    hazard: str | Fraction = HAZARD,
    spread: str | Fraction | int = FITTING,
    floor: str | Fraction | int = FLOOR,
    played: str = "header",
) -> PolicyLearner:
    """The default for feedback: play an arm as often as it is likely to be the best now.

    Privacy: ε-DP for replacing one record's content.
    Arguments: `schedule` says how blocks grow; `fitting` computes the longest one from K and ε.
    `hazard` is how likely the world is to change from one block to the next; `spread` multiplies
    the standard deviations of the means, `fitting` by `among`; each arm's expected shows in a block
    are at least `floor`/ε; `played` says where the shown action stands, `header` or `value`.
    Reference: Adams & MacKay 2007 for the filter, Thompson 1933 for the rule; blocks, noise and
    floor are ours.

    >>> learner = policy_following(actions=["a", "b", "c"], epsilon="1/4")
    >>> learner.schedule.longest, learner.options[1], learner.options[3]
    (4800, ('schedule', 'fitting'), ('spread', '1'))
    """
    exact, names = parse_epsilon(epsilon, "learner.epsilon"), read_actions(actions)
    where = read_played(played)
    wide = among(len(names)) if spread == FITTING else parse_epsilon(spread, "learner.spread")
    return PolicyLearner(
        actions=names,
        schedule=fitting(len(names), exact if where == "header" else exact / 2)
        if schedule == FITTING
        else read_schedule(schedule),
        rule=BestNow(
            read_share(hazard, where="learner.hazard"),
            wide,
            parse_epsilon(floor, "learner.floor") / exact,
        ),
        charge=exact,
        played=where,
        options=(("spread", str(wide)),),
    )


def among(actions: int) -> Fraction:
    """What a deviation counts among so many actions: 2/3 + 2/K, at most 1.

    >>> among(2), among(6), among(20)
    (Fraction(1, 1), Fraction(1, 1), Fraction(23, 30))
    """
    return min(Fraction(1), Fraction(2, 3) + Fraction(2, actions))


def fitting(actions: int, epsilon: Fraction) -> Schedule:
    """Doubling up to the shortest block that is long enough to follow change by.

    >>> fitting(2, Fraction(2)).longest, fitting(6, Fraction(1)).longest
    (512, 2400)
    """
    needed = min(_SHOWS * actions / epsilon, Fraction(LAST_SLOT - 1))
    return capped(max(_SHORTEST_LAST_BLOCK, -(-needed.numerator // needed.denominator)))
