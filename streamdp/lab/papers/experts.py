"""Runs one of the papers' learners with expert advice for one key, a batch after another.

Rules:

1. Advice comes with the choice, before any loss, and is public. A choice carries all of its public
   data; the observation names the choice and brings the loss.
2. An observation of an earlier batch's choice is not entered and charged nothing.
3. A batch ends after τ entered observations: each of its cells is released once, with discrete
   Laplace noise. Batches share no observation, so an observation costs the learner's charge once; a
   smaller budget is refused in the constructor.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from streamdp.core.arrays import Floats
from streamdp.core.calibration import parse_epsilon
from streamdp.core.engine.arguments import check_randomness
from streamdp.core.errors import InvalidConfig
from streamdp.core.grid import UNIT
from streamdp.core.noise import discrete_laplaces
from streamdp.core.randomness import Purpose, Randomness
from streamdp.lab.papers.bandit import check_type, on_grid
from streamdp.lab.papers.learners.bases import drawn
from streamdp.lab.papers.learners.experts import (
    PARTS,
    ExpertLearner,
    advice_digest,
    read_advice,
)
from streamdp.lab.papers.numbered_draws import NumberedDraws


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """The played action, and the public data behind it."""

    action: str
    probability: float
    batch: int
    advice: Floats
    chances: Floats


@dataclass(frozen=True, slots=True)
class ExpertRelease:
    """The noisy cells of a batch, and the charge of each of its observations."""

    batch: int
    epsilon: Fraction
    delta: Fraction
    advice: tuple[str, ...]  # the digests of the batch's advice, in order
    units: Mapping[Hashable, int]  # loss × weight, in parts of 2^32


class ExpertEngine:
    """One run of a learner with expert advice.

    >>> from streamdp.lab.papers.learners import EXPERT_RECIPES
    >>> from streamdp.core.randomness import SeededRandomness
    >>> make = EXPERT_RECIPES["batched_exp4"]
    >>> learner = make(actions=["a", "b"], experts=2, epsilon="1", tau=2)
    >>> engine = ExpertEngine(learner, budget="1", randomness=SeededRandomness(1))
    >>> for loss in (0.0, 1.0):
    ...     release = engine.observe(engine.choose([[1, 0], [0, 1]]), loss)
    >>> release.epsilon, len(release.advice)
    (Fraction(1, 1), 2)
    """

    def __init__(
        self,
        learner: ExpertLearner,
        *,
        budget: str | Fraction | int,
        randomness: Randomness,
        stream: str = "experts",
    ) -> None:
        example = "batched_exp4(actions=…, experts=2, …)"
        check_type("learner", learner, ExpertLearner, f"what a recipe makes, such as {example}")
        check_randomness(randomness)
        if (exact := parse_epsilon(budget, "budget")) < learner.charge:
            expected = f"at least what {learner.name} charges, {learner.charge}"
            raise InvalidConfig("budget", "too small", expected=expected, got=exact)
        self.learner = learner
        self.batch = 0
        self._course = learner.begin()
        self._draws = NumberedDraws(randomness, stream)
        self._arms = {name: arm for arm, name in enumerate(learner.actions)}
        self._sums: dict[Hashable, int] = {}
        self._advice: list[str] = []

    def __repr__(self) -> str:
        """Show the position, never the content."""
        return f"ExpertEngine({self.learner}, batch {self.batch})"

    def choose(self, advice: object) -> ExpertChoice:
        """Draw an action under this advice: a row of chances for each expert."""
        experts, names = self.learner.experts, self.learner.actions
        rows = read_advice(advice, experts=experts, actions=len(names))
        chance = self._draws.chance(Purpose.SELECTION)
        chances = self._course.chances(rows, chance)
        arm = int(drawn(chances[None], chance)[0])
        return ExpertChoice(names[arm], float(chances[arm]), self.batch, rows, chances)

    def observe(self, choice: ExpertChoice, loss: object) -> ExpertRelease | None:
        """Enter the loss of a choice; return the batch's release if this was its last one."""
        check_type("choice", choice, ExpertChoice, "what `choose` returned")
        if choice.batch != self.batch:
            return None
        cells = self._course.cells(choice.advice, choice.chances, self._arms[choice.action])
        units = on_grid(loss)
        for cell, weight in cells.items():
            self._sums[cell] = self._sums.get(cell, 0) + units * weight
        self._advice.append(advice_digest(choice.advice))
        return self._released() if len(self._advice) == self._course.tau else None

    def _released(self) -> ExpertRelease:
        noises = self._course.noises()
        if not self._sums.keys() <= noises.keys():
            raise InvalidConfig(
                "learner",
                "cells without noise",
                expected=f"noise for each of {len(self._sums)} cells",
                got=f"noise for {len(self._sums.keys() & noises.keys())}",
            )
        bits = self._draws.bits(Purpose.NOISE)
        units = {}
        for place, (cell, noise) in enumerate(noises.items()):
            scale = Fraction(noise.largest * UNIT) / noise.epsilon
            drawn_noise = int(discrete_laplaces(scale, bits, 1, position=2 * place)[0, 0])
            units[cell] = self._sums.get(cell, 0) + drawn_noise
        sums = {cell: value / (UNIT * PARTS) for cell, value in units.items()}
        self._course.released(sums, self._draws.chance(Purpose.RESAMPLE))
        advice = tuple(self._advice)
        release = ExpertRelease(self.batch, self.learner.charge, self.learner.delta, advice, units)
        self.batch, self._sums, self._advice = self.batch + 1, {}, []
        return release
