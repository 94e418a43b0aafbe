"""How good the papers' feedback learners are: their regret in made-up worlds. NOT PRIVATE.

A run goes through the shipped courses of play (`core.learners.bandits`), from release to release:
between two releases a course says which arms are played, and only the slot at which the next part
ends has to be found. Where losses are independent, the sum of a part is one binomial draw; where a
world is a table of losses, it is the sum of the table. Noise is discrete Laplace of the shipped
scales from numpy's generator: no secret is made.

Regret is Σ over slots of (best mean − mean of the arm played) where losses are independent, and
loss − the loss of the best fixed arm in a table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import Protocol

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - losses are made up: no secret
from numpy.typing import NDArray

from streamdp.core.grid import UNIT
from streamdp.core.learners.bandits import Bandit, Course, ExpertLearner
from streamdp.core.learners.bandits.bandit import Chance
from streamdp.core.learners.bandits.bases import drawn
from streamdp.core.learners.bandits.experts import PARTS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_FIRST_CHUNK = 256
_MOST_CHUNK = 1 << 16


class World(Protocol):
    """Where the losses come from."""

    @property
    def arms(self) -> int:
        """How many."""
        ...

    def loss(self, arm: int, slots: Ints, generator: Generator) -> float:
        """What the arm lost at these slots (from 0), all together; each slot is asked for once."""
        ...

    def regret(self, played: Ints, marks: Sequence[int]) -> Floats:
        """The regret of these plays after so many slots each."""
        ...


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Independent rewards of 0 or 1 with these means."""

    means: tuple[float, ...]

    @property
    def arms(self) -> int:
        """How many."""
        return len(self.means)

    def loss(self, arm: int, slots: Ints, generator: Generator) -> float:
        """A binomial draw."""
        return float(generator.binomial(len(slots), 1 - self.means[arm]))

    def regret(self, played: Ints, marks: Sequence[int]) -> Floats:
        """Against the best mean."""
        gaps = max(self.means) - np.array(self.means)
        regret: Floats = np.cumsum(gaps[played])[np.asarray(marks) - 1]
        return regret


@dataclass(frozen=True, slots=True)
class Table:
    """Losses that an adversary has written down beforehand: slots × arms."""

    losses: Floats

    @property
    def arms(self) -> int:
        """How many."""
        return len(self.losses[0])

    def loss(self, arm: int, slots: Ints, generator: Generator) -> float:
        """What the table says."""
        return float(self.losses[slots, arm].sum())

    def regret(self, played: Ints, marks: Sequence[int]) -> Floats:
        """Against the best fixed arm of the first so many slots."""
        own = np.cumsum(self.losses[np.arange(len(played)), played])
        best = np.array([self.losses[:mark].sum(axis=0).min() for mark in marks])
        regret: Floats = own[np.asarray(marks) - 1] - best
        return regret


