"""The policy rules of the shipped feedback learners. Each is public post-processing.

`BestArm`       plays an arm as often as it is likely to be the best, with a floor; `BestNow`, in
                `policy_regimes`, does so where the best arm changes
`Intervals`     plays equally the arms whose confidence interval reaches that of the best
`ExponentialWeights`   exponential weights on importance-weighted gains, mixed with uniform play
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence import policy_posterior
from streamdp.core.evidence.policy import Policy, parts_of, with_floor
from streamdp.core.evidence.policy_arithmetic import logarithm, ordered_sum, power_of_half
from streamdp.core.evidence.policy_best import chances_of_best
from streamdp.core.evidence.policy_posterior import NoiseVariance, posterior
from streamdp.core.evidence.policy_rule import Pairs

_FLOOR_SHARE = 0.5  # the most that all floors together take of a policy
_CLEAR = 9.0  # squared deviations behind the best from which an arm's floor shrinks
_LEAST_FLOOR = 0.25  # of the whole floor, however clearly an arm is behind


@dataclass(frozen=True, slots=True)
class BestArm:
    """An arm's chance is its chance of being the best under the posterior, deviations × `spread`.

    Each arm is expected to be shown at least `floor` times a block, so that a run recovers which
    early noise has misled. An arm that is clearly behind, by more than three deviations, needs
    fewer: its floor shrinks with the square of the distance, down to a quarter.
    """

    spread: Fraction
    floor: Fraction
    name: str = "best arm"
    history: ClassVar[Pairs] = Pairs("posterior")

    def parameters(self) -> Mapping[str, str]:
        """Everything that its policies depend on, in writing."""
        return {"spread": str(self.spread), "floor": str(self.floor)}

    def learned(self, state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
        """See `policy_posterior`."""
        return policy_posterior.learned(state, gains, shown, noise)

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        """The chances of being the best, with the floors."""
        return likely_best(*posterior(state), lengths, spread=self.spread, floor=self.floor)


def likely_best(
    means: Floats, deviations: Floats, lengths: Ints, *, spread: Fraction, floor: Fraction
) -> Policy:
    """The chances of being the best under normal laws, with floors, as `BestArm` plays them."""
    chances = chances_of_best(means, deviations * float(spread))
    floors = np.minimum(
        float(floor) * _floor_shares(means, deviations) / lengths[:, None],
        _FLOOR_SHARE / means.shape[1],
    )
    return parts_of(with_floor(chances, floors))


def _floor_shares(means: Floats, deviations: Floats) -> Floats:
    """The part of the floor that each arm needs."""
    best = means.argmax(axis=1)[:, None]
    behind = np.take_along_axis(means, best, axis=1) - means
    leader = np.take_along_axis(deviations, best, axis=1)
    squares = behind * behind / (deviations * deviations + leader * leader)
    return np.maximum(1.0 / (1.0 + squares / _CLEAR), _LEAST_FLOOR)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Equal chances for the arms whose interval mean ± `width`·deviation reaches the best one's."""

    width: Fraction
    name: str = "intervals"
    history: ClassVar[Pairs] = Pairs("posterior")

    def parameters(self) -> Mapping[str, str]:
        """Everything that its policies depend on, in writing."""
        return {"width": str(self.width)}

    def learned(self, state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
        """See `policy_posterior`."""
        return policy_posterior.learned(state, gains, shown, noise)

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        """Uniform over the arms that are not clearly worse."""
        means, deviations = posterior(state)
        reach = deviations * float(self.width)
        best = (means - reach).max(axis=1)
        alive = (means + reach >= best[:, None]).astype(np.float64)
        return parts_of(alive / ordered_sum(alive.T)[:, None])


@dataclass(frozen=True, slots=True)
class ExponentialWeights:
    """Exponential weights, for adversarial losses: nothing is assumed about them.

    A block of n slots that showed arm j n_j times counts as a gain of n·S_j/n_j for the arm. That
    is the importance-weighted estimate with the actual number of shows in place of the expected
    one. It needs no propensities, so an answer that comes late counts like any other. Kept per arm:
    Σ n·S_j/n_j, and the arm's part of Σ Σ_j (n_j/n)·(estimate_j − mean estimate)². That sum is
    large after much noise or much change, and sets the rate √(ln K/Σ).
    """

    mixing: Fraction
    name: str = "exponential weights"
    history: ClassVar[Pairs] = Pairs("nothing")

    def parameters(self) -> Mapping[str, str]:
        """Everything that its policies depend on, in writing."""
        return {"mixing": str(self.mixing)}

    def learned(self, state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
        """Add the block's estimates and their spread."""
        counts = np.maximum(shown, 0.0)
        slots = np.maximum(ordered_sum(counts.T), 1.0)[:, None]
        seen = counts >= 1.0
        estimates = np.where(seen, slots * gains / np.maximum(counts, 1.0), 0.0)
        shares = counts / slots
        centred = estimates - ordered_sum((shares * estimates).T)[:, None]
        added: Floats = np.stack([estimates, shares * (centred * centred)], axis=1)
        return state + added

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        """Weights 2**(−rate·(best − gain)/ln 2), mixed with uniform play."""
        arms = state.shape[2]
        squares = np.maximum(ordered_sum(state[:, 1].T), 1.0)
        rate = np.sqrt(logarithm(arms) / squares) / logarithm(2)
        behind = state[:, 0].max(axis=1)[:, None] - state[:, 0]
        weights = power_of_half(rate[:, None] * behind)
        mixing = float(self.mixing)
        chances = weights / ordered_sum(weights.T)[:, None] * (1.0 - mixing) + mixing / arms
        return parts_of(chances)
