"""The regret of the papers' feedback learners in made-up worlds. NOT PRIVATE.

Their phases end by an arm's own count, not by the slots of a key, so the player of kinds
(`lab.play`) cannot play them. There are two loops:

1. *Release by release.* A run follows a learner's shipped course of play. Between two releases the
   course says which arms are played, and only the slot at which the next part ends has to be
   computed. With independent losses a part's sum is one draw; in a table of losses it is a sum.
2. *In rows.* A converted base releases at the end of each batch and Hybrid-UCB at every slot: all
   runs release together, so each is a row of arrays. The bases are the shipped ones, which play in
   rows; Hybrid-UCB's tree is implemented a second time for rows, and a test compares it with the
   shipped course, play by play.

Noise is discrete Laplace of the shipped scales on the shipped grid, from numpy's generator: it
protects nothing, which is right for made-up data.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import log2, sqrt
from typing import Protocol

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - losses are made up: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.core.grid import UNIT
from streamdp.lab.common.answer import standard_error
from streamdp.lab.papers.learners import Bandit, Course, ExpertCourse, ExpertLearner
from streamdp.lab.papers.learners.bandit import Chance
from streamdp.lab.papers.learners.bases import drawn
from streamdp.lab.papers.learners.converted import Conversion, conversion_of
from streamdp.lab.papers.learners.experts import PARTS
from streamdp.lab.papers.part_sums import PartSums
from streamdp.lab.worlds import World

_FIRST_CHUNK = 256
_MOST_CHUNK = 1 << 16

_REPORTED = 4096
"""Slots between two reports of progress."""


# -- losses --------------------------------------------------------------------------------------


class Losses(Protocol):
    """The losses of one run; slots are numbered from 0."""

    @property
    def arms(self) -> int:
        """The number of arms."""
        ...

    def loss(self, arm: int, slots: Ints, generator: Generator) -> float:
        """The arm's total loss at these slots; each slot may be asked for only once."""
        ...


class BanditWorld(Losses, Protocol):
    """The losses of many runs, and what they cost."""

    def losses(self, arms: Ints, first: int, stop: int, generator: Generator) -> Floats:
        """The losses of some runs in the slots [first, stop), each run playing its own arm."""
        ...

    def cost(self, arms: Ints, first: int, stop: int) -> Floats:
        """The cost of some runs in the slots [first, stop), each run playing its own arm."""
        ...

    def costs(self, played: Ints) -> Floats:
        """The cost of each slot of one run."""
        ...

    def least(self, marks: Sequence[int]) -> Floats:
        """The yardstick's cost over the first slots; regret is the rest."""
        ...


def regret_of(world: BanditWorld, played: Ints, marks: Sequence[int]) -> Floats:
    """The regret of one run after each of the given numbers of slots.

    >>> world = WorldLosses(World("two", (0.5, 0.75)))
    >>> regret_of(world, np.array([0, 1, 1]), [1, 3]).tolist()
    [0.0, 0.5]
    """
    regret: Floats = np.cumsum(world.costs(played))[np.asarray(marks) - 1] - world.least(marks)
    return regret


@dataclass(frozen=True, slots=True)
class WorldLosses:
    """A made-up world, whose regret is exact: Σ over slots of the gap of the arm played."""

    world: World
    horizon: int = 1

    @property
    def arms(self) -> int:
        """The number of arms."""
        return self.world.actions

    def loss(self, arm: int, slots: Ints, generator: Generator) -> float:
        """One draw for each phase."""
        counts = np.bincount(
            self.world.phases_of(slots, self.horizon), minlength=len(self.world.table)
        )
        return float(self.world.lost(counts, self.world.table[:, arm], generator).sum())

    def losses(self, arms: Ints, first: int, stop: int, generator: Generator) -> Floats:
        """One draw for each run and phase."""
        total = np.zeros(len(arms))
        for phase, count in self.world.parts(range(first, stop), self.horizon):
            counts = np.full(len(arms), count)
            total += self.world.lost(counts, self.world.table[phase, arms], generator)
        return total

    def cost(self, arms: Ints, first: int, stop: int) -> Floats:
        """The gaps of these slots."""
        parts = self.world.parts(range(first, stop), self.horizon)
        total = np.zeros(len(arms))
        for phase, count in parts:
            total += count * self.world.gaps[phase, arms]
        return total

    def costs(self, played: Ints) -> Floats:
        """The gap of each slot."""
        phases = self.world.phases_of(np.arange(len(played)), self.horizon)
        gaps: Floats = self.world.gaps[phases, played]
        return gaps

    def least(self, marks: Sequence[int]) -> Floats:
        """0: gaps are regret already."""
        return np.zeros(len(marks))


