"""Permute-and-flip on whole blocks of ratio 5/2, with a bonus for the action in force.

Privacy: ε-DP for replacing one event. Sensitivity: a replaced vector moves the difference of two
actions' sums by at most 2. Why: each block's selection is permute-and-flip at rate ε/2 (report
noisy max with exponential noise of scale 2/ε), and the bonus depends on an earlier release only,
so it is the same for neighbours given the transcript.

Where the best action never changes it has the least regret of all recipes without a memory (see
docs/learning.md; `streamdp simulate` repeats the comparison). No horizon-free theorem is claimed
for it: the one for report-noisy-max on dyadic blocks (Wu & Wang 2026, Theorem 11) covers the same
mechanism without the bonus.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from streamdp.core.calibration import INCUMBENT_BONUS, parse_epsilon, permute_and_flip_rate
from streamdp.core.learners.leader import Leader, read_actions, read_bonus, read_schedule, recipe
from streamdp.core.schedule import Schedule
from streamdp.core.selection import PermuteAndFlip


@recipe
def incumbent_leader(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    schedule: Schedule | str = "geometric 5/2",
    bonus: str | Fraction | int = INCUMBENT_BONUS,
) -> Leader:
    """Permute-and-flip on whole blocks that grow for ever, with a bonus for the action in force.

    Privacy: ε-DP for replacing one event.
    Arguments: `bonus` is the head start of the action in force, in units of the noise (2/ε of
    loss); `schedule` says how blocks grow.
    Reference: McKenna & Sheldon 2020 for the mechanism; ours with the bonus.

    >>> incumbent_leader(actions=["a", "b"], epsilon="1/2", bonus=0).bonus
    Fraction(0, 1)
    """
    exact = parse_epsilon(epsilon, "learner.epsilon")
    return Leader(
        actions=read_actions(actions),
        schedule=read_schedule(schedule),
        window="whole",
        resample="none",
        choose=PermuteAndFlip(permute_and_flip_rate(exact)),
        charge=exact,
        bonus=read_bonus(bonus),
    )
