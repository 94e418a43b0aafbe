"""One arm's sums of losses, kept only for the places where an open part may begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from streamdp.core.errors import InvalidConfig
from streamdp.lab.papers.learners.bandit import Part

Amount = TypeVar("Amount", int, float)


class PartSums(Generic[Amount]):
    """Exact integers of the grid in an engine; losses in a simulation.

    >>> sums = PartSums(0)
    >>> sums.keep([1])
    >>> sums.add(5)
    >>> sums.between(Part(1, 2, None))
    5
    """

    __slots__ = ("_total", "_until", "count")

    def __init__(self, zero: Amount) -> None:
        self._total: Amount = zero
        self.count = 0
        self._until: dict[int, Amount] = {}  # by a part's first observation: the sum before it

    def __repr__(self) -> str:
        """Show the count, never the content."""
        return f"PartSums({self.count} observations)"

    def keep(self, starts: Sequence[int]) -> None:
        """Keep only the sums before these observations (earlier ones, or the next)."""
        following = self.count + 1
        until = {start: self._until[start] for start in starts if start in self._until}
        if following in starts:
            until[following] = self._total
        self._until = until

    def add(self, amount: Amount, *, observations: int = 1) -> None:
        """Add the total loss of the next observations."""
        self._total += amount
        self.count += observations

    def between(self, part: Part) -> Amount:
        """The sum of a part that ends with the latest observation."""
        if part.stop != self.count + 1 or part.start not in self._until:
            expected = f"one that ends with observation {self.count} and was open"
            got = f"{part.start} to {part.stop - 1}"
            raise InvalidConfig("learner", "no such part", expected=expected, got=got)
        return self._total - self._until[part.start]
