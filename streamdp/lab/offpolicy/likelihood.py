"""The 95 % interval of a policy's value by empirical likelihood, from five sums. NOT PRIVATE.

A record has a weight w = π(a)/p, whose mean is known to be 1, and a reward r in [0, 1]. The
interval holds each mean of w·r that a reweighting of the records can have which gives w the mean 1
and stays within a Cressie–Read divergence of them (Karampatziakis, Langford & Mineiro 2020, the
case with a closed form). One record that nobody saw takes part in it: the lightest or the heaviest,
and lost for the lower end, won for the upper one. It is why the interval stays wide where an action
was hardly shown, and why it is not symmetric at click rates, where ± standard errors miss up to
every second value. Measured coverage is in `tests/lab/test_offpolicy_coverage.py`.

Its level is that of an F law with 1 and n degrees of freedom, so it needs some clicks, however many
records there are: `FEWEST` says how many.

It is written here, and not taken from `vw-estimators`, whose numbers it gives (a test holds them):
that package was last released in January 2023, adds up records one by one in Python, has no types,
brings scipy for one quantile, and installs a top-level package with the name `estimators`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamdp.core.arrays import Floats

FEWEST = 10.0
"""Effective clicks below which a value is not compared: its interval may miss too often."""

_Z = 1.959963984540054  # of a 95 % interval of a normal law
_FLAT = 1e-12  # variance of weights that are all equal


@dataclass(frozen=True, slots=True)
class WeightedRecords:
    """Sums over records, one number for each policy that is valued."""

    records: Floats
    weight: Floats  # Σ w
    weight2: Floats  # Σ w²
    won: Floats  # Σ w·r
    won2: Floats  # Σ (w·r)²
    mixed: Floats  # Σ w²·r
    heaviest: Floats  # the largest w of a record

    @classmethod
    def evenly(cls, records: Floats, reward: Floats, squares: Floats) -> WeightedRecords:
        """Records of the policy itself: Σ r and Σ r², each record with the weight 1."""
        return cls(records, records, records, reward, squares, reward, np.ones_like(records))

    def clicks(self) -> Floats:
        """The effective number of rewards, or of records without one, whichever is rarer.

        It is how many equally weighted clicks hold the same information, (Σ w·r)²/Σ (w·r)².
        """
        lost, lost2 = self.weight - self.won, self.weight2 - 2 * self.mixed + self.won2
        numbers = [
            np.divide(sum_**2, squares, out=np.zeros_like(sum_), where=squares > 0)
            for sum_, squares in ((self.won, self.won2), (np.maximum(0, lost), lost2))
        ]
        clicks: Floats = np.minimum(*numbers)
        return clicks

    def interval(self) -> tuple[Floats, Floats]:
        """The ends of the 95 % interval of each mean of w·r; 0 and 1 without records.

        >>> one = np.ones(1)
        >>> evenly = WeightedRecords.evenly(1000 * one, 40 * one, 40 * one)
        >>> ["%.4f" % end[0] for end in evenly.interval()]
        ['0.0263', '0.0548']
        """
        n, heaviest = np.maximum(1, self.records), np.maximum(1, self.heaviest)
        unseen = np.where(self.weight < self.records, heaviest, 0.0)
        mean, spread = (self.weight + unseen) / (n + 1), (self.weight2 + unseen**2) / (n + 1)
        least = _over((mean - 1) ** 2, spread - mean**2)  # the divergence that gives w the mean 1
        reach = least + _t_quantile(n) ** 2 / (n + 1)
        lows = [self._end(n, weight, 0.0, reach, -1) for weight in (0 * heaviest, heaviest)]
        highs = [self._end(n, weight, 1.0, reach, 1) for weight in (0 * heaviest, heaviest)]
        known = self.records > 0
        low = np.where(known, np.fmin(*lows), 0.0)
        high = np.where(known, np.fmax(*highs), 1.0)
        return np.clip(np.nan_to_num(low, nan=0), 0, 1), np.clip(np.nan_to_num(high, nan=1), 0, 1)

    def _end(self, n: Floats, weight: Floats, reward: float, reach: Floats, sign: int) -> Floats:
        """The end on one side, with one unseen record; NaN where it cannot give w the mean 1."""
        seen = [
            (self.weight, weight),
            (self.weight2, weight**2),
            (self.won, weight * reward),
            (self.won2, (weight * reward) ** 2),
            (self.mixed, weight**2 * reward),
        ]
        w, w2, x, x2, wx = ((total + one) / (n + 1) for total, one in seen)
        variance, covariance = w2 - w**2, wx - w * x
        slope = _over(covariance, variance)
        rest = np.maximum(0, x2 - x**2 - slope * covariance)
        room = reach - _over((1 - w) ** 2, variance)
        half = np.sqrt(rest * np.where(room >= 0, room, np.nan))
        end: Floats = x + (1 - w) * slope + sign * half
        return end


def _over(part: Floats, variance: Floats) -> Floats:
    """A quotient by a variance of weights: 0 if all weights are equal."""
    return np.divide(part, variance, out=np.zeros_like(part), where=variance > _FLAT)


def _t_quantile(freedom: Floats) -> Floats:
    """The 97.5 % quantile of Student's t (Fisher & Cornish 1960), to 1e-3 from 10 degrees on."""
    first = (_Z**3 + _Z) / 4
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    third = (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384
    quantile: Floats = _Z + first / freedom + second / freedom**2 + third / freedom**3
    return quantile
