"""Learners with expert advice: N experts advise, one action is played, its loss is seen.

Advice must be public, so that anybody can recompute it: advice that depends on protected data makes
every ε infinite. It comes with the choice, before any loss, and each release names the digests of
the advice that it rests on.

An `ExpertCourse` is the public side: the distribution of the next action, the *cells* that an
observation is entered in with their integer weights, and the noise of each cell when a batch ends.
Weights are in parts of 2^12, so that sums stay integers on a grid: a weight ℓ/Q is ℓ times the
integer nearest to 2^12/Q, and the course divides by the same integer again.

Privacy of a release: an observation enters its cells with |weight| · 1 at most. Where it enters one
cell (`cell`, `local`, `batch`), noise of scale (largest weight of the cell)/ε is ε-DP whatever the
number of experts. With `printed` noise, adaptive or not, it enters all N cells with
e₀ = ε/(3√(N ln 1/δ)) each, which together are (ε, δ)-DP for δ < e^(−ε/1.1); pure ε already where
N ≤ 9 ln(1/δ).

Reference: Asi, Raman & Talwar 2025, Algorithms 2, 5, 6 and 7
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from math import ceil, exp, log, sqrt
from typing import ParamSpec, Protocol

import numpy as np

from streamdp.core.arrays import Floats
from streamdp.core.errors import InvalidConfig
from streamdp.core.learners.recipes import Recipes, registered
from streamdp.lab.papers.learners.bandit import Chance
from streamdp.lab.papers.learners.bases import Base, check_gamma, mixed, softmax

PARTS = 1 << 12
"""The integer that stands for a weight of 1."""

MOST_EXPERTS = 10**5

_ADVICE_ERROR = 1e-9
"""How far advice may be from adding up to 1; bounds on weights are one part wider because of it."""


@dataclass(frozen=True, slots=True)
class CellNoise:
    """The noise of one cell of a batch."""

    largest: int  # the largest weight of an observation in it, in parts
    epsilon: Fraction  # its scale is `largest`/ε


class ExpertCourse(Protocol):
    """The public side of one run; `Hashable` cells name what is summed."""

    tau: int

    def chances(self, advice: Floats, chance: Chance) -> Floats:
        """The distribution of the next action under this advice (N × K).

        Within a batch it depends on the advice alone.
        """
        ...

    def cells(self, advice: Floats, chances: Floats, action: int) -> Mapping[Hashable, int]:
        """The cells that the loss of this action enters, with weights in parts; also notes them."""
        ...

    def noises(self) -> Mapping[Hashable, CellNoise]:
        """The cells of the batch that ends now, and their noise."""
        ...

    def released(self, sums: Mapping[Hashable, float], chance: Chance) -> None:
        """Learn from the batch's noisy sums, in loss times weight."""
        ...


@dataclass(frozen=True)
class ExpertLearner:
    """A learner with expert advice as a value; one whose runs cannot begin is refused."""

    actions: tuple[str, ...]
    experts: int
    charge: Fraction
    delta: Fraction
    begin: Callable[[], ExpertCourse] = field(compare=False, repr=False)
    name: str = "experts"
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Refuse constants that do not exist before a run begins."""
        self.begin()

    def __str__(self) -> str:
        """One line for tables and logs."""
        options = ", ".join(f"{name}={value}" for name, value in self.options if value != "none")
        return f"{self.name}({options}) of {len(self.actions)} actions"


EXPERT_RECIPES: Recipes[ExpertLearner] = Recipes(default="batched_exp4")
"""Every recipe of a learner with expert advice by its name."""

P = ParamSpec("P")


def expert_recipe(function: Callable[P, ExpertLearner]) -> Callable[P, ExpertLearner]:
    """Register a recipe under its function's name, and write its options on what it makes."""
    return registered(EXPERT_RECIPES, function)


def read_advice(advice: object, *, experts: int, actions: int) -> Floats:
    """Advice as N distributions over K actions; refuse anything else.

    >>> read_advice([[1, 0]], experts=1, actions=2)
    array([[1., 0.]])
    """
    try:
        rows = np.array(advice, dtype=np.float64)  # a copy: the caller may use its buffer again
    except (TypeError, ValueError):
        rows = np.empty(0)
    expected = f"{experts} rows of {actions} chances that add up to 1"
    if rows.shape != (experts, actions):
        raise InvalidConfig("advice", "shape", expected=expected, got=rows.shape)
    if not (np.isfinite(rows).all() and (rows >= 0).all()):
        got = f"{int((~(np.isfinite(rows) & (rows >= 0))).sum())} negative or not finite"
        raise InvalidConfig("advice", "not chances", expected=expected, got=got)
    if not np.allclose(rows.sum(axis=1), 1, rtol=0, atol=_ADVICE_ERROR):
        got = f"sums from {rows.sum(axis=1).min():.6g} to {rows.sum(axis=1).max():.6g}"
        raise InvalidConfig("advice", "not chances", expected=expected, got=got)
    return rows


