"""Randomized-prefix softmax: the learner with the proven optimal gap-dependent rate.

Privacy: 2η-DP for replacing one event, η = min(ε/2, cap). Sensitivity: 2 in the difference of two
sums. Why: the exponential mechanism at rate η on sums over a window that does not depend on data.

Reference: Cesari & Colomboni 2026, §4: block r has 2^r slots; its window is the first M_r of them,
# M_0 = 1, M_r uniform on {2^(r−1)+1, …, 2^r}, drawn when the block opens.

Differs from the paper: the printed index of the window's s-th vector, X_{2^(r−1)+s}, would let
consecutive windows overlap; the s-th vector of block r is X_{2^r−1+s} when slots are numbered from
1. The charge is 2η, which is less than ε where the cap binds: above ε = 1/4 the capped learner
spends 1/4. `cap="none"` lifts the cap; that is still ε-DP, but the theorem no longer covers it. In
a block of n slots of another schedule the window is uniform on {⌊n/2⌋+1, …, n}.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from streamdp.core.calibration import PREFIX_CAP, parse_epsilon, prefix_softmax_rate
from streamdp.core.learners.leader import Leader, read_actions, read_schedule, recipe
from streamdp.core.schedule import Schedule
from streamdp.core.selection import Exponential


@recipe
def prefix_softmax(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    schedule: Schedule | str = "dyadic",
    cap: str | Fraction | None = PREFIX_CAP,
) -> Leader:
    """Softmax on a random prefix of each block: the proven optimal gap-dependent rate.

    Privacy: 2η-DP for replacing one event, with η = min(ε/2, cap).
    Arguments: `cap` bounds η as the theorem asks; `none` spends all of ε. `schedule` says how
    blocks grow.
    Reference: Cesari & Colomboni 2026, §4.

    >>> capped = prefix_softmax(actions=["a", "b"], epsilon="1")
    >>> free = prefix_softmax(actions=["a", "b"], epsilon="1", cap="none")
    >>> str(capped.charge), str(free.charge)
    ('1/4', '1')
    """
    exact = parse_epsilon(epsilon, "learner.epsilon")
    limit = None if cap in (None, "none") else parse_epsilon(cap, "learner.cap")
    rate = prefix_softmax_rate(exact, cap=limit)
    return Leader(
        actions=read_actions(actions),
        schedule=read_schedule(schedule),
        window="random_prefix",
        resample="none",
        choose=Exponential(rate.eta),
        charge=rate.charge,
    )
