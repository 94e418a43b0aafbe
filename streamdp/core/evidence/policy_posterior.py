"""The posterior of each arm: a normal law from the private means of its blocks. O(K) numbers a row.

A block that showed an arm n times and released the noisy sum S of its centred gains says that the
arm's mean gain is S/n, with variance v/n + (σ² + τ²·(S/n)²)/n²: v of the losses themselves, σ² of
the noise on the sum, τ² of the noise on the count (0 where counts are exact). Its weight w is the
inverse of that, with the noise counted `TAILS` times; it is 0 where the released count is below 1,
as a noisy one may be. A row keeps only Σw and Σw·S/n for each arm.

v is learned, since at click rates it is far below 1/4: it is m(1 − m), where m is the private level
of all arms at the block's end, taken one standard error nearer to 1/2. Earlier blocks keep their
weights. An arm's law has a prior at the same level that weighs as much as four losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Floats
from streamdp.core.evidence.policy_arithmetic import ordered_sum

PRIOR_LOSSES = 4.0
TAILS = 1.75
"""The factor on the variance of Laplace noise, whose tails are heavier than a normal law's.

With a factor of 1 a rare early draw misleads a run for long, above all at click rates."""
_LEAST_VARIANCE = 2.0**-12  # of one loss: a click rate of 1 in 4,096


@dataclass(frozen=True, slots=True)
class NoiseVariance:
    """The variance of the noise in what a block releases; 0 where it is exact. Public."""

    on_sums: float  # in loss²
    on_counts: float = 0.0


def noise_of(scale: Fraction, *, pairs: bool, blocks: int = 1) -> NoiseVariance:
    """The noise in an arm's sum of gains and in its count, after so many blocks.

    `scale` is that of each draw, in losses: one on a block's sum, or one on its rewards and one on
    its losses. Then a gain has half their difference and a count their sum, uncorrelated.

    >>> noise_of(Fraction(1), pairs=False), noise_of(Fraction(2), pairs=True)
    (NoiseVariance(on_sums=2.0, on_counts=0.0), NoiseVariance(on_sums=4.0, on_counts=16.0))
    """
    one = float(2 * scale * scale) * blocks  # of discrete noise: 1/6 of a grid unit² less
    return NoiseVariance(one / 2, 2 * one) if pairs else NoiseVariance(one)


@dataclass(frozen=True, slots=True)
class Level:
    """The mean and variance of all arms of a row together: R numbers each."""

    mean: Floats  # gain
    variance: Floats  # of one loss
    rate: Floats  # of the rarer outcome: 1/2 − |mean|


def learned(state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
    """The state after one more block: `state` is R × 2 × K, gains (in loss) and shown are R × K."""
    return state + weighed(state, gains, shown, noise)


def weighed(state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
    """What a block adds to the state."""
    now = level(state)
    for _ in range(2):  # the block is weighted with the level after it
        block = _weighed(gains, shown, now.variance[:, None], noise)
        now = level(state + block)
    return block


def level(state: Floats) -> Level:
    """The level of all arms and the variance of a loss there; 1/4 before anything is known.

    Variance and rate are those one standard error nearer to 1/2.
    """
    weight, product = ordered_sum(state.transpose(2, 0, 1)).T
    known = weight > 0
    weight = np.where(known, weight, 1.0)
    mean = np.minimum(np.maximum(np.where(known, product / weight, 0.0), -0.5), 0.5)
    error = np.where(known, np.sqrt(1.0 / weight), 1.0)
    cautious = np.maximum(np.abs(mean) - error, 0.0)
    variance = np.maximum(0.25 - cautious * cautious, _LEAST_VARIANCE)
    return Level(mean, variance, 0.5 - cautious)


def posterior(state: Floats) -> tuple[Floats, Floats]:
    """Each arm's mean gain and standard deviation, R × K."""
    of_all = level(state)
    prior = (PRIOR_LOSSES / of_all.variance)[:, None]
    precision = state[:, 0] + prior
    mean = (state[:, 1] + prior * of_all.mean[:, None]) / precision
    return mean, np.sqrt(1.0 / precision)


def _weighed(gains: Floats, shown: Floats, variance: Floats, noise: NoiseVariance) -> Floats:
    """What a block adds to Σw, n²/(v·n + TAILS·(σ² + τ²·(S/n)²)), and to Σw·S/n."""
    counts = np.maximum(shown, 1.0)
    mean = gains / counts
    added = TAILS * (noise.on_sums + noise.on_counts * (mean * mean))
    spread = variance * counts + added
    weight = np.where(shown >= 1.0, counts * counts / spread, 0.0)
    return np.stack([weight, weight * mean], axis=1)