def advice_digest(advice: Floats) -> str:
    """A fingerprint of public advice, by which anybody can check the advice behind a release."""
    return sha256(advice.astype("<f8").tobytes()).hexdigest()[:16]


def weight_in_parts(weight: float) -> int:
    """A weight as an integer; at least one part, so that no loss is entered with weight 0."""
    return max(1, round(weight * PARTS))


@dataclass(slots=True)
class Weights:
    """Exponential weights over experts, and the mixed distribution of actions."""

    experts: int
    eta: float
    gamma: float
    losses: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Begin with equal weights."""
        check_gamma(self.gamma, remedy="a longer horizon, fewer actions, or γ of your own")
        self.losses = np.zeros(self.experts)

    def chances(self, advice: Floats) -> Floats:
        """Q = (1 − γ)·Σ P(j) μ^j + γ/K."""
        shares = softmax(-self.eta * self.losses[None])
        chances: Floats = mixed(shares @ advice, self.gamma)[0]
        return chances

    def learn(self, losses: Floats) -> None:
        """Add each expert's loss."""
        self.losses = self.losses + losses


@dataclass(slots=True)
class CellCourse:
    """Batched EXP4 with a noise for each cell (advice, action): pure ε, whatever N.

    An observation enters one cell, which slots of a batch with the same advice share. If the advice
    stays the same over the batch, the noise depends neither on τ nor on N; if it is different at
    each slot, this is local noise. Differs from the papers: ours.
    """

    weights: Weights
    epsilon: Fraction
    tau: int
    _advised: dict[Hashable, Floats] = field(init=False, default_factory=dict)
    _largest: dict[Hashable, int] = field(init=False, default_factory=dict)

    def chances(self, advice: Floats, chance: Chance) -> Floats:
        """The weights' distribution, with this slot's advice."""
        return self.weights.chances(advice)

    def cells(self, advice: Floats, chances: Floats, action: int) -> Mapping[Hashable, int]:
        """One cell, weighted by 1/Q."""
        cell, weight = (advice_digest(advice), action), weight_in_parts(1 / float(chances[action]))
        self._advised[cell] = advice[:, action]
        self._largest[cell] = max(weight, self._largest.get(cell, 0))
        return {cell: weight}

    def noises(self) -> Mapping[Hashable, CellNoise]:
        """Every visited cell: its largest weight is the sensitivity."""
        return {cell: CellNoise(most, self.epsilon) for cell, most in self._largest.items()}

    def released(self, sums: Mapping[Hashable, float], chance: Chance) -> None:
        """ℓ̃(j) = Σ over cells of μ^j(action)·sum/τ."""
        losses = np.zeros(self.weights.experts)
        for cell, total in sums.items():
            losses += self._advised[cell] * total / self.tau
        self.weights.learn(losses)
        self._advised, self._largest = {}, {}


