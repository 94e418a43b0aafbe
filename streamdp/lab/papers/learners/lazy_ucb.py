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
from dataclasses import dataclass
from fractions import Fraction
from math import exp, log, sqrt

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.calibration import parse_epsilon
from streamdp.core.learners.leader import one_of, read_actions
from streamdp.lab.papers.learners.bandit import (
    Bandit,
    Chance,
    bandit_recipe,
)
from streamdp.lab.papers.learners.phases import ArmPhases, PhaseCourse, best, constant

_FOR_EVER = 60.0  # ln of a slot that no stream reaches


@dataclass(frozen=True, slots=True)
class Optimism:
    """mean + √(3 ln t/O) + 3 ln t/(εO): the index of Algorithm 1."""

    def index(self, known: ArmPhases, slot: int) -> Floats:
        """The arms' indices at a slot."""
        count, level = known.count, log(slot)
        return known.mean + np.sqrt(3 * level / count) + 3 * level / (known.epsilon * count)

    def chosen(self, known: ArmPhases, slot: int, most: int, chance: Chance) -> Ints:
        """The best arm until another overtakes it."""
        arm = best(self.index(known, slot))
        return constant(arm, max(1, min(most, self._overtaken(known, arm) - slot)))

    def _overtaken(self, known: ArmPhases, arm: int) -> int:
        """A slot up to which no other arm's index is larger.

        With x = √(ln t) another arm leads by a + b·x + c·x²; b, c > 0 if it has fewer observations.
        """
        count = known.count.astype(np.float64)
        less = count < count[arm]
        if not less.any():
            return 1 << 60
        a = (known.mean - known.mean[arm])[less]
        b = sqrt(3) * (1 / np.sqrt(count) - 1 / sqrt(count[arm]))[less]
        c = 3 / known.epsilon * (1 / count - 1 / count[arm])[less]
        root = (np.sqrt(np.maximum(b * b - 4 * a * c, 0)) - b) / (2 * c)
        level = float(np.min(root * root))
        return int(exp(level)) if level < _FOR_EVER else 1 << 60


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
    names, exact = read_actions(actions), parse_epsilon(epsilon, "learner.epsilon")
    held = one_of(play, ("slot", "held"), where="learner.play") == "held"
    return Bandit(
        names, exact, lambda: PhaseCourse(len(names), exact, Optimism(), second=2, held=held)
    )
