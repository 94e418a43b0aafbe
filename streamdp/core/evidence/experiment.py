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
on either side; B draws get the share 6/(π²B²) of their δ. Sampling and noise each get half of
(1 − confidence)/K. (Where rewards and losses are released, each block has two draws of b: a count's
noise is their sum, a gain's half their difference, and both kinds of noise have a share.)

`chances` say something else: how likely each arm is to have the smallest mean under normal laws,
which is what the default policy uses. They are no guarantee.

No policy depends on these floats: policies are computed elsewhere, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import log, pi, sqrt

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import StateMismatch
from streamdp.core.evidence.policies import gains_and_counts
from streamdp.core.evidence.policy_best import chances_of_best
from streamdp.core.evidence.policy_posterior import learned, noise_of, posterior


@dataclass(frozen=True, slots=True)
class Arms:
    """Statistics of K arms; every column has K numbers."""

    blocks: int
    shown: Ints  # as released, to the nearest one
    means: Floats  # of the loss; NaN for an arm that was never shown
    low: Floats
    high: Floats
    chances: Floats  # of having the smallest mean, under normal laws

    def by(self, chances: Floats | None) -> Arms:
        """With these chances, where policies follow from a posterior that says some.

        Those of the sums of all blocks would deny a change.
        """
        return self if chances is None else replace(self, chances=chances)


@dataclass(slots=True)
class Experiment:
    """The numbers that one learner's blocks released, added up."""

    scale: Fraction  # of the noise on each sum, in losses
    pairs: bool  # whether an arm's numbers are its rewards and losses (`policies.gains_and_counts`)
    blocks: int
    released: Ints  # 2 K

    @classmethod
    def of(cls, scale: Fraction, *, actions: int, pairs: bool = False) -> Experiment:
        """An experiment without releases."""
        return cls(scale, pairs, 0, np.zeros(2 * actions, dtype=np.int64))

    def add(self, released: Ints) -> None:
        """Add one block."""
        if released.shape != self.released.shape:
            expected = f"{len(self.released)} numbers"
            raise StateMismatch("sums", "length", expected=expected, got=len(released))
        self.blocks += 1
        self.released = self.released + released

    def arms(self, *, confidence: float = 0.95) -> Arms:
        """The statistics of each arm now; the module says what they mean."""
        sums, shown = gains_and_counts(self.released, pairs=self.pairs)
        share, off_counts = (1 - confidence) / (2 * len(shown)), 0.0
        off = noise_reach(self.scale, self.blocks, share)
        if self.pairs:
            off_counts = noise_reach(self.scale, 2 * self.blocks, share / 2)
            off = off_counts / 2
        fewest = np.maximum(1.0, shown - off_counts)
        most = np.maximum(fewest, shown + off_counts)
        luck = sampling_reach(fewest, share)
        least, greatest = (sums + sign * off for sign in (-1, 1))
        low_gain = np.where(least < 0, least / fewest, least / most) - luck
        high_gain = np.where(greatest > 0, greatest / fewest, greatest / most) + luck
        known = shown >= 1
        return Arms(
            blocks=self.blocks,
            shown=np.rint(shown).astype(np.int64),
            means=np.where(known, np.clip(0.5 - sums / np.maximum(1, shown), 0, 1), np.nan),
            low=np.where(known, np.clip(0.5 - high_gain, 0, 1), 0.0),
            high=np.where(known, np.clip(0.5 - low_gain, 0, 1), 1.0),
            chances=self._chances(sums, shown),
        )

    def _chances(self, sums: Floats, shown: Floats) -> Floats:
        """The chances of one block with the sums, counts and noise of all."""
        noise = noise_of(self.scale, pairs=self.pairs, blocks=max(1, self.blocks))
        nothing = np.zeros((1, 2, len(shown)))
        means, deviations = posterior(learned(nothing, sums[None, :], shown[None, :], noise))
        return np.asarray(chances_of_best(means, deviations)[0], dtype=np.float64)


def sampling_reach(shows: Floats, share: float) -> Floats:
    """A bound on |mean of an arm's first n losses − its law's mean|; holds for all n at once."""
    return np.asarray(np.sqrt(np.log(2 * shows * (shows + 1) / share) / (2 * shows)))


def noise_reach(scale: Fraction, draws: int, share: float) -> float:
    """A bound on the noise in a sum of this many draws; holds for all numbers of draws at once.

    >>> round(noise_reach(Fraction(2), 1, 0.01), 1), noise_reach(Fraction(0), 9, 0.01)
    (19.2, 0.0)
    """
    if not scale or not draws:
        return 0.0
    surprise = log(2 * draws * draws * pi * pi / (6 * share))
    if surprise <= draws:
        return float(scale) * sqrt(8 * draws * surprise)
    return sqrt(2) * float(scale) * (draws + surprise)
