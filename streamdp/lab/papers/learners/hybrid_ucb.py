"""Hybrid-UCB: running sums from arrays that double, each with a tree; a release at every play.

An arm's first observation is an array of its own; then arrays of 2, 4, 8 … follow. Within an array
of 2^r every aligned stretch of 2^b observations (b < r) is a node that is released with noise of
scale r/(ε/2), and the whole array is released with Lap(1/(ε/2)).

Privacy: ε-DP for replacing one record's content: an observation is in r nodes of ε/(2r) each and in
its array, of ε/2.
Differs from the paper: there the tree has a root of its own beside the array, r + 1 levels in all
at r/(ε/2), which is 1.5 ε (enumerated; reached with two observations). Here the array's noisy sum
is the root. `root="printed"` is for `reproduce` and the audit, and is charged 1.5 ε. The opening
play gets Lap(1/ε), not the printed Lap(2/ε): it enters one release only.

Reference: Hu et al. 2021, Appendix E, Algorithm 4: Hybrid-UCB
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import log2, sqrt

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.calibration import parse_epsilon
from streamdp.core.learners.leader import one_of, read_actions
from streamdp.lab.papers.learners.bandit import (
    Bandit,
    Chance,
    Part,
    bandit_recipe,
)
from streamdp.lab.papers.learners.phases import best, constant

ROOTS = ("array", "printed")


@dataclass(slots=True)
class _Arm:
    """The public sums of one arm."""

    count: int = 0
    level: int = 0  # the open array has 2**level observations
    place: int = 0  # how many of them were entered
    closed: float = 0.0  # noisy rewards of the complete arrays
    nodes: dict[int, float] = field(default_factory=dict)  # by level: the expansion of `place`

    @property
    def start(self) -> int:
        """The open array's first observation."""
        return self.count - self.place + 1

    @property
    def mean(self) -> float:
        """The mean reward of everything released."""
        return (self.closed + sum(self.nodes.values())) / self.count


@dataclass(slots=True)
class TreeCourse:
    """The course of Hybrid-UCB."""

    actions: int
    epsilon: Fraction
    printed: bool
    arms: list[_Arm] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing known."""
        self.arms = [_Arm() for _ in range(self.actions)]

    def begin_slot(self, slot: int, entered: Sequence[int]) -> None:
        """Nothing depends on the calendar."""

    def plays(self, slot: int, most: int, chance: Chance) -> Ints:
        """Each arm once, then the largest index; every play may change it."""
        unknown = [arm for arm, state in enumerate(self.arms) if not state.count]
        if unknown:
            return constant(unknown[(slot - 1) % len(unknown)], 1)
        means = np.array([state.mean for state in self.arms])
        counts = np.array([state.count for state in self.arms])
        return constant(best(tree_index(means, counts, slot, float(self.epsilon))), 1)

    def open_from(self, arm: int) -> Sequence[int]:
        """The beginnings of the array and the nodes that hold the latest observation."""
        state = self.arms[arm]
        starts = {state.start + (state.place >> b << b) for b in range(state.level + 1)}
        return sorted(starts)

    def parts(self, arm: int) -> Sequence[Part]:
        """The node or the array that the next observation completes."""
        state = self.arms[arm]
        stop = state.count + 2
        if not state.count:
            return (Part(1, 2, self.epsilon),)
        place, half = state.place + 1, self.epsilon / 2
        low = (place & -place).bit_length() - 1
        if low < state.level:
            return (Part(stop - (1 << low), stop, half / state.level),)
        whole = Part(state.start, stop, half)
        if self.printed:
            return (whole, Part(state.start, stop, half / state.level))
        return (whole,)

    def released(self, slot: int, arm: int, sums: Sequence[float], chance: Chance) -> None:
        """Note the reward of a node, or of the whole array."""
        state = self.arms[arm]
        state.count += 1
        if state.count == 1:
            state.closed, state.level, state.place = 1 - sums[0], 1, 0
            return
        state.place += 1
        low = (state.place & -state.place).bit_length() - 1
        reward = (1 << low) - sums[0]
        state.nodes = {level: node for level, node in state.nodes.items() if level > low}
        if low < state.level:
            state.nodes[low] = reward
        else:
            state.closed += reward
            state.level, state.place = state.level + 1, 0


def tree_index(means: Floats, counts: Ints, slot: int, epsilon: float) -> Floats:
    """mean + √(3 log₂ t/O) + 6√8 log₂ t ⌊log₂(O + 1)⌋/(εO)."""
    level = log2(slot)
    depth = np.floor(np.log2(counts + 1))
    return means + np.sqrt(3 * level / counts) + 6 * sqrt(8) * level * depth / (epsilon * counts)


@bandit_recipe
def hybrid_ucb(
    *, actions: Sequence[str], epsilon: str | Fraction | int, root: str = "array"
) -> Bandit:
    """The largest optimistic index of running private sums.

    Privacy: ε-DP for replacing one record's content; 3ε/2 with `root="printed"`.
    Arguments: `root` says what the tree's root is: the `array`, or a node of its own as `printed`.
    Reference: Hu et al. 2021, Algorithm 4.

    >>> hybrid_ucb(actions=["a", "b"], epsilon="1", root="printed").charge
    Fraction(3, 2)
    """
    names, exact = read_actions(actions), parse_epsilon(epsilon, "learner.epsilon")
    printed = one_of(root, ROOTS, where="learner.root") == "printed"
    charge = exact * Fraction(3, 2) if printed else exact
    return Bandit(names, charge, lambda: TreeCourse(len(names), exact, printed))
