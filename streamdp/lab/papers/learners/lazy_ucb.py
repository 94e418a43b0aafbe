"""Anytime-Lazy-UCB: optimism about each arm's newest private phase.

Privacy: ε-DP for replacing one record's content with the printed Lap(1/ε): an observation is in one
phase, whose sum has sensitivity 1. The bound is tight already for the actions of seven slots.
Arguments: `play` is `slot` (the index is compared anew at every slot, as printed) or `held` (the
arm stays until its phase is complete; the theorem's proof covers it unchanged).

Reference: Hu et al. 2025, Algorithm 1
Differs from the paper: indices rise with ln t only, so between releases the slot at which another
arm overtakes is computed instead of comparing at every slot; the plays are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import exp, log, sqrt

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.learners.leader import one_of
from streamdp.lab.papers.learners.bandit import Bandit, Chance, bandit_recipe
from streamdp.lab.papers.learners.phases import ArmPhases, best, constant, phased

_FOR_EVER = 60.0  # ln of a slot that no stream reaches


def index(known: ArmPhases, slot: int) -> Floats:
    """mean + √(3 ln t/O) + 3 ln t/(εO): the arms' indices of Algorithm 1."""
    count, level = known.count, log(slot)
    return known.mean + np.sqrt(3 * level / count) + 3 * level / (known.epsilon * count)


def optimism(known: ArmPhases, slot: int, most: int, chance: Chance) -> Ints:
    """The arm with the largest index until another overtakes it.

    With x = √(ln t) another arm leads by a + b·x + c·x²; b, c > 0 if it has fewer observations.
    """
    arm, count = best(index(known, slot)), known.count.astype(np.float64)
    less = count < count[arm]
    if less.any():
        a = (known.mean - known.mean[arm])[less]
        b = sqrt(3) * (1 / np.sqrt(count) - 1 / sqrt(count[arm]))[less]
        c = 3 / known.epsilon * (1 / count - 1 / count[arm])[less]
        root = (np.sqrt(np.maximum(b * b - 4 * a * c, 0)) - b) / (2 * c)
        level = float(np.min(root * root))
        if level < _FOR_EVER:
            most = max(1, min(most, int(exp(level)) - slot))
    return constant(arm, most)


@bandit_recipe
def lazy_ucb(
    *, actions: Sequence[str], epsilon: str | Fraction | int, play: str = "slot"
) -> Bandit:
    """The largest optimistic index of the newest private phases (Anytime-Lazy-UCB).

    Privacy: ε-DP for replacing one record's content.
    Arguments: `play` is `slot` (indices are compared at every slot) or `held` (once a phase).
    Reference: Hu et al. 2025, Algorithm 1.

    >>> str(lazy_ucb(actions=["a", "b"], epsilon="1"))
    'lazy_ucb(epsilon=1, play=slot) of 2 actions'
    """
    held = one_of(play, ("slot", "held"), where="learner.play") == "held"
    return phased(actions, epsilon, optimism, held=held)
