"""The conversion of any bandit algorithm to a private one: batches, and Laplace noise on the mean.

A batch of τ = ⌈1/ε⌉ slots plays one arm; the base algorithm gets the batch's mean loss plus
Lap(1/(τε)), which is the sum plus Lap(1/ε), divided by τ.

Privacy: ε-DP for replacing one record's content: an observation is in one batch, whose sum has
sensitivity 1. It holds for every ε and τ (ε ≤ 1 is a condition of the rates only). An incomplete
batch at the end of a run is never released.
Arguments: `base` is `htinf` (default: the only one that learns at horizons below a million),
`exp3` or `ftpl`; `tau` the batch; `horizon` the slots that EXP3's and FTPL's constants are set for
(without one it is doubled, see `doubling`; HTINF needs none); `constants` are `general` (right for
any λ) or `printed` (Corollaries 1 and 3: for λ = 1); `sigma` is HTINF's: √(1 + 2λ²) by default,
since loss and noise are independent and E(ℓ + Z)² = ℓ² + 2λ², where the paper bounds it by 2 + 4λ²
(its σ = √6 for λ = 1); `eta` and `gamma` replace EXP3's.

Reference: Asi, Raman & Talwar 2025, Algorithms 1, 3 and 4, Corollaries 1 to 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, sqrt

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig
from streamdp.core.learners.leader import one_of, read_actions
from streamdp.lab.papers.learners.bandit import (
    Bandit,
    Chance,
    Course,
    Number,
    Part,
    bandit_recipe,
    read_horizon,
    read_number,
)
from streamdp.lab.papers.learners.bases import (
    Base,
    Exp3,
    Ftpl,
    Htinf,
    exp3_rates,
    ftpl_rates,
    printed_exp3_rates,
)
from streamdp.lab.papers.learners.doubling import FIRST_HORIZON, Doubling
from streamdp.lab.papers.learners.phases import constant

BASES = ("htinf", "exp3", "ftpl")
CONSTANTS = ("general", "printed")


@dataclass(slots=True)
class BatchCourse:
    """The course of a converted base: one arm a batch, one part a batch."""

    actions: int
    epsilon: Fraction
    tau: int
    base: Base
    _arm: int | None = field(init=False, default=None)
    _entered: list[int] = field(init=False)  # observations of each arm in complete batches

    def __post_init__(self) -> None:
        """Begin with nothing known."""
        self._entered = [0] * self.actions

    def begin_slot(self, slot: int, entered: Sequence[int]) -> None:
        """Nothing depends on the calendar."""

    def plays(self, slot: int, most: int, chance: Chance) -> Ints:
        """The arm of the batch."""
        if self._arm is None:
            self._arm = int(self.base.draw(chance)[0])
        return constant(self._arm, most)

    def open_from(self, arm: int) -> Sequence[int]:
        """The beginning of the batch."""
        return (self._entered[arm] + 1,)

    def parts(self, arm: int) -> Sequence[Part]:
        """The batch, of its own arm."""
        start = self._entered[arm] + 1
        return (Part(start, start + self.tau, self.epsilon),) if arm == self._arm else ()

    def released(self, slot: int, arm: int, sums: Sequence[float], chance: Chance) -> None:
        """Feed the base the batch's noisy mean."""
        self._entered[arm] += self.tau
        self._arm = None
        self.base.learn(np.array([arm]), np.array([sums[0] / self.tau]), chance)


