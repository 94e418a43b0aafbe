"""A feedback stream as an experiment: each arm's mean loss with an interval, and which arm is best.

Everything follows from released sums and counts, so it costs nothing. What you may conclude:

- The intervals hold **at the end of every block and for all arms at once**: with probability of at
  least `confidence` no interval that is ever shown misses its arm's mean. So you may look as often
  as you like, and stop when you like.
- They suppose a world that does not change: each show of an arm draws its loss from one law,
  whatever was shown before. Under drift an interval is about the mean over the shows so far and may
  miss. An unusable payload counts as the loss 1/2 of the arm that was shown.
- The policy decides from earlier releases how often an arm is shown; the intervals hold for every
  such rule, because the n-th show of an arm is its n-th, whenever it comes.

Why they hold. Sampling: by Hoeffding the mean of the first n losses of an arm misses by more than
√(ln(2n(n+1)/δ)/2n) with probability at most δ/(n(n+1)), and these add up to δ over all n. Noise: a
sum of B discrete Laplace draws of scale b has E exp(λZ) ≤ (1 − b²λ²)^(−B) ≤ exp(2Bb²λ²) for
λ ≤ 1/(√2 b), so it exceeds b√(8BL) where L ≤ B, and √2·b(B + L) else, with probability at most e^−L
on either side; block B gets the share 6/(π²B²) of its δ. Sampling and noise each get half of
(1 − confidence)/K. (Where counts are noisy too, both kinds of noise have a share.)

`chances` say something else: how likely each arm is to have the smallest mean under normal laws,
which is what the default policy uses. They are no guarantee.

No policy depends on these floats: policies are computed elsewhere, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import log, pi, sqrt

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import StateMismatch, complaint
from streamdp.core.evidence.policy_best import chances_of_best
from streamdp.core.evidence.policy_posterior import NoiseVariance, learned, posterior
from streamdp.core.grid import UNIT


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of the noise in what a block releases, in losses and in shows; public."""

    on_sums: Fraction
    on_counts: Fraction = Fraction(0)  # 0: counts are exact


@dataclass(frozen=True, slots=True)
class Arms:
    """Statistics of K arms; every column has K numbers."""

    blocks: int
    shown: Ints  # as released
    means: Floats  # of the loss; NaN for an arm that was never shown
    low: Floats
    high: Floats
    chances: Floats  # of having the smallest mean, under normal laws


@dataclass(slots=True)
class Experiment:
    """Released sums and counts of one learner's blocks, added up."""

    scales: Scales
    blocks: int
    gains: Ints  # K sums of 1/2 − loss, in grid units, with the noise of `blocks` draws
    shown: Ints  # K

    @classmethod
    def of(cls, scales: Scales, *, actions: int) -> Experiment:
        """An experiment without releases."""
        nothing = np.zeros(actions, dtype=np.int64)
        return cls(scales, 0, nothing, nothing.copy())

    def add(self, gains: Ints, shown: Ints) -> None:
        """Add one block."""
        if not gains.shape == shown.shape == self.gains.shape:
            got = f"{len(gains)} and {len(shown)}"
            raise StateMismatch(
                complaint("sums", "length", expected=f"{len(self.gains)} of both", got=got)
            )
        self.blocks += 1
        self.gains = self.gains + gains
        self.shown = self.shown + shown

    def arms(self, *, confidence: float = 0.95) -> Arms:
        """The statistics of each arm now; the module says what they mean."""
        share = (1 - confidence) / (2 * len(self.gains))
        noises = 2 if self.scales.on_counts else 1
        off = noise_reach(self.scales.on_sums, self.blocks, share / noises)
        off_counts = noise_reach(self.scales.on_counts, self.blocks, share / noises)
        fewest = np.maximum(1.0, self.shown - off_counts)
        most = np.maximum(fewest, self.shown + off_counts)
        sums, luck = self.gains / UNIT, sampling_reach(fewest, share)
        least, greatest = (sums + sign * off for sign in (-1, 1))
        low_gain = np.where(least < 0, least / fewest, least / most) - luck
        high_gain = np.where(greatest > 0, greatest / fewest, greatest / most) + luck
        known = self.shown >= 1
        return Arms(
            blocks=self.blocks,
            shown=self.shown,
            means=np.where(known, np.clip(0.5 - sums / np.maximum(1, self.shown), 0, 1), np.nan),
            low=np.where(known, np.clip(0.5 - high_gain, 0, 1), 0.0),
            high=np.where(known, np.clip(0.5 - low_gain, 0, 1), 1.0),
            chances=self._chances(),
        )

    def _chances(self) -> Floats:
        """The chances of one block with the sums, counts and noise of all."""
        count = max(1, self.blocks)
        noise = NoiseVariance(
            on_sums=count * 2 * float(self.scales.on_sums) ** 2,
            on_counts=count * 2 * float(self.scales.on_counts) ** 2,
        )
        nothing = np.zeros((1, 2, len(self.gains)))
        sums = (self.gains / UNIT)[None, :].astype(np.float64)
        means, deviations = posterior(
            learned(nothing, sums, self.shown[None, :].astype(np.float64), noise)
        )
        return np.asarray(chances_of_best(means, deviations)[0], dtype=np.float64)


def sampling_reach(shows: Floats, share: float) -> Floats:
    """A bound on |mean of an arm's first n losses − its law's mean|; holds for all n at once."""
    return np.asarray(np.sqrt(np.log(2 * shows * (shows + 1) / share) / (2 * shows)))


def noise_reach(scale: Fraction, blocks: int, share: float) -> float:
    """A bound on the noise in a sum of `blocks` draws; holds for all numbers of blocks at once.

    >>> round(noise_reach(Fraction(2), 1, 0.01), 1), noise_reach(Fraction(0), 9, 0.01)
    (19.2, 0.0)
    """
    if not scale or not blocks:
        return 0.0
    surprise = log(2 * blocks * blocks * pi * pi / (6 * share))
    if surprise <= blocks:
        return float(scale) * sqrt(8 * blocks * surprise)
    return sqrt(2) * float(scale) * (blocks + surprise)
