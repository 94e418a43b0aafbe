"""DP-SE: private successive elimination in epochs, and then one arm for ever.

Privacy: ε-DP for replacing one record's content: an observation is in one epoch of one arm, whose
sum has sensitivity 1 and gets Lap(1/ε). How long an epoch is follows from the arms that survived.
Arguments: `horizon` is the number of slots that β = 1/T is set for; without it horizons double.
Each arm plays its whole part of an epoch at once instead of in turns with the others: for
independent losses that is the same law.

Reference: Sajed & Sheffet 2019, DP-SE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, log, sqrt

from streamdp.core.arrays import Ints
from streamdp.core.calibration import parse_epsilon
from streamdp.core.learners.leader import read_actions
from streamdp.lab.papers.learners.bandit import (
    Bandit,
    Chance,
    Course,
    Part,
    bandit_recipe,
    read_horizon,
)
from streamdp.lab.papers.learners.doubling import Doubling
from streamdp.lab.papers.learners.phases import constant


@dataclass(slots=True)
class Elimination:
    """The course of DP-SE with a failure probability β."""

    actions: int
    epsilon: Fraction
    beta: float
    survivors: list[int] = field(init=False)
    epoch: int = field(init=False, default=1)
    _means: dict[int, float] = field(init=False, default_factory=dict)
    _start: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with every arm."""
        self.survivors = list(range(self.actions))
        self._start = [1] * self.actions

    @property
    def length(self) -> int:
        """How many observations of each survivor this epoch takes."""
        gap, count = 2.0**-self.epoch, len(self.survivors)
        epsilon, squared = float(self.epsilon), self.epoch**2
        samples = 32 * log(8 * count * squared / self.beta) / gap**2
        private = 8 * log(4 * count * squared / self.beta) / (epsilon * gap)
        return ceil(max(samples, private) + 1)

    def begin_slot(self, slot: int, entered: Sequence[int]) -> None:
        """Nothing depends on the calendar."""

    def plays(self, slot: int, most: int, chance: Chance) -> Ints:
        """The first survivor whose part of the epoch is open; the last survivor for ever."""
        if len(self.survivors) == 1:
            return constant(self.survivors[0], most)
        return constant(next(arm for arm in self.survivors if arm not in self._means), most)

    def open_from(self, arm: int) -> Sequence[int]:
        """The beginning of the arm's part of this epoch."""
        return (self._start[arm],)

    def parts(self, arm: int) -> Sequence[Part]:
        """The arm's part of this epoch."""
        if len(self.survivors) == 1 or arm not in self.survivors or arm in self._means:
            return ()
        return (Part(self._start[arm], self._start[arm] + self.length, self.epsilon),)

    def released(self, slot: int, arm: int, sums: Sequence[float], chance: Chance) -> None:
        """Note one arm's mean; after the last survivor's, drop the arms that are clearly worse."""
        length = self.length
        self._means[arm] = 1 - sums[0] / length
        self._start[arm] += length
        count, squared = len(self.survivors), self.epoch**2
        if len(self._means) < count:
            return
        width = sqrt(log(8 * count * squared / self.beta) / (2 * length))
        private = log(4 * count * squared / self.beta) / (length * float(self.epsilon))
        most = max(self._means.values())
        self.survivors = [
            arm for arm in self.survivors if most - self._means[arm] <= 2 * width + 2 * private
        ]
        self.epoch, self._means = self.epoch + 1, {}


@bandit_recipe
def dp_se(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    horizon: str | int | None = None,
) -> Bandit:
    """Eliminate the arms that are clearly worse, epoch by epoch.

    Privacy: ε-DP for replacing one record's content.
    Arguments: `horizon` is the slots that β = 1/T is set for; without one it is doubled.
    Reference: Sajed & Sheffet 2019, DP-SE.

    >>> dp_se(actions=["a", "b"], epsilon="1", horizon=1000).options[1]
    ('horizon', '1000')
    """
    names, exact = read_actions(actions), parse_epsilon(epsilon, "learner.epsilon")
    slots = read_horizon(horizon, where="learner.horizon")

    def course_of(run: int) -> Course:
        return Elimination(len(names), exact, 1 / run)

    if slots is not None:
        return Bandit(names, exact, lambda: course_of(slots))
    return Bandit(names, exact, lambda: Doubling(len(names), course_of))