def steady(rewards: Sequence[float]) -> WorldLosses:
    """Rewards of 0 or 1 whose means never change."""
    return WorldLosses(World.of_rewards("steady", rewards))


@dataclass(frozen=True, slots=True)
class WrittenLosses:
    """Losses that an adversary has written down beforehand: slots × arms."""

    written: Floats

    @property
    def arms(self) -> int:
        """The number of arms."""
        return len(self.written[0])

    def loss(self, arm: int, slots: Ints, generator: Generator) -> float:
        """The sum of the table's entries."""
        return float(self.written[slots, arm].sum())

    def losses(self, arms: Ints, first: int, stop: int, generator: Generator) -> Floats:
        """One arm's losses for each run."""
        return self.cost(arms, first, stop)

    def cost(self, arms: Ints, first: int, stop: int) -> Floats:
        """The losses themselves."""
        sums: Floats = self.written[first:stop].sum(axis=0)[arms]
        return sums

    def costs(self, played: Ints) -> Floats:
        """The loss of each slot."""
        own: Floats = self.written[np.arange(len(played)), played]
        return own

    def least(self, marks: Sequence[int]) -> Floats:
        """The loss of the best fixed arm over the first slots."""
        totals: Floats = np.cumsum(self.written, axis=0)[np.asarray(marks) - 1].min(axis=1)
        return totals


# -- chance and noise ----------------------------------------------------------------------------


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


def laplaces(epsilon: Fraction, count: int, generator: Generator) -> Floats:
    """Noise of scale 1/ε, in loss."""
    stop = -np.expm1(-float(epsilon) / UNIT)
    noise: Floats = (generator.geometric(stop, count) - generator.geometric(stop, count)) / UNIT
    return noise


def laplace(epsilon: Fraction | None, generator: Generator) -> float:
    """One draw of this noise; 0 without an ε."""
    return 0.0 if epsilon is None else float(laplaces(epsilon, 1, generator)[0])


# -- release by release --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BanditOutcome:
    """The regret of one learner in one world: by run, at several numbers of slots (`marks`)."""

    learner: str
    marks: tuple[int, ...]
    regrets: Floats  # runs × marks

    @property
    def mean(self) -> float:
        """The mean regret at the end."""
        return float(self.regrets[:, -1].mean())

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return standard_error(self.regrets[:, -1])

    def __str__(self) -> str:
        """The form used in tables."""
        return f"{self.mean:.0f} ± {self.error:.0f}"


def simulate_bandit(
    learner: Bandit,
    world: BanditWorld,
    *,
    runs: int,
    horizon: int,
    seed: int | Sequence[int] = 1,
    delay: int = 0,
    marks: Sequence[int] = (),
    progress: Callable[[int], None] = lambda run: None,
) -> BanditOutcome:
    """Simulate many runs of a learner; with `delay` observations arrive that many slots later.

    `progress` is called with the number of finished runs.
    """
    at = tuple(marks) or (horizon,)
    first = (seed,) if isinstance(seed, int) else tuple(seed)
    conversion = conversion_in_rows(learner)
    if conversion is not None and not delay:
        tally = RegretTally(world, at, runs)
        chance = NumpyChance(default_rng((*first, runs)))
        play_converted(learner, conversion, world, tally, runs=runs, horizon=horizon, chance=chance)
        progress(runs)
        return BanditOutcome(str(learner), at, tally.regrets)
    regrets = np.empty((runs, len(at)))
    for run in range(runs):
        played = BanditRun(
            learner, world, default_rng((*first, run)), horizon, delay=delay
        ).played()
        regrets[run] = regret_of(world, played, at)
        progress(run + 1)
    return BanditOutcome(str(learner), at, regrets)


