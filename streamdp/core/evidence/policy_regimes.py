"""A posterior of each arm that follows change: a run-length filter over blocks.

The world may change at any time: from then on all arms' means are others, a new *regime*. Nobody
knows when, so a few hypotheses are kept: "the present regime began with block b". Each has its own
Σw and Σw·mean of every arm over the blocks since b (see `policy_posterior` for a block's weight w),
and a weight: how well it has predicted the blocks' noisy means, of all arms together (Adams &
MacKay 2007, *Bayesian online changepoint detection*, Algorithm 1).

At a block's end:

1. Each hypothesis predicts the block's mean of an arm by a normal law: its own posterior of the
   arm, and the block's variance 1/w. Its weight is multiplied by the densities of all arms that the
   block showed, and by 1 − `hazard`.
2. A new hypothesis begins with this block. It has predicted from the prior alone; its weight before
   that is `hazard` times the sum of all.
3. There is room for `REGIMES` hypotheses (a model of contexts has room for two); the new one takes
   the place of the least likely.

An arm's prior in a regime is the mean of all arms, ± half of the rate of the rarer outcome (an arm
that is clicked by .05 ± .025 before anything is known of it). The mean of all arms and the variance
of one loss are those of the mixture, and of the time before the block.

The posterior of an arm is the mixture of the hypotheses with a weight of at least 2 %: its mean,
and its variance with the spread between them.

A key carries over the numbers of its likeliest hypothesis: a posterior like any other.

Differs from the paper: hypotheses are limited in number, and means come from noisy sums of blocks.
A state is R × hypotheses × (1 + 2K): of each hypothesis log₂ of its weight (0 for the likeliest),
then Σw of all arms, then Σw·mean. A hypothesis without any Σw is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.policy_arithmetic import log2, logarithm, ordered_sum, power_of_half
from streamdp.core.evidence.policy_posterior import Level, NoiseVariance, level, weighed
from streamdp.core.evidence.policy_rule import CARRIED_PER_ARM, Carries
from streamdp.core.evidence.policy_rules import likely_best

REGIMES = 6
"""Hypotheses that are kept: with 10 of them regret was not smaller in any world, with 3 larger."""

_LEAST_SHARE = 0.02  # of a hypothesis in the posterior
WIDTH = 0.5  # an arm's deviation in a new regime, in rates of the rarer outcome
HALF_LOG2_E = 0.7213475204444817  # half of log2(e): bits in a squared deviation


@dataclass(frozen=True, slots=True)
class RegimeHistory:
    """What is kept of a row: the hypotheses."""

    regimes: int = REGIMES
    carries: Carries = "posterior"

    def shape(self, arms: int) -> tuple[int, int]:
        """Of each hypothesis a weight, and two numbers for each arm."""
        return self.regimes, 1 + CARRIED_PER_ARM * arms

    def carried(self, state: Floats) -> Floats:
        """The numbers of the likeliest hypothesis."""
        regimes = Regimes.of(state)
        likeliest = np.where(regimes.known, regimes.logs, -np.inf).argmax(axis=1)
        carried: Floats = regimes.arms[np.arange(len(state)), likeliest]
        return carried

    def resumed(self, carried: Floats) -> Floats:
        """One hypothesis: that nothing has changed since."""
        state = np.zeros((len(carried), *self.shape(carried.shape[2])))
        state[:, 0, 1:] = carried.reshape(len(carried), -1)
        return state

    def posterior(self, state: Floats) -> tuple[Floats, Floats]:
        """Of the mixture."""
        return posterior(state)

    def of_arms(self, state: Floats, some: Bools) -> Floats:
        """The hypotheses, by these arms alone. One that knows none of them is none."""
        regimes = Regimes.of(state)
        arms = regimes.arms[..., some]
        known = np.any(arms[:, :, 0] != 0, axis=2)
        likeliest = np.where(known, regimes.logs, -np.inf).max(axis=1)
        likeliest[~known.any(axis=1)] = 0.0
        fewer = np.zeros((len(state), *self.shape(int(np.count_nonzero(some)))))
        fewer[:, :, 0] = np.where(known, regimes.logs - likeliest[:, None], 0.0)
        fewer[:, :, 1:] = arms.reshape(*known.shape, -1)
        return fewer


@dataclass(frozen=True, slots=True)
class BestNow:
    """An arm's chance is its chance of being the best now, in a world that may change.

    `hazard` is how likely a new regime begins with a block. `spread` and `floor` are those of
    `BestArm`.
    """

    hazard: Fraction
    spread: Fraction
    floor: Fraction
    name: str = "best now"
    history: ClassVar[RegimeHistory] = RegimeHistory()

    def parameters(self) -> Mapping[str, str]:
        """Everything that its policies depend on, in writing."""
        return {
            "hazard": str(self.hazard),
            "spread": str(self.spread),
            "floor": str(self.floor),
            "regimes": str(REGIMES),
        }

    def learned(self, state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
        """Weigh the hypotheses by what they predicted, and add the block to each."""
        regimes = Regimes.of(state)
        mixture = regimes.mixed(regimes.shares())
        block = weighed(mixture, gains, shown, noise)
        # the last hypothesis begins with this block
        arms = np.concatenate([regimes.arms, np.zeros_like(regimes.arms[:, :1])], axis=1)
        densities = _densities(arms, block, level(mixture))
        return regimes.followed(block, densities, hazard=self.hazard)

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        """The chances of being the best, with the floors."""
        return likely_best(*posterior(state), lengths, spread=self.spread, floor=self.floor)


def posterior(state: Floats) -> tuple[Floats, Floats]:
    """Each arm's mean gain and standard deviation, R × K: of the mixture."""
    regimes = Regimes.of(state)
    means, variances = _laws(regimes.arms, level(regimes.mixed(regimes.shares())))
    shares = regimes.likely()
    mean = ordered_sum((shares[:, :, None] * means).swapaxes(0, 1))
    apart = means - mean[:, None]
    variance = ordered_sum((shares[:, :, None] * (variances + apart * apart)).swapaxes(0, 1))
    return mean, np.sqrt(variance)


