"""Bounds on a policy's value that hold for every number of records at once. NOT PRIVATE.

The weights w = π(a)/p may be large, and a normal interval then misses more often than it says.
These bounds need nothing but rewards in [0, 1], propensities that are those of the draws, and
policies that were made from earlier records:

- X = w·r is at least 0 and has the policy's value as its mean, given what came before: a lower
  bound on the sum of these means is a lower bound on the value;
- X = w·(1 − r) is at least 0 and has 1 − value as its mean: a lower bound on it is an upper bound
  on the value. No bound on w is needed (Waudby-Smith et al. 2022).

Lower bound. Let m be any guess of X in [0, 1] made before X. For λ in (0, 1) and y ≥ −1 it holds
that exp(λy − ψ(λ)y²) ≤ 1 + λy with ψ(λ) = −ln(1 − λ) − λ (Fan, Grama & Liu 2015, Lemma 4.1). With
y = X − m the product of exp(λ(X − E X) − ψ(λ)(X − m)²) over records has a mean of at most 1, and so
has a mixture over several λ. By Ville's inequality it is never above 1/α, for all numbers of
records at once, with probability 1 − α: what Σ(X − E X) is at most follows. Howard et al.
(2021) call this an empirical Bernstein confidence sequence.

An interval takes α/2 for each side. It stays valid however often one looks at it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, log1p

MISSED = 0.05
"""The highest probability that an interval is ever wrong."""

_RATES = tuple(0.5 * 2.0**-power for power in range(16))  # λ: 1/2 … 1/65,536
_SLACK = tuple(-log1p(-rate) - rate for rate in _RATES)  # ψ(λ) of each
_STEPS = 60  # of bisection: to the last digit of a double


@dataclass(frozen=True, slots=True)
class ValueInterval:
    """An interval for a mean value."""

    low: float
    high: float


def bounds(
    records: int, won: tuple[float, float], lost: tuple[float, float], *, missed: float = MISSED
) -> ValueInterval:
    """The interval of the mean value, from Σ X and Σ (X − m)² of X = w·r and of X = w·(1 − r).

    >>> bounds(1000, (500.0, 250.0), (500.0, 250.0)).low > 0.4
    True
    """
    low = (won[0] - reach(won[1], missed / 2)) / records
    high = 1 - (lost[0] - reach(lost[1], missed / 2)) / records
    return ValueInterval(min(1.0, max(0.0, low)), max(0.0, min(1.0, high)))


def reach(squares: float, missed: float) -> float:
    """How far Σ X may be above the sum of its means, given Σ (X − m)²; at all times at once.

    >>> reach(100.0, 0.025) < reach(400.0, 0.025) < 2.5 * reach(100.0, 0.025)
    True
    """
    slack = [of_rate * squares for of_rate in _SLACK]
    certain = log(1 / missed)
    low, high = 0.0, _by_one_rate(slack, missed)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _wealth(middle, slack) > certain:
            high = middle
        else:
            low = middle
    return high


def _wealth(excess: float, slack: list[float]) -> float:
    """The logarithm of the mixture, equal parts of every λ; `slack` is ψ(λ)·Σ (X − m)² of each."""
    logs = [rate * excess - known for rate, known in zip(_RATES, slack, strict=True)]
    most = max(logs)
    return most + log(sum([exp(part - most) for part in logs]) / len(logs))


def _by_one_rate(slack: list[float], missed: float) -> float:
    """The least bound by one λ of the mixture; the mixture's bound is at most as large."""
    certain = log(len(_RATES) / missed)
    return min((certain + known) / rate for rate, known in zip(_RATES, slack, strict=True))