def simulate_hybrid(
    epsilons: Sequence[Fraction],
    world: BanditWorld,
    *,
    runs: int,
    horizon: int,
    seed: Sequence[int],
    marks: Sequence[int] = (),
    more: int = 0,
    progress: Callable[[int], None] = lambda slot: None,
) -> list[BanditOutcome]:
    """Simulate many runs of Hybrid-UCB at several ε, side by side; `progress` gets the slot.

    `more`: 0 is the shipped tree; 1 has the noise of one more level, as in a reference.
    """
    at, generator = tuple(marks) or (horizon,), default_rng(tuple(seed))
    every = np.repeat([float(epsilon) for epsilon in epsilons], runs)
    trees = Trees(every, world.arms, horizon=horizon, more=more)
    tally = RegretTally(world, at, len(every))
    play_hybrid(trees, world, tally, horizon=horizon, generator=generator, progress=progress)
    return [
        BanditOutcome(f"hybrid_ucb(epsilon={epsilon})", at, regrets)
        for epsilon, regrets in zip(epsilons, np.split(tally.regrets, len(epsilons)), strict=True)
    ]


class BanditRun:
    """One run of one learner."""

    def __init__(
        self,
        learner: Bandit,
        world: Losses,
        generator: Generator,
        horizon: int,
        *,
        delay: int = 0,
        meet: Callable[[int, Ints], Ints] = lambda slot, plays: plays,
    ) -> None:
        self.world, self.generator, self.delay = world, generator, delay
        self._meet = meet  # which of these plays the log can answer; an empty array ends the run
        self.releases = self.charged = 0  # observations in some released part
        self._charged_to = [1] * world.arms
        self.course: Course = learner.begin()
        self.chance: Chance = NumpyChance(generator)
        self.arms = np.zeros(horizon, dtype=np.int32)
        self.entered = [0] * world.arms
        self.sums = [PartSums(0.0) for _ in range(world.arms)]
        self._credited = 0  # number of played slots that the learner knows
        self._chunk = _FIRST_CHUNK

    def played(self) -> Ints:
        """The arms of all slots that were played."""
        slot, horizon = 0, len(self.arms)
        while slot < horizon:
            self.course.begin_slot(slot + 1, self.entered)
            most = min(horizon - slot, self._chunk)
            plays = self._meet(slot, self.course.plays(slot + 1, most, self.chance))
            if not len(plays):
                break
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
        return self.arms[:slot].astype(np.int64)

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
        """Enter the losses that are known before this slot."""
        window = self.arms[self._credited : until]
        for arm in range(self.world.arms):
            if self.course.due(arm) is None:
                continue
            slots = np.flatnonzero(window == arm) + self._credited
            if len(slots):
                self.sums[arm].keep(self.course.open_from(arm))
                lost = self.world.loss(arm, slots, self.generator)
                self.sums[arm].add(lost, observations=len(slots))
                self.entered[arm] += len(slots)
        self._credited = until

    def _release(self, slot: int, arm: int) -> None:
        parts = self.course.parts(arm)
        noisy = [
            self.sums[arm].between(part) + laplace(part.epsilon, self.generator) for part in parts
        ]
        for part in parts:
            self.releases += 1
            self.charged += max(0, part.stop - max(part.start, self._charged_to[arm]))
            self._charged_to[arm] = max(part.stop, self._charged_to[arm])
        self.course.released(slot, arm, noisy, self.chance)