@dataclass(frozen=True, slots=True)
class Regimes:
    """The hypotheses of R rows: log₂ of their weights, and the numbers of their arms."""

    logs: Floats  # R × H
    arms: Floats  # R × H × 2 × K
    known: Bools  # R × H

    @classmethod
    def of(cls, state: Floats) -> Regimes:
        """Those of a state."""
        arms = state[:, :, 1:].reshape(*state.shape[:2], CARRIED_PER_ARM, -1)
        known: Bools = np.any(arms[:, :, 0] != 0, axis=2)
        return cls(state[:, :, 0], arms, known)

    def weights(self) -> Floats:
        """The weights, of which the largest is 1; while nothing is known, of one hypothesis."""
        weights: Floats = np.where(self.known, power_of_half(-self.logs), 0.0)
        weights[:, 0] += ~self.known.any(axis=1)
        return weights

    def shares(self) -> Floats:
        """The weights, which add up to 1."""
        weights = self.weights()
        return weights / ordered_sum(weights.T)[:, None]

    def likely(self) -> Floats:
        """The shares of those that a posterior is mixed of."""
        shares = self.shares()
        shares = np.where(shares >= _LEAST_SHARE, shares, 0.0)
        shares /= ordered_sum(shares.T)[:, None]
        return shares

    def mixed(self, shares: Floats) -> Floats:
        """The mean of the hypotheses' numbers: R × 2 × K."""
        return ordered_sum((shares[:, :, None, None] * self.arms).swapaxes(0, 1))

    def last(self) -> Bools:
        """The least likely hypothesis of each row, R × H; none where there is room for more."""
        full: Bools = np.all(self.known, axis=1)
        least = self.logs.argmin(axis=1)[:, None] == np.arange(self.logs.shape[1])
        return np.asarray(least & full[:, None])

    def judged(self, densities: Floats, *, hazard: Fraction) -> Floats:
        """log₂ of the weights after a block, R × (H + 1): the last one begins with it.

        `densities` are log₂ of how likely each one found the block.
        """
        logs = np.concatenate(
            [
                np.where(self.known, self.logs, -np.inf) + logarithm(1 - hazard, base=2),
                (log2(ordered_sum(self.weights().T)) + logarithm(hazard, base=2))[:, None],
            ],
            axis=1,
        )
        logs += densities
        return logs

    def followed(self, block: Floats, densities: Floats, *, hazard: Fraction) -> Floats:
        """The state after a block, which adds R × 2 × K numbers; `densities` as in `judged`."""
        rows, count = np.arange(len(block)), self.logs.shape[1]
        logs = self.judged(densities, hazard=hazard)
        least = logs[:, :count].argmin(axis=1)
        logs[rows, least] = logs[:, count]
        after = np.empty((len(block), count, 1 + block[0].size))
        after[:, :, 0] = logs[:, :count] - logs[:, :count].max(axis=1)[:, None]
        after[:, :, 1:] = (self.arms + block[:, None]).reshape(*logs[:, :count].shape, -1)
        after[rows, least, 1:] = 0.0 + block.reshape(len(block), -1)  # −0 becomes 0, as in a sum
        after[~np.isfinite(after[:, :, 0])] = 0.0  # no hypothesis yet
        untold: Bools = ~np.any(block[:, 0] != 0, axis=1)
        after[untold, :, 0] = self.logs[untold]
        after[untold, :, 1:] = self.arms[untold].reshape(-1, count, block[0].size)
        return after


def _laws(arms: Floats, of_all: Level) -> tuple[Floats, Floats]:
    """The mean and variance of each arm under each hypothesis, with the prior: R × H × K."""
    deviation = of_all.rate * WIDTH
    prior = (1.0 / (deviation * deviation))[:, None, None]
    precision = arms[:, :, 0] + prior
    return (arms[:, :, 1] + prior * of_all.mean[:, None, None]) / precision, 1.0 / precision


def _densities(arms: Floats, block: Floats, of_all: Level) -> Floats:
    """log₂ of the density of a block's means under each hypothesis, but for a constant: R × H."""
    means, variances = _laws(arms, of_all)
    weight, product = block[:, 0], block[:, 1]
    seen = weight > 0
    weight = np.where(seen, weight, 1.0)
    off = (product / weight)[:, None] - means
    variances = variances + (1.0 / weight)[:, None]
    bits = off * off * HALF_LOG2_E / variances + log2(variances) * 0.5
    return -ordered_sum(np.where(seen[:, None], bits, 0.0).transpose(2, 0, 1))
