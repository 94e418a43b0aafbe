"""Report-noisy-max on whole blocks (RNM-FTNL) with one of three noises, resampled or not.

Privacy: ε-DP for replacing one event. Sensitivity: 2 in the difference of two sums. Why: a block's
selection is one private choice at rate ε/2, and a slot belongs to one block.

    laplace      report noisy max with Lap(2/ε)        Hu et al. 2025, Algorithm 4
    gumbel       Gumbel(2/ε), which is softmax at ε/2  Wu & Wang 2026
    exponential  Exp(2/ε), which is permute-and-flip   Wu & Wang 2026, Theorems 3 and 11

Differs from the papers: Lap(1/ε) and Exp(1/ε), as printed, are 2ε-DP when a whole vector may be
replaced, because sums move in both directions; the displays that equate Gumbel(2/ε) with
softmax(−εG) are off by the same factor of two. See `calibration`.

`resample="bernoulli"` replaces each loss by a Bernoulli draw of that mean before it is summed
(Wu & Wang 2026, Theorem 3): the sums of a neighbour still differ by at most 1 in each coordinate,
for each value of the draws, so the charge is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import cast

from streamdp.core.calibration import (
    exponential_rate,
    laplace_rate,
    parse_epsilon,
    permute_and_flip_rate,
)
from streamdp.core.errors import InvalidConfig
from streamdp.core.learners.leader import (
    Leader,
    Resample,
    one_of,
    read_actions,
    read_schedule,
    recipe,
)
from streamdp.core.schedule import Schedule
from streamdp.core.selection import Exponential, Mechanism, NoisyMaxLaplace, PermuteAndFlip


@recipe
def noisy_leader(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    noise: str,
    resample: str = "none",
    schedule: Schedule | str = "dyadic",
) -> Leader:
    """Report-noisy-max on whole blocks.

    Privacy: ε-DP for replacing one event.
    Arguments: `noise` is `laplace`, `gumbel` or `exponential`; `resample` is `none`, or `bernoulli`
    to replace each loss by a coin of that mean; `schedule` says how blocks grow.
    Reference: Hu et al. 2025, Algorithm 4; Wu & Wang 2026, Theorems 3 and 11.

    >>> str(noisy_leader(actions=["a", "b"], epsilon="1", noise="exponential").choose.rate)
    '1/2'
    """
    exact = parse_epsilon(epsilon, "learner.epsilon")
    return Leader(
        actions=read_actions(actions),
        schedule=read_schedule(schedule),
        window="whole",
        resample=cast(
            "Resample", one_of(resample, ("none", "bernoulli"), where="learner.resample")
        ),
        choose=_mechanism(noise, exact),
        charge=exact,
    )


def _mechanism(noise: str, epsilon: Fraction) -> Mechanism:
    match noise:
        case "laplace":
            return NoisyMaxLaplace(laplace_rate(epsilon))
        case "gumbel":
            return Exponential(exponential_rate(epsilon))
        case "exponential":
            return PermuteAndFlip(permute_and_flip_rate(epsilon))
    raise InvalidConfig(
        "learner.noise", "unknown", expected="laplace | gumbel | exponential", got=noise
    )
