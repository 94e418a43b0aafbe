"""The default: permute-and-flip that follows change. Blocks stop growing, and votes are filtered.

Privacy: ε-DP for replacing one event. Sensitivity: a replaced vector moves the difference of two
actions' sums by at most 2. Why: as for `incumbent_leader`, each block's selection is
permute-and-flip at rate ε/2 on that block's sums alone; its bonus goes to the action in force,
which is a function of earlier releases, so it is the same for neighbours given the transcript. The
action in force is post-processing of the votes (`core.evidence`).

Blocks grow by 5/2 until a vote means something, then keep their length: a change shows after a
block or two, not after half of all events. From then on single votes may be wrong, so they are
filtered (`VoteFilter`): one dissenting vote changes nothing, a run of them does.

The final length follows from K and ε, never from data: noise has the scale 2/ε in loss, and the
largest of K draws is about ln K times as much. 32·(3 + log₂K)/ε slots did well in simulations over
stationary and drifting instances (`streamdp simulate --worlds drifting`); the minimum of 512 slots
bounds how much is released.
No theorem is claimed. Nearest: private tracking of the best expert (Asi, Raman & Saha 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from streamdp.core.calibration import INCUMBENT_BONUS, parse_epsilon, permute_and_flip_rate
from streamdp.core.evidence import NEWEST, Memory, VoteFilter
from streamdp.core.learners.leader import Leader, read_actions, read_bonus, read_schedule, recipe
from streamdp.core.learners.recipes import FITTING
from streamdp.core.schedule import Schedule, geometric
from streamdp.core.selection import PermuteAndFlip

_SHORTEST_LAST_BLOCK = 512
_SLOTS_PER_BIT = 32  # for each bit of 8·K, at ε = 1


@recipe
def remembering_leader(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    schedule: Schedule | str = FITTING,
    bonus: str | Fraction | int = INCUMBENT_BONUS,
    hazard: str | Fraction = "1/250",
) -> Leader:
    """The default: permute-and-flip on whole blocks that stop growing, its votes filtered.

    Privacy: ε-DP for replacing one event.
    Arguments: `schedule` says how blocks grow; `fitting` computes the longest one from K and ε. A
    schedule whose blocks grow for ever, or begin anew, needs no filter and gets none. `bonus` is
    the head start of the action in force, in units of the noise (2/ε of loss). `hazard` is how
    likely the best action is to change from one vote to the next.
    Reference: McKenna & Sheldon 2020 for the mechanism; schedule and filter are ours.

    >>> learner = remembering_leader(actions=["a", "b", "c"], epsilon="0.5")
    >>> learner.schedule.longest, learner.remembers
    (512, True)
    """
    exact, names = parse_epsilon(epsilon, "learner.epsilon"), read_actions(actions)
    blocks = _fitting(len(names), exact) if schedule == FITTING else read_schedule(schedule)
    return Leader(
        actions=names,
        schedule=blocks,
        window="whole",
        resample="none",
        choose=PermuteAndFlip(permute_and_flip_rate(exact)),
        charge=exact,
        bonus=read_bonus(bonus),
        memory=_memory(len(names), blocks, parse_epsilon(hazard, "learner.hazard")),
    )


def _fitting(actions: int, epsilon: Fraction) -> Schedule:
    """Growth by 5/2 up to the shortest block whose vote means something.

    >>> _fitting(5, Fraction(1)).longest, _fitting(5, Fraction(1, 10)).longest
    (512, 1920)
    """
    needed = _SLOTS_PER_BIT * (3 + (actions - 1).bit_length()) / epsilon
    return geometric("5/2", max(_SHORTEST_LAST_BLOCK, -(-needed.numerator // needed.denominator)))


def _memory(actions: int, schedule: Schedule, hazard: Fraction) -> Memory:
    """A filter of the votes, for schedules that end in blocks of one length for ever."""
    if len(schedule.tail) != 1:
        return NEWEST
    return VoteFilter(actions, schedule.tail[0], hazard)
