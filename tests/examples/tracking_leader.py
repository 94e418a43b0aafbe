"""Permute-and-flip on blocks that stop growing: gives up the horizon-free theorem to track drift.

Privacy: ε-DP for replacing one event. Sensitivity: 2, of the difference of two actions' sums. Why:
each block's selection is permute-and-flip at rate ε/2, and no slot belongs to two blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from streamdp.core.calibration import parse_epsilon, permute_and_flip_rate
from streamdp.core.learners.leader import Leader, read_actions, read_schedule, recipe
from streamdp.core.selection import PermuteAndFlip


@recipe
def tracking_leader(
    *, actions: Sequence[str], epsilon: str | Fraction | int, longest: str | int = 512
) -> Leader:
    """Permute-and-flip on blocks that stop growing.

    Privacy: ε-DP for replacing one event.
    Arguments: `longest` is the length of the longest block, in slots.
    Reference: McKenna & Sheldon 2020, Theorem 1.

    >>> tracking_leader(actions=["a", "b"], epsilon="1", longest=4).schedule.longest
    4
    """
    exact = parse_epsilon(epsilon, "learner.epsilon")
    return Leader(
        actions=read_actions(actions),
        schedule=read_schedule(f"capped {longest}"),
        window="whole",
        resample="none",
        choose=PermuteAndFlip(permute_and_flip_rate(exact)),
        charge=exact,
    )