@dataclass(frozen=True, slots=True)
class Conversion:
    """The options of a conversion: batches, and the constants of the base."""

    base: str
    epsilon: Fraction
    tau: int
    constants: str
    sigma: float | None
    eta: float | None
    gamma: float | None

    @property
    def noise(self) -> float:
        """λ: the scale of the noise on a batch's mean."""
        return float(1 / (self.epsilon * self.tau))

    def begun(self, *, rows: int, actions: int, horizon: int) -> Base:
        """The base for runs of a known horizon."""
        rounds = max(1, horizon // self.tau)
        if self.base == "htinf":
            return Htinf(rows, actions, sigma=self.sigma or sqrt(1 + 2 * self.noise**2))
        printed = self.constants == "printed"
        if self.base == "ftpl":
            batches = max(2, round(float(self.epsilon) * horizon)) if printed else rounds
            eta, most = ftpl_rates(batches, actions, 1.0 if printed else self.noise)
            return Ftpl(rows, actions, eta=eta, most=most)
        if printed:
            eta, gamma = printed_exp3_rates(float(self.epsilon) * horizon, actions)
        else:
            eta, gamma = exp3_rates(rounds, actions, self.noise)
        eta = eta if self.eta is None else self.eta
        return Exp3(rows, actions, eta=eta, gamma=gamma if self.gamma is None else self.gamma)

    def first_horizon(self, actions: int) -> int:
        """The shortest of the horizons 1,024, 2,048, … at which the base's constants exist."""
        horizon = FIRST_HORIZON
        while True:
            try:
                self.begun(rows=1, actions=actions, horizon=horizon)
            except InvalidConfig:
                if horizon >= 1 << 40:
                    raise
                horizon *= 2
            else:
                return horizon


def conversion_of(
    epsilon: Fraction,
    *,
    base: str,
    tau: str | int | None,
    constants: str = "general",
    sigma: Number = None,
    eta: Number = None,
    gamma: Number = None,
) -> Conversion:
    """The options of a conversion, read."""
    name, given = one_of(base, BASES, where="learner.base"), dict[str, float | None]()
    for option, value, owner in (
        ("sigma", sigma, "htinf"),
        ("eta", eta, "exp3"),
        ("gamma", gamma, "exp3"),
    ):
        given[option] = read_number(value, where=f"learner.{option}")
        if given[option] is not None and name != owner:
            expected, got = f"base {owner}, the only one that has it", f"base {name}"
            raise InvalidConfig(f"learner.{option}", "unused", expected=expected, got=got)
    return Conversion(
        base=name,
        epsilon=epsilon,
        tau=read_horizon(tau, where="learner.tau") or ceil(1 / epsilon),
        constants=one_of(constants, CONSTANTS, where="learner.constants"),
        **given,
    )


@bandit_recipe
def converted(
    *,
    actions: Sequence[str],
    epsilon: str | Fraction | int,
    base: str = "htinf",
    tau: str | int | None = None,
    horizon: str | int | None = None,
    constants: str = "general",
    sigma: Number = None,
    eta: Number = None,
    gamma: Number = None,
) -> Bandit:
    """A base algorithm on noisy means of batches.

    Privacy: ε-DP for replacing one record's content.
    Arguments: `base` is `htinf`, `exp3` or `ftpl`; `tau` is the batch, ⌈1/ε⌉ by default; `horizon`
    the slots that constants are set for (without one it is doubled); `constants` are `general` or
    `printed`; `sigma` is HTINF's, `eta` and `gamma` are EXP3's.
    Reference: Asi, Raman & Talwar 2025, Algorithms 1, 3 and 4.

    >>> converted(actions=["a", "b"], epsilon="1/10").options[2]
    ('tau', 'none')
    """
    names, exact = read_actions(actions), parse_epsilon(epsilon, "learner.epsilon")
    conversion = conversion_of(
        exact, base=base, tau=tau, constants=constants, sigma=sigma, eta=eta, gamma=gamma
    )
    slots = read_horizon(horizon, where="learner.horizon")

    def course_of(run: int) -> Course:
        bandit = conversion.begun(rows=1, actions=len(names), horizon=run)
        return BatchCourse(len(names), exact, conversion.tau, bandit)

    if slots is not None or conversion.base == "htinf":
        known = slots or FIRST_HORIZON
        course_of(known)  # refuse constants that do not exist before a run begins
        return Bandit(names, exact, lambda: course_of(known))
    first = conversion.first_horizon(len(names))
    return Bandit(names, exact, lambda: Doubling(len(names), course_of, first=first))