def simulate_experts(
    learner: ExpertLearner,
    losses: Floats,
    advice: Sequence[Floats],
    contexts: Ints,
    *,
    runs: int,
    seed: int = 1,
) -> BanditOutcome:
    """Simulate many runs of a learner with advice on a table of losses (slots × arms).

    `advice[contexts[t]]` is the advice of slot t; regret is against the best fixed expert.
    """
    experts = sum(row @ losses[contexts == at].sum(axis=0) for at, row in enumerate(advice)).min()
    regrets = np.empty((runs, 1))
    for run in range(runs):
        generator = default_rng((seed, run))
        course, chance = learner.begin(), NumpyChance(generator)
        total = 0.0
        for first in range(0, len(losses), course.tau):
            slots = np.arange(first, min(first + course.tau, len(losses)))
            lost, sums = _advised(course, losses, advice, contexts, slots, chance)
            total += lost
            if len(slots) == course.tau:
                noisy = {
                    cell: sums.get(cell, 0.0)
                    + noise.largest / PARTS * laplace(noise.epsilon, generator)
                    for cell, noise in course.noises().items()
                }
                course.released(noisy, chance)
        regrets[run] = total - experts
    return BanditOutcome(str(learner), (len(losses),), regrets)


def _advised(
    course: ExpertCourse,
    losses: Floats,
    advice: Sequence[Floats],
    contexts: Ints,
    slots: Ints,
    chance: NumpyChance,
) -> tuple[float, dict[Hashable, float]]:
    """The total loss of a batch's slots, and the sums of its cells.

    Within a batch equal advice gives equal probabilities, and an arm equal weights.
    """
    total, sums = 0.0, dict[Hashable, float]()
    for context in np.unique(contexts[slots]).tolist():
        own, rows = slots[contexts[slots] == context], advice[context]
        chances = course.chances(rows, chance)
        arms = drawn(np.broadcast_to(chances, (len(own), len(chances))), chance)
        for arm in np.unique(arms).tolist():
            lost = float(losses[own[arms == arm], arm].sum())
            total += lost
            for cell, weight in course.cells(rows, chances, arm).items():
                sums[cell] = sums.get(cell, 0.0) + lost * weight / PARTS
    return total, sums


# -- in rows -------------------------------------------------------------------------------------


class RegretTally:
    """The regret of some runs at some marks, counted during play."""

    def __init__(self, world: BanditWorld, marks: Sequence[int], runs: int) -> None:
        self._world, self._marks, self._next = world, marks, 0
        self._so_far = np.zeros(runs)
        self.regrets = np.tile(-world.least(marks), (runs, 1))

    def add(self, arms: Ints, first: int, stop: int) -> None:
        """Count each run's arm in the slots [first, stop)."""
        while self._next < len(self._marks) and self._marks[self._next] <= stop:
            until = self._world.cost(arms, first, self._marks[self._next])
            self.regrets[:, self._next] += self._so_far + until
            self._next += 1
        self._so_far += self._world.cost(arms, first, stop)


def conversion_in_rows(learner: Bandit) -> Conversion | None:
    """How a converted learner cuts batches, if its base runs for one horizon."""
    options = dict(learner.options)
    if learner.name != "converted":
        return None
    if options["base"] != "htinf" and options["horizon"] == "none":
        return None  # its horizon doubles
    return conversion_of(
        Fraction(options["epsilon"]),
        base=options["base"],
        tau=options["tau"],
        constants=options["constants"],
        sigma=options["sigma"],
        eta=options["eta"],
        gamma=options["gamma"],
    )


def play_converted(
    learner: Bandit,
    conversion: Conversion,
    world: BanditWorld,
    tally: RegretTally,
    *,
    runs: int,
    horizon: int,
    chance: NumpyChance,
) -> None:
    """Play batch by batch; the last batch may be cut short, and is then not released."""
    tuned = dict(learner.options)["horizon"]
    base = conversion.begun(
        rows=runs, actions=world.arms, horizon=horizon if tuned == "none" else int(tuned)
    )
    tau = conversion.tau
    for first in range(0, horizon, tau):
        arms, stop = base.draw(chance), min(first + tau, horizon)
        tally.add(arms, first, stop)
        if stop == first + tau:
            lost = world.losses(arms, first, stop, chance.generator)
            noise = laplaces(conversion.epsilon, runs, chance.generator)
            base.learn(arms, (lost + noise) / tau, chance)


# -- Hybrid-UCB ----------------------------------------------------------------------------------


