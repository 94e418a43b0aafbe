"""Doubling phases: a learner uses only the newest complete phase of each arm.

An arm's observations are cut into phases; when one is full its noisy sum replaces the one before.
Every observation is in one phase, so it is charged once. A phase that is interrupted because
another arm is played goes on when the arm is played again.

A `PhaseRule` chooses the arm. It is asked for every slot, as in the papers, or once for a whole
phase (`held`): then the arm stays in force until its phase is complete, so that each decision has
one release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.calibration import parse_epsilon
from streamdp.core.learners.leader import read_actions
from streamdp.lab.papers.learners.bandit import Bandit, Chance, Part


@dataclass(slots=True)
class ArmPhases:
    """The public state of the arms: the newest full phase of each."""

    count: Ints  # its observations; 0: none is full yet
    mean: Floats  # its noisy mean reward
    epsilon: float
    slot: int = 0  # the slot of the newest release


PhaseRule = Callable[[ArmPhases, int, int, Chance], Ints]
"""Chooses arms from their phases, of which each arm has a full one: those of the next 1 to so many
slots (the third argument) from a slot on (the second), if nothing is released meanwhile."""


@dataclass(slots=True)
class PhaseCourse:
    """The course of a learner with doubling phases.

    `second` is the length of an arm's second phase (the first has one observation): 2 where phases
    double each other, 1 where a phase doubles all that the arm has been played.
    """

    actions: int
    epsilon: Fraction
    rule: PhaseRule
    second: int
    held: bool
    known: ArmPhases = field(init=False)
    _start: Ints = field(init=False)
    _length: Ints = field(init=False)
    _in_force: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Begin with nothing known."""
        self.known = ArmPhases(
            np.zeros(self.actions, dtype=np.int64), np.zeros(self.actions), float(self.epsilon)
        )
        self._start = np.ones(self.actions, dtype=np.int64)
        self._length = np.ones(self.actions, dtype=np.int64)

    def begin_slot(self, slot: int, entered: Sequence[int]) -> None:
        """Nothing depends on the calendar."""

    def plays(self, slot: int, most: int, chance: Chance) -> Ints:
        """Each arm once, in turn; then the rule's choice."""
        unknown = np.flatnonzero(self.known.count == 0)
        if len(unknown):
            return unknown[[(slot - 1) % len(unknown)]]
        if not self.held:
            return self.rule(self.known, slot, most, chance)
        if self._in_force is None:
            self._in_force = int(self.rule(self.known, slot, 1, chance)[0])
        return constant(self._in_force, most)

    def open_from(self, arm: int) -> Sequence[int]:
        """The open phase's first observation."""
        return (int(self._start[arm]),)

    def parts(self, arm: int) -> Sequence[Part]:
        """The open phase."""
        start = int(self._start[arm])
        return (Part(start, start + int(self._length[arm]), self.epsilon),)

    def released(self, slot: int, arm: int, sums: Sequence[float], chance: Chance) -> None:
        """Take a complete phase in place of the arm's one before; the next is twice as long."""
        length = int(self._length[arm])
        first = self._start[arm] == 1
        self.known.count[arm] = length
        self.known.mean[arm] = 1 - sums[0] / length
        self.known.slot = slot
        self._start[arm] += length
        self._length[arm] = self.second if first else 2 * length
        if arm == self._in_force:
            self._in_force = None


def phased(
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    rule: PhaseRule,
    *,
    second: int = 2,
    held: bool = False,
) -> Bandit:
    """A learner that plays by a rule on doubling phases: ε-DP, whatever the rule."""
    names, exact = read_actions(actions), parse_epsilon(epsilon, "learner.epsilon")
    return Bandit(
        names, exact, lambda: PhaseCourse(len(names), exact, rule, second=second, held=held)
    )


def constant(arm: int, count: int) -> Ints:
    """One arm for some slots."""
    return np.full(count, arm, dtype=np.int64)


def best(index: Floats) -> int:
    """The arm with the largest index; the first of several, which is public."""
    return int(index.argmax())
