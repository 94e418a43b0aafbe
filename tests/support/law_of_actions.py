"""The exact law of a bandit learner's *actions*: the second line behind the audit of its releases.

Releases are what is protected, and they are audited first (`streamdp.lab.papers.audit`). Actions
follow from them, so they can only tell less; but where a learner is played by an index, seven slots
of actions already tell almost all of ε, so halving the noise shows in what is played.

For two arms, losses of 0 or 1, and a learner with doubling phases and an index: the joint mass of
the two newest noisy sums is carried from slot to slot on a grid, cut where the index decides, and
drawn anew where a phase ends. Noise is discrete Laplace on that grid, which is coarser than the
shipped one; the law of a sum moves by far less than a step of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import log

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats
from streamdp.lab.papers.learners.phases import ArmPhases

Index = Callable[[ArmPhases, int], Floats]
"""The indices of all arms at a slot."""

_REACH = 16.0  # of the noise, in scales: e^-16 lies beyond
_LEAST = 1e-11  # actions less likely than this are not compared


@dataclass(frozen=True, slots=True)
class Law:
    """The law of the actions of one learner, slot by slot."""

    index: Index
    epsilon: float
    second: int  # the length of an arm's second phase
    steps: int = 8  # of the grid, in a loss of 1
    noise: float = 1.0  # in scales of 1/ε: 1/2 is a broken learner
    _grid: Floats = field(init=False)

    def __post_init__(self) -> None:
        """Lay out the grid of noisy sums."""
        reach = int(_REACH * self.noise / self.epsilon * self.steps) + 8 * self.steps
        object.__setattr__(self, "_grid", np.arange(-reach, reach + 1) / self.steps)

    def of(self, losses: Sequence[int]) -> dict[tuple[int, ...], float]:
        """The probability of each sequence of actions, if the played arm loses these."""
        return dict(self._from(_State(), (), losses))

    def _drawn(self, exact: int) -> Floats:
        """The law of a noisy sum."""
        mass = np.exp(-np.abs(self._grid - exact) * self.epsilon / self.noise)
        law: Floats = mass / mass.sum()
        return law

    def _from(
        self, state: _State, actions: tuple[int, ...], losses: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        slot = len(actions)
        if slot == len(losses):
            yield actions, float(state.mass.sum())
            return
        if slot < 2:
            yield from self._played(state, slot, actions, losses, state.mass)
            return
        first = self._first_leads(state, slot + 1)
        for arm, chosen in ((0, first), (1, ~first)):
            yield from self._played(state, arm, actions, losses, state.mass * chosen)

    def _first_leads(self, state: _State, slot: int) -> NDArray[np.bool_]:
        """Where arm 0 is played: its index is the larger, or equal."""
        counts = np.array(state.count)
        bonus = self.index(ArmPhases(counts, np.zeros(2), self.epsilon), slot)
        index = [bonus[arm] + 1 - self._grid / counts[arm] for arm in (0, 1)]
        leads: NDArray[np.bool_] = index[0][:, None] >= index[1][None, :]
        return leads

    def _played(
        self,
        state: _State,
        arm: int,
        actions: tuple[int, ...],
        losses: Sequence[int],
        mass: Floats,
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        after = state.entered(arm, losses[len(actions)], mass)
        if after.open[arm][0] == after.length(arm, self.second):
            total = after.mass.sum(axis=arm, keepdims=True)
            shape = (-1, 1) if arm == 0 else (1, -1)
            mass = self._drawn(after.open[arm][1]).reshape(shape) * total
            after = after.closed(arm, self.second, mass)
        yield from self._from(after, (*actions, arm), losses)


@dataclass(frozen=True, slots=True)
class _State:
    """What has happened on one branch; the mass of the two newest noisy sums."""

    mass: Floats = field(default_factory=lambda: np.ones((1, 1)))
    count: tuple[int, int] = (0, 0)  # observations of the newest full phase
    phases: tuple[int, int] = (0, 0)  # how many are full
    open: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))  # observations and sum

    def length(self, arm: int, second: int) -> int:
        """Of the arm's open phase."""
        phase = self.phases[arm]
        return 1 if phase == 0 else second << (phase - 1)

    def entered(self, arm: int, loss: int, mass: Floats) -> _State:
        """One more observation."""
        observations, total = self.open[arm]
        open_ = list(self.open)
        open_[arm] = (observations + 1, total + loss)
        return _State(mass, self.count, self.phases, (open_[0], open_[1]))

    def closed(self, arm: int, second: int, mass: Floats) -> _State:
        """The arm's open phase is its newest full one."""
        count, phases, open_ = list(self.count), list(self.phases), list(self.open)
        count[arm], open_[arm] = self.length(arm, second), (0, 0)
        phases[arm] += 1
        return _State(mass, (count[0], count[1]), (phases[0], phases[1]), (open_[0], open_[1]))


def worst_of_actions(law: Law, *, slots: int) -> float:
    """The largest |log-ratio| of a sequence of actions over neighbouring losses."""
    laws = {losses: law.of(losses) for losses in product((0, 1), repeat=slots)}
    worst = 0.0
    for losses, one in laws.items():
        for at in range(slots):
            other = laws[(*losses[:at], 1 - losses[at], *losses[at + 1 :])]
            for actions, probability in one.items():
                if min(probability, other[actions]) > _LEAST:
                    worst = max(worst, log(probability / other[actions]))
    return worst