@dataclass(slots=True)
class ExpertSumsCourse:
    """Batched EXP4 as printed: a noisy sum for each of the N experts (Algorithms 2 and 7).

    `adaptive`: Algorithm 7's noise, from the largest weight of each expert in the batch; otherwise
    K/γ bounds all weights.
    """

    weights: Weights
    share: Fraction  # e₀: what each expert's sum costs
    tau: int
    actions: int
    adaptive: bool
    _largest: dict[Hashable, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Begin the first batch."""
        self._begin()

    def _begin(self) -> None:
        bound = ceil(PARTS * self.actions / self.weights.gamma * (1 + 1e-6)) + 1
        least = 1 if self.adaptive else bound
        self._largest = dict.fromkeys(range(self.weights.experts), least)

    def chances(self, advice: Floats, chance: Chance) -> Floats:
        """The weights', with this slot's advice."""
        return self.weights.chances(advice)

    def cells(self, advice: Floats, chances: Floats, action: int) -> Mapping[Hashable, int]:
        """Every expert's cell, weighted by μ^j/Q."""
        weights = np.rint(advice[:, action] / chances[action] * PARTS).astype(np.int64).tolist()
        if self.adaptive:
            for expert, weight in enumerate(weights):
                self._largest[expert] = max(weight, self._largest[expert])
        return dict(enumerate(weights))

    def noises(self) -> Mapping[Hashable, CellNoise]:
        """The noise of every expert's cell."""
        return {cell: CellNoise(most, self.share) for cell, most in self._largest.items()}

    def released(self, sums: Mapping[Hashable, float], chance: Chance) -> None:
        """ℓ̃(j) = sum/τ."""
        losses = np.array([sums[expert] for expert in range(self.weights.experts)])
        self.weights.learn(losses / self.tau)
        self._begin()


@dataclass(slots=True)
class LocalCourse:
    """Local-DP EXP4: every observed loss is released with noise of its own (Algorithm 6)."""

    weights: Weights
    epsilon: Fraction
    tau: int = 1
    _latest: tuple[Floats, float] | None = field(init=False, default=None)

    def chances(self, advice: Floats, chance: Chance) -> Floats:
        """The weights', with this slot's advice."""
        return self.weights.chances(advice)

    def cells(self, advice: Floats, chances: Floats, action: int) -> Mapping[Hashable, int]:
        """The loss itself."""
        self._latest = advice[:, action], float(chances[action])
        return {"loss": PARTS}

    def noises(self) -> Mapping[Hashable, CellNoise]:
        """Lap(1/ε)."""
        return {"loss": CellNoise(PARTS, self.epsilon)}

    def released(self, sums: Mapping[Hashable, float], chance: Chance) -> None:
        """ℓ̃(j) = μ^j·ℓ/Q, of the noisy loss."""
        assert self._latest is not None, "a release follows an observation"
        advised, share = self._latest
        self.weights.learn(advised * sums["loss"] / share)


@dataclass(slots=True)
class MetaCourse:
    """Experts as the arms of a converted base: one expert is followed for a batch (Algorithm 5)."""

    base: Base
    epsilon: Fraction
    tau: int
    _expert: int | None = field(init=False, default=None)

    def chances(self, advice: Floats, chance: Chance) -> Floats:
        """The followed expert's own advice."""
        if self._expert is None:
            self._expert = int(self.base.draw(chance)[0])
        followed: Floats = advice[self._expert]
        return followed

    def cells(self, advice: Floats, chances: Floats, action: int) -> Mapping[Hashable, int]:
        """The batch's one sum."""
        return {"batch": PARTS}

    def noises(self) -> Mapping[Hashable, CellNoise]:
        """Lap(1/ε)."""
        return {"batch": CellNoise(PARTS, self.epsilon)}

    def released(self, sums: Mapping[Hashable, float], chance: Chance) -> None:
        """Feed the base the expert's noisy mean."""
        expert = 0 if self._expert is None else self._expert
        self.base.learn(np.array([expert]), np.array([sums["batch"] / self.tau]), chance)
        self._expert = None


def read_experts(experts: str | int) -> int:
    """How many experts."""
    text = str(experts)
    if not text.isdecimal() or not 1 <= int(text) <= MOST_EXPERTS:
        expected = f"1 … {MOST_EXPERTS:,}"
        raise InvalidConfig("learner.experts", "number", expected=expected, got=text)
    return int(text)


def printed_share(epsilon: Fraction, delta: Fraction, *, experts: int) -> Fraction:
    """e₀ = ε/(3√(N ln 1/δ)): what Algorithms 2 and 7 spend on each expert's sum; rounded down.

    >>> float(printed_share(Fraction(1), Fraction(1, 10**6), experts=100)).__round__(5)
    0.00897
    """
    limit = exp(-float(epsilon) / 1.1)
    if not 0 < delta < limit:
        expected = f"0 < δ < e^(−ε/1.1) = {limit:.3g}"
        raise InvalidConfig("learner.delta", "out of range", expected=expected, got=delta)
    share = float(epsilon) / (3 * sqrt(experts * log(1 / delta)))
    return Fraction(int(share * (1 << 40)), 1 << 40)


def local_rates(horizon: int, actions: int, experts: int, epsilon: float) -> tuple[float, float]:
    """η and γ of Theorem 5."""
    spread = log(actions * horizon)
    eta = sqrt(log(experts) / (3 * horizon * actions * (1 + 10 * spread**2 / epsilon**2)))
    return eta, 4 * eta * actions * spread / epsilon


def batched_rates(
    horizon: int, actions: int, experts: int, epsilon: float, delta: float
) -> tuple[float, int, float]:
    """η, τ and γ of Theorem 6."""
    wide = experts * log(1 / delta)
    spread, few = log(experts * horizon), log(experts)
    eta = wide ** (1 / 6) * spread ** (1 / 3) * few ** (1 / 3)
    eta /= horizon ** (1 / 3) * actions**0.5 * epsilon ** (1 / 3)
    tau = wide ** (1 / 3) * spread ** (2 / 3) * horizon ** (1 / 3)
    tau /= epsilon ** (2 / 3) * few ** (1 / 3)
    one = eta ** (1 / 3) * experts ** (1 / 3) * actions ** (2 / 3) * spread ** (2 / 3)
    one /= (epsilon * tau) ** (2 / 3)
    other = 12 * eta * actions * sqrt(wide) * spread / (epsilon * tau)
    return eta, max(1, round(tau)), max(one, other)