@dataclass(frozen=True, slots=True)
class Changing:
    """Independent rewards whose means change at known slots, in equal stretches of a horizon."""

    stretches: tuple[tuple[float, ...], ...]
    horizon: int
    concentration: float | None = None  # of beta rewards; None: 0 or 1

    @property
    def arms(self) -> int:
        """How many."""
        return len(self.stretches[0])

    def loss(self, arm: int, slots: Ints, generator: Generator) -> float:
        """Binomial draws, or beta draws one by one."""
        means = np.array(self.stretches)[:, arm]
        counts = np.bincount(self._stretch(slots), minlength=len(means))
        if self.concentration is None:
            return float(generator.binomial(counts, 1 - means).sum())
        each = np.repeat(1 - means, counts) * self.concentration
        return float(generator.beta(each, self.concentration - each).sum())

    def regret(self, played: Ints, marks: Sequence[int]) -> Floats:
        """Against the best mean of each moment."""
        means = np.array(self.stretches)
        gaps = means.max(axis=1, keepdims=True) - means
        own = gaps[self._stretch(np.arange(len(played))), played]
        regret: Floats = np.cumsum(own)[np.asarray(marks) - 1]
        return regret

    def _stretch(self, slots: Ints) -> Ints:
        borders = np.array(
            [self.horizon * at // len(self.stretches) for at in range(1, len(self.stretches))]
        )
        stretch: Ints = np.searchsorted(borders, slots, side="right")
        return stretch


class NumpyChance:
    """Public draws from numpy's generator."""

    __slots__ = ("generator",)

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def uniform(self, *shape: int) -> Floats:
        """Uniform draws in (0, 1)."""
        return np.maximum(self.generator.random(shape), 2.0**-53)

    def beta(self, alpha: Floats, beta: Floats) -> Floats:
        """A draw of each Beta(α, β)."""
        draws: Floats = self.generator.beta(alpha, beta)
        return draws


@dataclass(frozen=True, slots=True)
class BanditOutcome:
    """The regret of one learner in one world, run by run, after some numbers of slots."""

    learner: str
    marks: tuple[int, ...]
    regrets: Floats  # runs × marks

    @property
    def mean(self) -> float:
        """The mean regret at the end."""
        return float(self.regrets[:, -1].mean())

    @property
    def error(self) -> float:
        """Its standard error."""
        return float(self.regrets[:, -1].std(ddof=1)) / sqrt(len(self.regrets))

    def __str__(self) -> str:
        """As tables show it."""
        return f"{self.mean:.0f} ± {self.error:.0f}"


def simulate_bandit(
    learner: Bandit,
    world: World,
    *,
    runs: int,
    horizon: int,
    seed: int | Sequence[int] = 1,
    delay: int = 0,
    marks: Sequence[int] = (),
    progress: Callable[[int], None] = lambda run: None,
) -> BanditOutcome:
    """Many runs of a learner; with `delay` an observation is known so many slots later."""
    at = tuple(marks) or (horizon,)
    regrets = np.empty((runs, len(at)))
    first = (seed,) if isinstance(seed, int) else tuple(seed)
    for run in range(runs):
        progress(run)
        played = Run(learner, world, default_rng((*first, run)), horizon, delay).played()
        regrets[run] = world.regret(played, at)
    return BanditOutcome(str(learner), at, regrets)


class Run:
    """One run of one learner."""

    def __init__(
        self, learner: Bandit, world: World, generator: Generator, horizon: int, delay: int = 0
    ) -> None:
        self.world, self.generator, self.delay = world, generator, delay
        self.course: Course = learner.begin()
        self.chance: Chance = NumpyChance(generator)
        self.arms = np.zeros(horizon, dtype=np.int32)
        self.entered = [0] * world.arms
        self._sums = [_Sums() for _ in range(world.arms)]
        self._credited = 0  # of the slots played, so many are known
        self._chunk = _FIRST_CHUNK

    def played(self) -> Ints:
        """The arms of all slots."""
        slot, horizon = 0, len(self.arms)
        while slot < horizon:
            self.course.begin_slot(slot + 1, self.entered)
            most = min(horizon - slot, self._chunk)
            plays = self.course.plays(slot + 1, most, self.chance)
            end = slot + len(plays)
            self.arms[slot:end] = plays
            closing = self._closing(max(self._credited, end - self.delay))
            if closing is None:
                self._credit(max(self._credited, end - self.delay))
                slot, self._chunk = end, min(2 * self._chunk, _MOST_CHUNK)
            else:
                self._credit(closing + 1)
                slot = min(end, max(slot, closing + 1 + self.delay))
                self._release(slot, int(self.arms[closing]))
                self._chunk = max(_FIRST_CHUNK, self._chunk // 2)
        return self.arms.astype(np.int64)

    def _closing(self, until: int) -> int | None:
        """The first slot before `until` whose observation ends a part."""
        window = self.arms[self._credited : until]
        first: int | None = None
        for arm in range(self.world.arms):
            due = self.course.due(arm)
            if due is None:
                continue
            missing = due - self.entered[arm]
            if missing <= len(window):
                places = np.flatnonzero(window == arm)
                if len(places) >= missing:
                    at = self._credited + int(places[missing - 1])
                    first = at if first is None else min(first, at)
        return first

    def _credit(self, until: int) -> None:
        """Enter what is known before this slot."""
        window = self.arms[self._credited : until]
        for arm in range(self.world.arms):
            if self.course.due(arm) is None:
                continue
            slots = np.flatnonzero(window == arm) + self._credited
            if len(slots):
                sums = self._sums[arm]
                sums.keep(self.course.open_from(arm), self.entered[arm])
                sums.total += self.world.loss(arm, slots, self.generator)
                self.entered[arm] += len(slots)
        self._credited = until

    def _release(self, slot: int, arm: int) -> None:
        noisy = []
        for part in self.course.parts(arm):
            exact = self._sums[arm].total - self._sums[arm].until[part.start]
            noisy.append(exact + laplace(part.epsilon, self.generator))
        self.course.released(slot, arm, noisy, self.chance)


class _Sums:
    """An arm's losses, up to where open parts began."""

    __slots__ = ("total", "until")

    def __init__(self) -> None:
        self.total, self.until = 0.0, dict[int, float]()

    def keep(self, starts: Sequence[int], entered: int) -> None:
        self.until = {start: self.until[start] for start in starts if start in self.until}
        if entered + 1 in starts:
            self.until[entered + 1] = self.total


def simulate_experts(
    learner: ExpertLearner,
    losses: Floats,
    advice: Sequence[Floats],
    *,
    runs: int,
    seed: int = 1,
) -> BanditOutcome:
    """Many runs of a learner with advice over a table of losses (slots × arms).

    `advice[t % len(advice)]` is slot t's; regret is against the best fixed expert.
    """
    experts = sum(
        each @ losses[at :: len(advice)].sum(axis=0) for at, each in enumerate(advice)
    ).min()
    regrets = np.empty((runs, 1))
    for run in range(runs):
        generator = default_rng((seed, run))
        course, chance = learner.begin(), NumpyChance(generator)
        sums: dict[Hashable, float] = {}
        total = 0.0
        for slot, row in enumerate(losses):
            rows = advice[slot % len(advice)]
            chances = course.chances(rows, chance)
            arm = int(drawn(chances[None], chance)[0])
            total += row[arm]
            for cell, weight in course.cells(rows, chances, arm).items():
                sums[cell] = sums.get(cell, 0.0) + row[arm] * weight / PARTS
            if (slot + 1) % course.tau == 0:
                noisy = {
                    cell: sums.get(cell, 0.0)
                    + noise.largest / PARTS * laplace(noise.epsilon, generator)
                    for cell, noise in course.noises().items()
                }
                course.released(noisy, chance)
                sums = {}
        regrets[run] = total - experts
    return BanditOutcome(str(learner), (len(losses),), regrets)


def laplace(epsilon: Fraction | None, generator: Generator) -> float:
    """Discrete Laplace noise of scale 1/ε on the grid, in loss."""
    if epsilon is None:
        return 0.0
    stop = -np.expm1(-float(epsilon) / UNIT)
    return float(generator.geometric(stop) - generator.geometric(stop)) / UNIT
