"""Estimates of a policy's value from records of another policy's draws. NOT PRIVATE.

A record says that action a was drawn with probability p (its propensity) and had the reward r. A
policy that would have drawn a with probability π(a) gives it the weight w = π(a)/p. Then

- **IPS**, the mean of w·r, is unbiased where every action that π may draw had p > 0;
- **SNIPS**, Σ w·r / Σ w, has less variance and a bias that vanishes with the number of records;
- **DR**, the mean of Σ_a π(a)·q(a) + w·(r − q(a)), is unbiased for any guess q of the rewards that
  was made before the record, and has less variance where the guess is good.

The evaluated learners change with the log. Each block is weighted by the policy that follows from
*earlier* blocks, so the sums are over martingale differences, and the estimates are of the mean
value of the policies that were in force, record by record. Intervals are those of the martingale
central limit theorem: estimate ± z standard errors, right for many records of which no few carry
all the weight. If policies differ between records, these errors are a little too large rather than
too small. `intervals` has bounds that hold for every number of records.

A policy and a guess are constant within a block, so six sums for each block and action are enough
(`Moments`); ten million records cost no more than their sums.

The names are those of Open Bandit Pipeline (Saito et al. 2021), whose estimators these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.lab.offpolicy.intervals import ValueInterval, bounds

Z = 1.959963984540054
"""Of a 95 % interval of a normal law."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over the records of each group (a block of a key) and action: G × K numbers each."""

    shown: Floats  # records
    reward: Floats  # Σ r
    inverse: Floats  # Σ 1/p
    weighted: Floats  # Σ r/p
    inverse2: Floats  # Σ 1/p²
    weighted2: Floats  # Σ r²/p²
    mixed: Floats  # Σ r/p²

    @classmethod
    def of(
        cls,
        groups: Ints,
        played: Ints,
        reward: Floats,
        pscore: Floats,
        *,
        shape: tuple[int, int],
    ) -> Moments:
        """The sums of records that belong to these groups and actions."""
        cells = groups * shape[1] + played
        inverse = 1 / pscore

        def total(values: Floats | None) -> Floats:
            sums = np.bincount(cells, values, minlength=shape[0] * shape[1])
            return np.asarray(sums, dtype=np.float64).reshape(shape)

        return cls(
            shown=total(None),
            reward=total(reward),
            inverse=total(inverse),
            weighted=total(reward * inverse),
            inverse2=total(inverse**2),
            weighted2=total((reward * inverse) ** 2),
            mixed=total(reward * inverse**2),
        )

    @property
    def records(self) -> int:
        """The number of records."""
        return round(float(self.shown.sum()))


@dataclass(frozen=True, slots=True)
class ValueEstimate:
    """A value with its standard error."""

    value: float
    error: float

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval."""
        return self.value - Z * self.error

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval."""
        return self.value + Z * self.error


