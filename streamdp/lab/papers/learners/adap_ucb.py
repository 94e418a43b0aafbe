"""AdaP-UCB and AdaP-KLUCB: an episode plays one arm as often as it was played before.

Privacy: ε-DP for replacing one record's content: an observation is in one episode, whose sum has
sensitivity 1 and gets Lap(1/ε).
Arguments: `alpha` is the width of the index, 3.1 in the paper's experiments.

Reference: Azize & Basu 2022, AdaP-UCB and AdaP-KLUCB
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from math import log

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.calibration import parse_epsilon
from streamdp.lab.papers.learners.bandit import Bandit, Chance, bandit_recipe
from streamdp.lab.papers.learners.phases import ArmPhases, best, constant, phased

ALPHA = Fraction(31, 10)
_HALVINGS = 50


def by_index(known: ArmPhases, slot: int, most: int, chance: Chance, *, alpha: float) -> Ints:
    """The largest mean + √(α ln(2t)/(2n)) + α ln t/(εn)."""
    n = known.count
    width = np.sqrt(alpha * log(2 * slot) / (2 * n))
    bonus = alpha * log(slot) / (known.epsilon * n)
    return constant(best(known.mean + width + bonus), most)


def by_divergence(known: ArmPhases, slot: int, most: int, chance: Chance, *, alpha: float) -> Ints:
    """The largest q whose divergence from clip(mean + α ln t/(εn)) is at most α ln t/n."""
    level = alpha * log(slot) / known.count
    centre = np.clip(known.mean + level / known.epsilon, 0.0, 1.0)
    return constant(best(upper_divergence(centre, level)), most)


def upper_divergence(centre: Floats, level: Floats) -> Floats:
    """max{q ≥ p : kl(p, q) ≤ level} for Bernoulli means p, by halving.

    >>> upper_divergence(np.array([0.0, 1.0]), np.array([np.log(2), 0.1])).round(6).tolist()
    [0.5, 1.0]
    """
    low, high = centre.copy(), np.ones_like(centre)
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            inside = _divergence(centre, middle) <= level
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return low


def _divergence(p: Floats, q: Floats) -> Floats:
    """kl(p, q) = p ln(p/q) + (1 − p) ln((1 − p)/(1 − q)), where 0 ln 0 is 0."""
    failing = 1 - p
    one, other = p * np.log(p / q), failing * np.log(failing / (1 - q))
    one[p <= 0], other[p >= 1] = 0.0, 0.0
    return np.asarray(one + other)


@bandit_recipe
def adap_ucb(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    alpha: str | Fraction | int = ALPHA,
) -> Bandit:
    """Episodes that double, chosen by an optimistic index.

    Privacy: ε-DP for replacing one record's content.
    Arguments: `alpha` is the width of the index.
    Reference: Azize & Basu 2022, AdaP-UCB.

    >>> adap_ucb(actions=["a", "b"], epsilon="1").options[1]
    ('alpha', '31/10')
    """
    rule = partial(by_index, alpha=float(parse_epsilon(alpha, "learner.alpha")))
    return phased(actions, epsilon, rule, second=1, held=True)


@bandit_recipe
def adap_klucb(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    alpha: str | Fraction | int = ALPHA,
) -> Bandit:
    """Episodes that double, chosen by a divergence index.

    Privacy: ε-DP for replacing one record's content.
    Arguments: `alpha` is the width of the index.
    Reference: Azize & Basu 2022, AdaP-KLUCB.

    >>> adap_klucb(actions=["a", "b"], epsilon="1").charge
    Fraction(1, 1)
    """
    rule = partial(by_divergence, alpha=float(parse_epsilon(alpha, "learner.alpha")))
    return phased(actions, epsilon, rule, second=1, held=True)
