"""Lazy-DP-TS: posterior sampling from each arm's newest private phase, optimistic by ln t.

Privacy: ε-DP for replacing one record's content: an observation is in one phase, whose sum has
sensitivity 1 and gets Lap(1/ε); posterior draws read released numbers and public bits.
Arguments: `play` says how often θ is drawn: for every slot (`slot`, as printed), once for a phase
(`held`, best where feedback comes at once), or for every slot from the posterior as of the newest
release (`policy`: possible for a recommender that knows releases only; best where feedback is
late). `log` is the base of the logarithm in the bonus, `e` or `2`: the paper writes ln in Algorithm
1 and log in Algorithm 3, and its plots agree with base 2.

Reference: Hu et al. 2025, Algorithm 3
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from math import log as ln

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.learners.leader import one_of
from streamdp.lab.papers.learners.bandit import Bandit, Chance, bandit_recipe
from streamdp.lab.papers.learners.phases import ArmPhases, phased

_BASES = {"e": 1.0, "2": ln(2)}


def posterior_draw(
    known: ArmPhases, slot: int, most: int, chance: Chance, *, base: float, frozen: bool
) -> Ints:
    """The largest θ ~ Beta(μO + 1, (1 − μ)O + 1) at each slot, μ = clip(mean + 3 log t/(εO)).

    `frozen`: t is the newest release's slot, not the current one.
    """
    slots = np.full(most, known.slot) if frozen else np.arange(slot, slot + most)
    count = known.count
    bonus = 3 * (np.log(np.maximum(slots, 1)) / base)[:, None] / (known.epsilon * count)
    mu = np.clip(known.mean + bonus, 0.0, 1.0)
    theta = chance.beta(mu * count + 1, (1 - mu) * count + 1)
    arms: Ints = theta.argmax(axis=1)
    return arms


@bandit_recipe
def lazy_thompson(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    play: str = "slot",
    log: str = "e",
) -> Bandit:
    """The largest posterior draw of the newest private phases (Lazy-DP-TS).

    Privacy: ε-DP for replacing one record's content.
    Arguments: `play` says how often a posterior is drawn from: `slot`, `held` (once a phase) or
    `policy` (every slot, as of the newest release); `log` is the base of the bonus, `e` or `2`.
    Reference: Hu et al. 2025, Algorithm 3.

    >>> lazy_thompson(actions=["a", "b"], epsilon="1/2", play="held").charge
    Fraction(1, 2)
    """
    way = one_of(play, ("slot", "held", "policy"), where="learner.play")
    base = _BASES[one_of(log, tuple(_BASES), where="learner.log")]
    rule = partial(posterior_draw, base=base, frozen=way == "policy")
    return phased(actions, epsilon, rule, held=way == "held")
