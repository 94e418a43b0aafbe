"""The straw man: noise of scale K/ε on every sum, then the smallest.

Privacy: ε-DP for replacing one event. Sensitivity: K in L1, as if all K noisy sums were published.
Why: the Laplace mechanism on the vector of sums; the selection post-processes it. A noisy max
needs only noise of scale 2/ε, so this recipe is only a baseline.

Reference: Hu et al. 2025, §5
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from streamdp.core.calibration import naive_laplace_rate, parse_epsilon
from streamdp.core.learners.leader import Leader, read_actions, read_schedule, recipe
from streamdp.core.schedule import Schedule
from streamdp.core.selection import NoisyMaxLaplace


@recipe
def naive_noisy_leader(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    schedule: Schedule | str = "dyadic",
) -> Leader:
    """Laplace noise of scale K/ε on every sum, then the smallest: the straw man.

    Privacy: ε-DP for replacing one event.
    Arguments: `schedule` says how blocks grow.
    Reference: Hu et al. 2025, §5.

    >>> str(naive_noisy_leader(actions=["a", "b", "c", "d"], epsilon="1").choose.rate)
    '1/4'
    """
    exact = parse_epsilon(epsilon, "learner.epsilon")
    names = read_actions(actions)
    return Leader(
        actions=names,
        schedule=read_schedule(schedule),
        window="whole",
        resample="none",
        choose=NoisyMaxLaplace(naive_laplace_rate(exact, actions=len(names))),
        charge=exact,
    )
