"""Estimates of a policy's value from records of another policy's draws. NOT PRIVATE.

A record says that action a was drawn with probability p (its propensity) and had the reward r. A
policy that would have drawn a with probability π(a) gives it the weight w = π(a)/p. Then

- **IPS**, the mean of w·r, is unbiased where every action that π may draw had p > 0;
- **SNIPS**, Σ w·r / Σ w, has less variance and a bias that vanishes with the number of records;
- **DR**, the mean of Σ_a π(a)·q(a) + w·(r − q(a)), is unbiased for any guess q of the rewards that
  was made before the record, and has less variance where the guess is good. Guesses shrink towards
  the mean reward r̄ of the whole log, the one number in them that was not known before: it adds
  about −Cov(w, r)/n to the mean error, as little as the bias of SNIPS. A constant far from r̄ (½ at
  click rates) is unbiased too, and useless: it adds (constant − r̄)·(1 − mean of w).

The evaluated learners change with the log. Each block is weighted by the policy that follows from
*earlier* blocks, so the sums are over martingale differences, and the estimates are of the mean
value of the policies that were in force, record by record. Their 95 % interval is that of
`likelihood`, right where enough clicks carry weight; below are bounds that hold for every
number of records. Standard errors of the three stand in the figures to compare with other tools;
where weights are heavy or clicks are few, ± 1.96 of them misses far too often.

A policy and a guess are constant within a block, so six sums for each block and action are enough
(`Moments`); ten million records cost no more than their sums.

The names are those of Open Bandit Pipeline (Saito et al. 2021), whose estimators these are.

**Bounds** on a policy's value that hold for every number of records at once. The weights w = π(a)/p
may be large, and a normal interval then misses more often than it says. These bounds need nothing
but rewards in [0, 1], propensities that are those of the draws, and policies that were made from
earlier records:

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, log, sqrt

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.lab.common.answer import standard_error
from streamdp.lab.common.estimates import MeanReward, PolicyValues, ValueEstimate, ValueInterval
from streamdp.lab.common.mapped import let_go
from streamdp.lab.offpolicy.likelihood import WeightedRecords

MISSED = 0.05
"""The highest probability that an interval is ever wrong."""

_RATES = 0.5 ** np.arange(1, 17)  # λ: 1/2 … 1/65,536
_SLACK = -np.log1p(-_RATES) - _RATES  # ψ(λ) of each
_GUESSES = (0.0, 0.5, 1.0)
"""m: the wrong one adds at most (m − mean)² to a record's square, which is little beside the right
one's where few records are won or few are lost."""
_STEPS = 8  # of Newton's method, which nears the root of a convex function from above


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
    heaviest: Floats  # the largest 1/p; 0 without records

    @classmethod
    def none(cls, shape: tuple[int, int]) -> Moments:
        """No records."""
        return cls(*(np.zeros(shape) for _ in range(8)))

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
        moments = cls.none(shape)
        moments.add(np.arange(shape[0]), groups, played, reward, pscore)
        return moments

    def add(self, at: Ints, groups: Ints, played: Ints, reward: Floats, pscore: Floats) -> None:
        """Add records of some groups: those that stand at these places here."""
        shape, inverse = (len(at), self.shown.shape[1]), 1 / pscore
        places = groups * shape[1] + played
        heaviest = np.zeros(shape)
        np.maximum.at(heaviest.ravel(), places, inverse)
        self.heaviest[at] = np.maximum(self.heaviest[at], heaviest)
        for sums, values in self._added(reward, inverse):
            sums[at] += np.bincount(places, values, minlength=shape[0] * shape[1]).reshape(shape)

    def add_in_chunks(self, places: Ints, chunk: Ints, reward: Floats, pscore: Floats) -> None:
        """Add records at these places, groups × K; those of one chunk first to one another."""
        order = np.argsort(places, kind="stable")
        places, chunk, reward = places[order], chunk[order], reward[order]
        new = (np.diff(places, prepend=-1) != 0) | (np.diff(chunk, prepend=-1) != 0)
        at, of, inverse = places[new], np.cumsum(new) - 1, 1 / pscore[order]
        np.maximum.at(self.heaviest.ravel(), places, inverse)
        for sums, values in self._added(reward, inverse):
            np.add.at(sums.ravel(), at, np.bincount(of, values))

    def _added(self, reward: Floats, inverse: Floats) -> Iterator[tuple[Floats, Floats | None]]:
        """The sums, and what records add to each; None: 1."""
        yield self.shown, None
        yield self.reward, reward
        yield self.inverse, inverse
        yield self.weighted, reward * inverse
        yield self.inverse2, inverse**2
        yield self.weighted2, (reward * inverse) ** 2
        yield self.mixed, reward * inverse**2


def over_seeds(rewards: Floats) -> MeanReward:
    """A mean reward that each seed has exactly."""
    value, half = float(rewards.mean()), Z * standard_error(rewards)
    return MeanReward(value, value - half, value + half)


def of_records(count: int, total: float, squares: float) -> MeanReward:
    """The mean of so many records, from the sums of their rewards and of the squares."""
    sums = (np.array([float(of)]) for of in (count, total, squares))
    records = WeightedRecords.evenly(*sums)
    (low,), (high,) = records.interval()
    mean = total / count if count else 0.0
    return MeanReward(mean, float(low), float(high), float(records.clicks()[0]))


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
    heaviest: Floats  # the largest w

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
        return cls(
            records=count,
            weight=weight,
            weight2=weight2,
            won=won,
            won2=won2,
            mixed=mixed,
            robust=model * count + change,
            robust2=model**2 * count + 2 * model * change + (squared * spread).sum(1),
            heaviest=(policies * moments.heaviest).max(axis=1),
        )

    @property
    def columns(self) -> tuple[Floats, ...]:
        """The numbers, column by column."""
        return tuple(getattr(self, name) for name in self.__slots__)

    @classmethod
    def none(cls, groups: int) -> Sums:
        """No records."""
        return cls(*(np.zeros(groups) for _ in cls.__slots__))

    def add(self, columns: Sequence[Floats], order: Ints | slice, group: Ints) -> None:
        """Add numbers to those of groups, in order: sums of floats depend on it."""
        for of, column in zip(self.columns, columns, strict=True):
            adding = np.maximum if of is self.heaviest else np.add
            adding.at(of, group, column[order])
            let_go(column)

    def so_far(self) -> Sums:
        """The cumulative sums over the groups."""
        *added, heaviest = self.columns
        return Sums(*chain(map(np.cumsum, added), [np.maximum.accumulate(heaviest)]))

    def weighted(self) -> WeightedRecords:
        """What the interval of each group's value follows from."""
        return WeightedRecords(
            self.records,
            self.weight,
            self.weight2,
            self.won,
            self.won2,
            self.mixed,
            self.heaviest,
        )

    def value(self) -> PolicyValues:
        """The value over the records of all groups."""
        whole = Sums.none(1)
        whole.add(self.columns, slice(None), np.zeros(len(self.records), dtype=np.int64))
        totals = {name: float(getattr(whole, name)[0]) for name in self.__slots__}
        weighted = whole.weighted()
        (low,), (high,) = weighted.interval()
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
            clicks=float(weighted.clicks()[0]),
            mean_weight=_mean(weight, weight2, n),
            interval=ValueInterval(float(low), float(high)),
            bounds=bounds(
                n,
                (totals["won"], totals["won2"]),
                (weight - totals["won"], weight2 - 2 * totals["mixed"] + totals["won2"]),
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
