"""Contexts: what is best may depend on who is looking.

Privacy: ε-DP for replacing one record's content. Sensitivity: that of the sums (and counts) of a
stream without contexts, whatever the number of cells and the table that a block releases, because
an event enters one number of it.
Why: discrete Laplace noise on every number of a block's table; policies, and which table the next
block releases, follow from released numbers and, where cell and action stand in headers, public
counts.

The model of `core.evidence.context_model` says how cells learn from each other, and how the table
gets finer. `tests/bench/bench_contexts.py` makes the tables from which `spread` and `floor` were
chosen.

Blocks grow by half from one slot on, and a change is followed as `policy_following` does. Each
block looks at one table, so there have to be more of them than where they double. With C cells the
noise in an action's sum over all cells of the finest table is √C times that of one sum, and in that
of the coarsest it is that of one: the longest block is √√C times as long as without contexts. Where
blocks end follows from slot numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt

from streamdp.core.calibration import parse_epsilon
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.kinds.names import read_actions
from streamdp.core.learners.feedback.learner import feedback_recipe, read_played, read_share
from streamdp.core.learners.feedback.policy_following import HAZARD, fitting
from streamdp.core.learners.leader import read_schedule
from streamdp.core.learners.recipes import FITTING
from streamdp.core.schedule import Schedule, geometric

UP_TO = "up to "
"""Stands before `interactions` where it is written: earlier arithmetics wrote `<= `, or nothing."""

SPREAD = Fraction(7, 10)
FLOOR = Fraction(8)
_GROWTH = Fraction(3, 2)


@feedback_recipe
def policy_contexts(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    context: Contexts | str,
    schedule: Schedule | str = FITTING,
    hazard: str | Fraction = HAZARD,
    spread: str | Fraction | int = SPREAD,
    floor: str | Fraction | int = FLOOR,
    played: str = "header",
    interactions: str = "all",
) -> PolicyLearner:
    """Contexts: in each cell, play an action as often as it is likely to be the best there.

    Privacy: ε-DP for replacing one record's content.
    Arguments: `actions` are the arms, an action in a cell each (`Contexts.arms` names them);
    `context` declares the fields and their levels, as JSON; `spread` multiplies the standard
    deviations of the means; each action's expected shows in a block, over all cells, are at least
    `floor`/ε; `hazard` is how likely the world is to change from one block to the next; `played`
    says where context and action stand, `header` or `value`; `schedule` says how blocks grow,
    `fitting` computes the longest one from actions, cells and ε; `interactions` says how fine the
    released tables may become: of all fields (`all`), of the combinations of fields that are named
    (`device × country, device × age`), or of single fields (`none`).
    Reference: Thompson 1933 for the rule; Blei, Kucukelbir & McAuliffe 2017 for the fit; tables,
    the model's moments, blocks, noise and floor are ours.

    >>> fields = Contexts.read('{"device": ["phone"]}')
    >>> fields.arms(("a", "b"))
    ('device=phone;a', 'device=phone;b', 'device=other;a', 'device=other;b')
    >>> policy_contexts(actions=fields.arms(("a", "b")), epsilon="1", context=fields).rule.actions
    2
    """
    exact, contexts = parse_epsilon(epsilon, "learner.epsilon"), Contexts.read(context)
    arms = read_actions(actions)
    if len(arms) == 2:  # no table is so small: they stand for any number
        arms = contexts.arms(arms)
    count = contexts.actions_in(len(arms))
    where, finest = read_played(played), interactions.removeprefix(UP_TO)
    return PolicyLearner(
        actions=arms,
        schedule=_growing(count, contexts.cells, exact if where == "header" else exact / 2)
        if schedule == FITTING
        else read_schedule(schedule),
        rule=ContextModel(
            contexts.shape,
            count,
            read_share(hazard, where="learner.hazard"),
            parse_epsilon(spread, "learner.spread"),
            parse_epsilon(floor, "learner.floor") / exact,
            contexts.tables(finest),
        ),
        charge=exact,
        played=where,
        options=(("interactions", UP_TO + finest),),
    )


def _growing(actions: int, cells: int, epsilon: Fraction) -> Schedule:
    """Growing by half, up to √√C times the longest block without contexts.

    >>> _growing(4, 576, Fraction(1)).longest
    8000
    """
    wide = isqrt(isqrt(cells - 1)) + 1
    return geometric(_GROWTH, fitting(actions * wide, epsilon).longest)
