"""Contexts: what is best may depend on who is looking.

Privacy: ε-DP for replacing one record's content. Sensitivity: that of the sums (and counts) of a
stream without contexts, whatever the number of cells, because an event enters one cell and action;
of a table in parts as many times that as it has parts, because it enters one cell of each.
Why: discrete Laplace noise on every number of a block; policies read released numbers and, where
cell and action stand in headers, public counts.

The model of `core.evidence.context_model` says how cells learn from each other.
`tests/bench/bench_contexts.py` makes the tables from which `spread` and `floor` were chosen.

Blocks grow as those of `policy_following` do, and a change is followed alike. With C cells the
noise in an action's sum over all cells is √C times that of one sum, so the longest block is √C
times as long as without contexts. (In parts C is the number of all parts' cells.) The first block
is an eighth of it, and blocks double from there: what shorter blocks release of so many numbers is
nearly all noise, each costs a fit, and one block of as many events has the noise only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt

from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.contexts import MOST_ARMS, Contexts
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.kinds.names import read_actions
from streamdp.core.learners.feedback.learner import feedback_recipe, read_played, read_share
from streamdp.core.learners.feedback.policy_following import HAZARD, fitting
from streamdp.core.learners.leader import read_schedule
from streamdp.core.learners.recipes import FITTING
from streamdp.core.schedule import Schedule, capped

SPREAD = Fraction(7, 10)
FLOOR = Fraction(8)

_FIRST = 8  # first blocks in a longest one


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
    `fitting` computes the first and the longest one from actions, cells and ε; `interactions` keeps
    the whole table (`all`), or parts of it: a table for each combination of fields that is named
    (`device × country, device × age`), and for each field that is in none (`none`: each field).
    Reference: Thompson 1933 for the rule; Blei, Kucukelbir & McAuliffe 2017 for the
    fit; the table, the
    model's moments, blocks, noise and floor are ours.

    >>> fields = Contexts.read('{"device": ["phone"]}')
    >>> fields.arms(("a", "b"))
    ('device=phone;a', 'device=phone;b', 'device=other;a', 'device=other;b')
    >>> policy_contexts(actions=fields.arms(("a", "b")), epsilon="1", context=fields).rule.actions
    2
    """
    exact, contexts = parse_epsilon(epsilon, "learner.epsilon"), Contexts.read(context)
    arms = read_actions(actions)
    count, rest = divmod(len(arms), contexts.cells)
    shape, parts = contexts.shape, contexts.parts(interactions)
    if len(arms) == 2 and parts:  # no table is so small: they stand for any number
        arms, count, rest = contexts.arms(arms), 2, 0
    elif len(arms) == 2:  # and here in one cell
        shape, count, rest = (1,), 2, 0
    if rest or count < 2 or len(arms) > MOST_ARMS:
        raise InvalidConfig(
            "context",
            "the table does not fit",
            expected=f"2 or more actions in each of {contexts.cells} cells, {MOST_ARMS} in all",
            got=f"{len(arms)} arms",
        )
    shows = parse_epsilon(floor, "learner.floor") / exact
    where = read_played(played)
    rule = ContextModel(
        shape,
        count,
        read_share(hazard, where="learner.hazard"),
        parse_epsilon(spread, "learner.spread"),
        shows,
        parts,
    )
    if rule.numbers > MOST_ARMS:
        expected, got = f"≤ {MOST_ARMS} of each sort in all parts", rule.numbers
        raise InvalidConfig("learner.interactions", "too many numbers", expected=expected, got=got)
    wide = count * (isqrt(rule.numbers // count - 1) + 1)
    return PolicyLearner(
        actions=arms,
        schedule=_fitting(wide, exact if where == "header" else exact / 2)
        if schedule == FITTING
        else read_schedule(schedule),
        rule=rule,
        charge=exact,
        played=where,
    )


def _fitting(wide: int, epsilon: Fraction) -> Schedule:
    """Doubling up to the shortest block that is long enough to follow change by.

    >>> _fitting(6, Fraction(1)).prefix
    (300, 600, 1200)
    """
    longest = fitting(wide, epsilon).longest
    assert longest is not None
    return capped(longest, longest // _FIRST)
