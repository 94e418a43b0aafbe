"""Runs one of the papers' feedback learners for one key: keeps its sums and draws its noise.

Rules:

1. Every record takes a slot. It is credited to the arm that it names, whatever is in force. A
   record that names no arm, or an arm without an open part, is not entered and charged nothing
   (that follows from headers and releases alone). Unusable content is the null loss, 1/2.
2. An arm's sum is an exact integer on the grid. When a part ends, its charge is booked in the arm's
   account first, then its sum is released with discrete Laplace noise of scale 1/ε, once.
3. The course of play gets noisy sums and nothing else.

Where a release has to survive a crash, record it before you show anything that follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import nan

import numpy as np

from streamdp.core import calibration
from streamdp.core.calibration import parse_epsilon
from streamdp.core.engine.arguments import check_action, check_randomness
from streamdp.core.errors import InvalidConfig, refuse
from streamdp.core.grid import NULL, UNIT, centred_gain
from streamdp.core.ledger import Run
from streamdp.core.noise import discrete_laplace
from streamdp.core.randomness import Purpose, Randomness
from streamdp.lab.papers.learners import Bandit, Part
from streamdp.lab.papers.ledger import Account
from streamdp.lab.papers.numbered_draws import NumberedDraws
from streamdp.lab.papers.part_sums import PartSums


@dataclass(frozen=True, slots=True)
class BanditRelease:
    """The noisy sum of a run of one arm's observations, and the charge of each of them."""

    arm: int
    action: str
    start: int  # the first observation of the arm, numbered from 1
    stop: int  # the first one after it
    slot: int  # when it was released
    epsilon: Fraction | None
    units: int  # the noisy sum of losses, in parts of 2^20

    @property
    def mean(self) -> float:
        """The noisy mean loss."""
        return self.units / UNIT / (self.stop - self.start)


class BanditEngine:
    """One run of a learner.

    >>> from streamdp.lab.papers.learners import BANDIT_RECIPES
    >>> from streamdp.core.randomness import SeededRandomness
    >>> learner = BANDIT_RECIPES["lazy_ucb"](actions=["a", "b"], epsilon="1")
    >>> engine = BanditEngine(learner, budget="1", randomness=SeededRandomness(1))
    >>> engine.action()
    'a'
    >>> [release.action for release in engine.observe("a", 0.25)]
    ['a']
    >>> engine.spent("a", 1), engine.action()
    (Fraction(1, 1), 'b')
    """

    def __init__(
        self,
        learner: Bandit,
        *,
        budget: str | Fraction | int | None,
        randomness: Randomness,
        stream: str = "bandit",
    ) -> None:
        example = 'lazy_ucb(actions=…, epsilon="0.5")'
        check_type("learner", learner, Bandit, f"what a recipe makes, such as {example}")
        check_randomness(randomness)
        if (budget is None) != (learner.charge is None):
            expected = "a budget, and None for a learner that is not private"
            raise InvalidConfig("budget", "missing", expected=expected, got=budget)
        exact = None if budget is None else parse_epsilon(budget, "budget")
        if exact is not None and learner.charge is not None and exact < learner.charge:
            expected = f"at least what {learner.name} charges, {learner.charge}"
            raise InvalidConfig("budget", "too small", expected=expected, got=exact)
        self.learner = learner
        self.slot = 1
        self._arms = {name: arm for arm, name in enumerate(learner.actions)}
        self._course = learner.begin()
        self._draws = NumberedDraws(randomness, stream)
        self._sums = [PartSums(0) for _ in learner.actions]
        self._accounts = {} if exact is None else {name: Account(exact) for name in self._arms}
        self._playing: int | None = None
        self._begin_slot()

    def __repr__(self) -> str:
        """Show the position, never the content."""
        return f"BanditEngine({self.learner}, slot {self.slot})"

    def action(self) -> str:
        """The action to play at the next slot; repeated calls give the same one."""
        if self._playing is None:
            chance = self._draws.chance(Purpose.SELECTION)
            self._playing = int(self._course.plays(self.slot, 1, chance)[0])
        return self.learner.actions[self._playing]

    def observe(self, action: str | None, loss: object) -> list[BanditRelease]:
        """Take a record (the action that it names and its loss); return what that releases."""
        check_action(action)
        arm = None if action is None else self._arms.get(action)
        releases = [] if arm is None else self._enter(arm, on_grid(loss))
        self.slot += 1
        self._begin_slot()
        return releases

    def observe_all(self, records: Iterable[tuple[str | None, object]]) -> list[BanditRelease]:
        """Take many records in their order."""
        return [release for action, loss in records for release in self.observe(action, loss)]

    def spent(self, action: str, observation: int) -> Fraction:
        """What one observation of an action was charged in total."""
        check_action(action, self._arms)
        account = self._accounts.get(action)
        return Fraction(0) if account is None else account.spent(observation)

    def accounts(self) -> Mapping[str, list[Run]]:
        """The charges of each action's observations, as runs; none without privacy."""
        return {name: list(account.runs) for name, account in self._accounts.items()}

    def _begin_slot(self) -> None:
        self._playing = None
        self._course.begin_slot(self.slot, [sums.count for sums in self._sums])

    def _enter(self, arm: int, units: int) -> list[BanditRelease]:
        parts, sums = self._course.parts(arm), self._sums[arm]
        if not parts:
            return []
        sums.keep(self._course.open_from(arm))
        sums.add(units)
        if sums.count + 1 < parts[0].stop:
            return []
        releases = [self._released(arm, part, sums.between(part)) for part in parts]
        losses = [release.units / UNIT for release in releases]
        self._course.released(self.slot, arm, losses, self._draws.chance(Purpose.RESAMPLE))
        return releases

    def _released(self, arm: int, part: Part, units: int) -> BanditRelease:
        """Book the charge, then draw."""
        name = self.learner.actions[arm]
        if part.epsilon is not None:
            if name not in self._accounts:
                expected = "none from a learner that is not private"
                got = part.epsilon
                raise InvalidConfig("learner", "a charge", expected=expected, got=got)
            self._accounts[name].book(part.start, part.stop, epsilon=part.epsilon)
            scale = calibration.laplace_scale(calibration.SUMS_SENSITIVITY, part.epsilon) * UNIT
            units += int(discrete_laplace(scale, self._draws.bits(Purpose.NOISE))[0])
        return BanditRelease(arm, name, part.start, part.stop, self.slot, part.epsilon, units)


def check_type(where: str, given: object, kind: type, expected: str) -> None:
    """Refuse what a program mixed up, such as a recipe's name in place of a learner."""
    if not isinstance(given, kind):
        refuse(where, f"no {where} for this engine", expected, type(given).__name__)


def on_grid(loss: object) -> int:
    """A loss as an integer of the grid; 1/2 for anything that is not a number (P1).

    >>> on_grid(0.5), on_grid(7.0), on_grid(float("nan")), on_grid("x")
    (524288, 1048576, 524288, 524288)
    """
    try:
        number = float(loss) if isinstance(loss, int | float | np.floating | np.integer) else nan
    except OverflowError:  # an int beyond every float
        number = nan
    return NULL - centred_gain(number)
