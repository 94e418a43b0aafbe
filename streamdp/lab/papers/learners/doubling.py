"""Public doubling of the horizon: learners that need to know how long they run, for streams.

A course runs for a horizon H, the next for 2H, then 4H …: a new course begins at the slots H + 1,
3H + 1, 7H + 1, which is a function of the slot number. Parts that are open then are abandoned: they
are never released, and cost nothing. With a given horizon the one course runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from streamdp.core.arrays import Ints
from streamdp.lab.papers.learners.bandit import Chance, Course, Part

FIRST_HORIZON = 1024


@dataclass(slots=True)
class Doubling:
    """Courses of rising horizons, one after another."""

    actions: int
    course_of: Callable[[int], Course]  # of a horizon
    first: int = FIRST_HORIZON
    _course: Course = field(init=False)
    _until: int = field(init=False)  # the last slot of the current course
    _since: int = field(init=False, default=0)
    _before: list[int] = field(init=False)  # observations of each arm when it began

    def __post_init__(self) -> None:
        """Begin with the first horizon."""
        self._course, self._until = self.course_of(self.first), self.first
        self._before = [0] * self.actions

    def begin_slot(self, slot: int, entered: Sequence[int]) -> None:
        """Begin the next course where the current one's horizon is over."""
        if slot > self._until:
            self._since = self._until
            horizon = self._until + self.first
            self._course, self._until = self.course_of(horizon), self._until + horizon
            self._before = list(entered)
        own = [count - before for count, before in zip(entered, self._before, strict=True)]
        self._course.begin_slot(slot - self._since, own)

    def plays(self, slot: int, most: int, chance: Chance) -> Ints:
        """Up to the horizon's end."""
        return self._course.plays(slot - self._since, min(most, self._until - slot + 1), chance)

    def open_from(self, arm: int) -> Sequence[int]:
        """The current course's."""
        return [start + self._before[arm] for start in self._course.open_from(arm)]

    def parts(self, arm: int) -> Sequence[Part]:
        """The current course's, in the arm's own numbering."""
        return [part.shifted(self._before[arm]) for part in self._course.parts(arm)]

    def released(self, slot: int, arm: int, sums: Sequence[float], chance: Chance) -> None:
        """Pass the sums to the current course."""
        self._course.released(slot - self._since, arm, sums, chance)