class Trees:
    """Hybrid-UCB's arrays and trees, a row for each run; runs may have different budgets.

    A node is released with Lap(2(r + `more`)/ε), `more` being 0 as shipped: the root is the array.
    """

    def __init__(self, epsilons: Floats, actions: int, *, horizon: int, more: int = 0) -> None:
        rows, self._actions = len(epsilons), actions
        unknown = list(range(actions))
        self._order = [unknown.pop(slot % len(unknown)) for slot in range(actions)]
        self._epsilon, self._more = epsilons, more
        self._first = np.arange(rows) * actions  # the cell of each run's first arm
        cells, depth = rows * actions, horizon.bit_length() + 1
        self._count = np.zeros(cells, dtype=np.int64)
        self._level = np.zeros(cells, dtype=np.int64)
        self._place = np.zeros(cells, dtype=np.int64)
        self._closed = np.zeros(cells)  # the noisy sum of all full arrays
        self._nodes = np.zeros((cells, depth))  # of the open array: kept nodes by level
        self._exact = np.zeros((cells, depth))  # the same without noise
        self._levels = np.arange(depth)
        self._mean = np.zeros(cells)
        self._wide = np.zeros(cells)  # of the index: the factor of √(log₂ t)
        self._deep = np.zeros(cells)  # and that of log₂ t

    def play(self, slot: int) -> Ints:
        """The arm of each run at a slot, from 1."""
        if slot <= self._actions:
            return np.full(len(self._epsilon), self._order[slot - 1])
        level = log2(slot)
        index = self._mean + sqrt(level) * self._wide + level * self._deep
        arms: Ints = index.reshape(-1, self._actions).argmax(axis=1)
        return arms

    def learn(self, arms: Ints, rewards: Floats, noise: Floats) -> None:
        """Enter the reward of each run's arm, with Laplace noise of scale 1."""
        cells = self._first + arms
        opening = self._count[cells] == 0
        self._count[cells] += 1
        if opening.any():  # the first slots, the same for every run
            self._closed[cells] = rewards + noise / self._epsilon
            self._level[cells] = 1
        else:
            self._enter(cells, rewards, noise)
        count = self._count[cells]
        self._mean[cells] = (self._closed[cells] + self._nodes[cells].sum(axis=1)) / count
        self._wide[cells] = np.sqrt(3 / count)
        depth = np.frexp(count + 1.0)[1] - 1  # ⌊log₂(O + 1)⌋
        self._deep[cells] = 6 * sqrt(8) * depth / (self._epsilon * count)

    def _enter(self, cells: Ints, rewards: Floats, noise: Floats) -> None:
        """Add a leaf to the open array; it may complete a node or the array."""
        level, place = self._level[cells], self._place[cells] + 1
        low = np.frexp((place & -place).astype(np.float64))[1] - 1
        below = self._levels < low[:, None]
        exact = rewards + (self._exact[cells] * below).sum(axis=1)
        whole = low == level
        scale = np.where(whole, 2, 2 * (level + self._more)) / self._epsilon
        noisy = exact + noise * scale
        for kept, leaf in ((self._nodes, noisy), (self._exact, exact)):
            own = np.where(below | whole[:, None], 0.0, kept[cells])
            own[np.arange(len(cells)), low] = np.where(whole, 0.0, leaf)
            kept[cells] = own
        self._closed[cells] += np.where(whole, noisy, 0.0)
        self._level[cells] += whole
        self._place[cells] = np.where(whole, 0, place)


def play_hybrid(
    trees: Trees,
    world: BanditWorld,
    tally: RegretTally,
    *,
    horizon: int,
    generator: Generator,
    progress: Callable[[int], None] = lambda slot: None,
) -> None:
    """Play slot by slot."""
    for slot in range(horizon):
        if not slot % _REPORTED:
            progress(slot)
        arms = trees.play(slot + 1)
        tally.add(arms, slot, slot + 1)
        rewards = 1 - world.losses(arms, slot, slot + 1, generator)
        trees.learn(arms, rewards, generator.laplace(size=len(arms)))
