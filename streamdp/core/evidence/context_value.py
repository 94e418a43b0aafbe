"""What a policy would have earned, from released tables alone: public, at no ε.

For cells c, actions a, N events, N_c of them in a cell, and a policy π, the value is

    V = Σ_c (N_c / N) · Σ_a π(a | c) · m(c, a),      m = 1/2 + gains / shown.

It compares like with like: within a cell the policy in force drew actions without looking at
anything else, so what was shown there is a sample of what would have been. It supposes that nothing
changes: the mean of all blocks stands for any of them.

Where counts are noisy, a cell that showed an action too rarely (`_FEW` deviations of a count's
noise) says nothing of its mean, and a ratio of two noisy numbers would be biased. Such cells are
pooled, action by action; `Value.pooled` says how much of the value comes from them. Where not even
a pool has enough, the mean of all actions stands in, and the interval has room for any other.

The interval is the delta method's: normal, with the variance of events (which cell, which reward)
and of the noise in every sum and count. Tests hold its coverage by simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Floats
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.policy_posterior import NoiseVariance

_FEW = 8.0
_QUANTILE = 1.959963984540054  # of the normal law, for 95 %
_PRIOR = 10.0  # events at the mean of all, in the variance of a reward


@dataclass(frozen=True, slots=True)
class Totals:
    """Released tables added up: cells × actions."""

    gains: Floats = field(repr=False)  # rewards less 1/2
    shown: Floats
    noise: NoiseVariance  # of each total

    @property
    def events(self) -> float:
        """How many events they are of; noisy where counts are."""
        return float(self.shown.sum())

    @property
    def mean(self) -> float:
        """The mean reward of what was shown."""
        return float(np.clip(0.5 + self.gains.sum() / max(self.events, 1.0), 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Value:
    """The mean reward of a policy, with an interval of 95 %."""

    mean: float
    low: float
    high: float
    pooled: float = 0.0  # the share of the policy's shows whose cells showed the action too rarely


def value_as_shown(totals: Totals) -> Value:
    """The mean reward of what was shown."""
    events, mean, noise = max(totals.events, 1.0), totals.mean, totals.noise
    numbers = totals.shown.size
    variance = mean * (1 - mean) / events
    off = 0.5 - mean
    variance += numbers * (noise.on_sums + noise.on_counts * off * off) / events**2
    return _within(mean, sqrt(variance))


def value_of(policy: Floats, totals: Totals) -> Value:
    """The value of a policy: cells × actions, each cell's probabilities adding up to 1.

    >>> shown = np.array([[800.0, 200.0], [100.0, 900.0]])
    >>> totals = Totals(shown * -0.4, shown, NoiseVariance(0.0))
    >>> found = value_of(np.array([[1.0, 0.0], [1.0, 0.0]]), totals)
    >>> round(found.mean, 6), round(found.high - found.mean, 3), found.pooled
    (0.1, 0.031, 0.0)
    """
    if policy.shape != totals.shown.shape or not np.allclose(policy.sum(axis=1), 1.0):
        raise InvalidConfig(
            "policy",
            "not one of this table",
            expected=f"probabilities of {totals.shown.shape[1]} actions in each of"
            f" {len(totals.shown)} cells",
            got=f"a table of {' × '.join(map(str, policy.shape))}",
        )
    events, level, noise = max(totals.events, 1.0), totals.mean, totals.noise
    of_cell = totals.shown.sum(axis=1, keepdims=True)
    labels, rare = _strata(totals)
    weight, gain, count = (
        np.bincount(labels.ravel(), of.ravel())
        for of in (of_cell * policy / events, totals.gains, totals.shown)
    )
    least = _least(noise) * np.sqrt(np.bincount(labels.ravel()))
    known = count >= least
    count = np.where(known, count, 1.0)
    means = np.where(known, 0.5 + gain / count, level)  # cut off, noise would not cancel
    by_gain = np.where(known, weight / count, 0.0)
    by_count = np.where(known, -weight * gain / count**2, 0.0)
    shrunk = np.clip((count * means + _PRIOR * level) / (count + _PRIOR), 0.0, 1.0)
    of_cells = (policy * means[labels]).sum(axis=1, keepdims=True)
    value = float((of_cell * of_cells).sum() / events)
    cells = (of_cells - value) / events
    rewards = np.square(by_gain) * shrunk * (1.0 - shrunk)
    variance = (np.maximum(totals.shown, 0.0) * (cells * cells + rewards[labels])).sum()
    variance += noise.on_sums * np.square(by_gain[labels]).sum()
    variance += noise.on_counts * np.square(cells + by_count[labels]).sum()
    found = _within(value, sqrt(float(variance)))
    pooled = float((of_cell * policy)[rare].sum() / events)
    unknown = max(0.0, float(weight[~known].sum()))
    low, high = found.low - unknown * level, found.high + unknown * (1.0 - level)
    return Value(found.mean, max(0.0, low), min(1.0, high), min(1.0, max(0.0, pooled)))


def _strata(totals: Totals) -> tuple[NDArray[np.int64], Bools]:
    """Which numbers are added up before their mean is taken, by their label; and the rare ones.

    A cell's own, or those of an action's rare cells.
    """
    shape = totals.shown.shape
    rare = totals.shown < _least(totals.noise)
    own = np.arange(totals.shown.size).reshape(shape)
    pool = totals.shown.size + np.broadcast_to(np.arange(shape[1]), shape)
    _, labels = np.unique(np.where(rare, pool, own), return_inverse=True)
    return labels.reshape(shape).astype(np.int64), rare


def _least(noise: NoiseVariance) -> float:
    """The fewest shows that say something of a mean."""
    return max(1.0, _FEW * sqrt(noise.on_counts))


def _within(value: float, deviation: float) -> Value:
    """A value with its interval, within [0, 1]."""
    off = _QUANTILE * deviation
    return Value(value, max(0.0, value - off), min(1.0, value + off))
