"""Bounds on a policy's value that hold for every number of records at once. NOT PRIVATE.

The weights w = π(a)/p may be large, and a normal interval then misses more often than it says.
These bounds need nothing but rewards in [0, 1], propensities that are those of the draws, and
policies that were made from earlier records:

- X = w·r is at least 0 and has the policy's value as its mean, given what came before: a lower
  bound on the sum of these means is a lower bound on the value;
- X = w·(1 − r) is at least 0 and has 1 − value as its mean: a lower bound on it is an upper bound
  on the value. No bound on w is needed (Waudby-Smith et al. 2022).

Lower bound. Let m in [0, 1] be a guess of X that does not depend on the records. For λ in (0, 1)
and y ≥ −1 it holds that exp(λy − ψ(λ)y²) ≤ 1 + λy with ψ(λ) = −ln(1 − λ) − λ (Fan, Grama & Liu
2015, Lemma 4.1). With y = X − m the product of exp(λ(X − E X) − ψ(λ)(X − m)²) over records has a
mean of at most 1, and so has a mixture over several λ and m. By Ville's inequality it is never
above 1/α, for all numbers of records at once, with probability 1 − α: what Σ(X − E X) is at most
follows. Howard et al. (2021) call this an empirical Bernstein confidence sequence.

An interval takes α/2 for each side. It stays valid however often one looks at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

MISSED = 0.05
"""The highest probability that an interval is ever wrong."""

_RATES = 0.5 ** np.arange(1, 17)  # λ: 1/2 … 1/65,536
_SLACK = -np.log1p(-_RATES) - _RATES  # ψ(λ) of each
_GUESSES = (0.0, 0.5, 1.0)
"""m: the wrong one adds at most (m − mean)² to a record's square, which is little beside the right
one's where few records are won or few are lost."""
_STEPS = 8  # of Newton's method, which nears the root of a convex function from above


@dataclass(frozen=True, slots=True)
class ValueInterval:
    """An interval for a mean value."""

    low: float
    high: float


def bounds(
    records: int, won: tuple[float, float], lost: tuple[float, float], *, missed: float = MISSED
) -> ValueInterval:
    """The interval of the mean value, from Σ X and Σ X² of X = w·r and of X = w·(1 − r).

    >>> bounds(1000, (500.0, 500.0), (500.0, 500.0)).low > 0.4
    True
    """
    low, high = (
        (total - reach([squares - 2 * m * total + m * m * records for m in _GUESSES], missed / 2))
        for total, squares in (won, lost)
    )
    return ValueInterval(min(1.0, max(0.0, low / records)), max(0.0, min(1.0, 1 - high / records)))


def reach(squares: Sequence[float], missed: float) -> float:
    """How far Σ X may be above the sum of its means, given Σ (X − m)² of each m; at all times.

    >>> reach([100.0], 0.025) < reach([400.0], 0.025) < 2.5 * reach([100.0], 0.025)
    True
    """
    slack = (np.array(squares)[:, None] * _SLACK).ravel()
    rates = np.tile(_RATES, len(squares))
    certain = log(len(slack) / missed)
    excess = float(((certain + slack) / rates).min())  # by one λ and m; the mixture's is less
    for _ in range(_STEPS):
        logs = rates * excess - slack
        parts = np.exp(logs - logs.max())
        above = float(logs.max()) + log(float(parts.sum())) - certain
        excess -= above * float(parts.sum() / (parts @ rates))
    return excess