@dataclass(frozen=True, slots=True)
class PolicyValues:
    """Estimates of the values of some policies, one for each group, from the records."""

    records: int
    ips: ValueEstimate
    snips: ValueEstimate
    dr: ValueEstimate
    effective: float  # the number of equally weighted records with the same information: (Σw)²/Σw²
    mean_weight: ValueEstimate  # 1 on average if the propensities are those of the draws
    bounds: ValueInterval  # of the value, for every number of records at once


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the records of each group that a value is computed from: G numbers each."""

    records: Floats
    weight: Floats  # Σ w
    weight2: Floats  # Σ w²
    won: Floats  # Σ w·r
    won2: Floats  # Σ (w·r)²
    mixed: Floats  # Σ w²·r
    robust: Floats  # Σ ξ of ξ = Σ_a π(a)·q(a) + w·(r − q(a))
    robust2: Floats  # Σ ξ²
    won_off: Floats  # Σ (w·r − m)², m = Σ_a π(a)·q(a)
    lost_off: Floats  # Σ (w·(1 − r) − (1 − m))²

    @classmethod
    def of(cls, moments: Moments, policies: Floats, guesses: Floats) -> Sums:
        """The sums for policies (G × K) and guesses of each action's reward in [0, 1] (G × K)."""
        squared = policies**2
        model = (policies * guesses).sum(axis=1)
        count = moments.shown.sum(axis=1)
        weight, weight2 = (policies * moments.inverse).sum(1), (squared * moments.inverse2).sum(1)
        won, won2 = (policies * moments.weighted).sum(1), (squared * moments.weighted2).sum(1)
        mixed = (squared * moments.mixed).sum(1)
        change = (policies * (moments.weighted - guesses * moments.inverse)).sum(1)
        spread = moments.weighted2 - 2 * guesses * moments.mixed + guesses**2 * moments.inverse2
        lost, lost2 = weight - won, weight2 - 2 * mixed + won2
        return cls(
            records=count,
            weight=weight,
            weight2=weight2,
            won=won,
            won2=won2,
            mixed=mixed,
            robust=model * count + change,
            robust2=model**2 * count + 2 * model * change + (squared * spread).sum(1),
            won_off=won2 - 2 * model * won + model**2 * count,
            lost_off=lost2 - 2 * (1 - model) * lost + (1 - model) ** 2 * count,
        )

    def by(self, group: Ints) -> Sums:
        """Sums of the groups that share a number."""
        columns = (getattr(self, name) for name in self.__slots__)
        return Sums(*(np.asarray(np.bincount(group, column), np.float64) for column in columns))

    def so_far(self) -> Sums:
        """The cumulative sums over the groups."""
        return Sums(*(np.cumsum(getattr(self, name)) for name in self.__slots__))

    def robust_means(self) -> tuple[Floats, Floats]:
        """The doubly robust estimate of each group, and its standard error."""
        n = np.maximum(self.records, 1)
        mean = self.robust / n
        variance = np.maximum(0, self.robust2 - n * mean**2) / np.maximum(n - 1, 1)
        return mean, np.sqrt(variance / n)

    def value(self) -> PolicyValues:
        """The value over the records of all groups."""
        totals = {name: float(getattr(self, name).sum()) for name in self.__slots__}
        n = round(totals["records"])
        weight, weight2 = totals["weight"], totals["weight2"]
        snips = totals["won"] / weight if weight else 0.0
        residual = totals["won2"] - 2 * snips * totals["mixed"] + snips**2 * weight2
        return PolicyValues(
            records=n,
            ips=_mean(totals["won"], totals["won2"], n),
            snips=ValueEstimate(snips, sqrt(max(0.0, residual)) / weight if weight else inf),
            dr=_mean(totals["robust"], totals["robust2"], n),
            effective=weight**2 / weight2 if weight2 else 0.0,
            mean_weight=_mean(weight, weight2, n),
            bounds=bounds(
                n, (totals["won"], totals["won_off"]), (weight - totals["won"], totals["lost_off"])
            ),
        )


def value_of(moments: Moments, policies: Floats, guesses: Floats) -> PolicyValues:
    """The value of policies (G × K) with guesses of each action's reward (G × K).

    >>> one = Moments.of(np.array([0, 0]), np.array([0, 1]), np.array([1.0, 0.0]),
    ...                  np.array([0.5, 0.5]), shape=(1, 2))
    >>> value_of(one, np.array([[0.75, 0.25]]), np.zeros((1, 2))).ips.value
    0.75
    """
    return Sums.of(moments, policies, guesses).value()


def _mean(total: float, squares: float, records: int) -> ValueEstimate:
    """A mean with its standard error, from sums."""
    if records < 2:
        return ValueEstimate(total / max(1, records), inf)
    mean = total / records
    variance = max(0.0, squares - records * mean**2) / (records - 1)
    return ValueEstimate(mean, sqrt(variance / records))
