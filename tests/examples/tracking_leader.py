"""Permute-and-flip on blocks that stop growing: gives up the horizon-free theorem to track drift.

Privacy: ε-DP for replacing one event. Sensitivity: a replaced vector moves the difference of two
actions' sums by at most 2. Why: each block's selection is permute-and-flip at rate ε/2, and no slot
belongs to two blocks (McKenna & Sheldon 2020, Theorem 1).
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
    """Blocks of at most `longest` slots."""
    exact = parse_epsilon(epsilon, "learner.epsilon")
    return Leader(
        actions=read_actions(actions),
        schedule=read_schedule(f"capped {longest}"),
        window="whole",
        resample="none",
        choose=PermuteAndFlip(permute_and_flip_rate(exact)),
        charge=exact,
    )
