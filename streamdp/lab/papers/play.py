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

Noise is discrete Laplace of the shipped scales on the shipped grid (continuous in Hybrid-UCB's
rows), from numpy's generator: it protects nothing, which is right for made-up data.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import log2, sqrt

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - losses are made up: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.core.grid import UNIT
from streamdp.lab.common.answer import standard_error
from streamdp.lab.papers.learners import Bandit, Course, ExpertCourse, ExpertLearner
from streamdp.lab.papers.learners.bandit import Chance
from streamdp.lab.papers.learners.bases import Base, drawn
from streamdp.lab.papers.learners.converted import Conversion, conversion_of
from streamdp.lab.papers.learners.experts import PARTS
from streamdp.lab.papers.part_sums import PartSums
from streamdp.lab.worlds import World

_FIRST_CHUNK = 256
_MOST_CHUNK = 1 << 16

_REPORTED = 4096
"""Slots between two reports of progress."""


# -- losses --------------------------------------------------------------------------------------


Losses = Callable[[int, Ints, Generator], float]
"""An arm's total loss at some slots of one run, numbered from 0; a slot is asked for only once."""


@dataclass(frozen=True, slots=True)
class WorldLosses:
    """A made-up world, whose regret is exact: Σ over slots of the gap of the arm played."""

    world: World
    horizon: int = 1

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

    def regret(self, arms: Ints, first: int, stop: int) -> Floats:
        """What each run's arm loses more than the yardstick in the slots [first, stop)."""
        total = np.zeros(len(arms))
        for phase, count in self.world.parts(range(first, stop), self.horizon):
            total += count * self.world.gaps[phase, arms]
        return total

    def regret_of(self, played: Ints, marks: Sequence[int]) -> Floats:
        """The regret of one run after each of the given numbers of slots.

        >>> WorldLosses(World("two", (0.5, 0.75))).regret_of(np.array([0, 1, 1]), [1, 3]).tolist()
        [0.0, 0.5]
        """
        phases = self.world.phases_of(np.arange(len(played)), self.horizon)
        so_far: Floats = np.cumsum(self.world.gaps[phases, played])[np.asarray(marks) - 1]
        return so_far


def steady(rewards: Sequence[float]) -> WorldLosses:
    """Rewards of 0 or 1 whose means never change."""
    return WorldLosses(World.of_rewards("steady", rewards))


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

    marks: Sequence[int]
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
    world: WorldLosses,
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
    at = marks or (horizon,)
    first = (seed,) if isinstance(seed, int) else tuple(seed)
    base = None if delay else base_in_rows(learner, runs=runs, horizon=horizon)
    if base is not None:
        tally, chance = RegretTally(world, at, runs), NumpyChance(default_rng((*first, runs)))
        play_converted(*base, world, tally, horizon=horizon, chance=chance)
        progress(runs)
        return BanditOutcome(at, tally.regrets)
    regrets = np.empty((runs, len(at)))
    for run in range(runs):
        generator = default_rng((*first, run))
        played = BanditRun(learner, world.loss, generator, horizon, delay=delay).played()
        regrets[run] = world.regret_of(played, at)
        progress(run + 1)
    return BanditOutcome(at, regrets)


def simulate_hybrid(
    epsilons: Sequence[Fraction],
    world: WorldLosses,
    *,
    runs: int,
    horizon: int,
    seed: Sequence[int],
    marks: Sequence[int] = (),
    progress: Callable[[int], None] = lambda slot: None,
) -> list[BanditOutcome]:
    """Simulate many runs of Hybrid-UCB at several ε, side by side; `progress` gets the slot."""
    at, generator = marks or (horizon,), default_rng(tuple(seed))
    every = np.repeat([float(epsilon) for epsilon in epsilons], runs)
    trees, tally = (
        Trees(every, world.world.actions, horizon=horizon),
        RegretTally(world, at, len(every)),
    )
    for slot in range(horizon):
        if not slot % _REPORTED:
            progress(slot)
        arms = trees.play(slot + 1)
        tally.add(arms, slot, slot + 1)
        rewards = 1 - world.losses(arms, slot, slot + 1, generator)
        trees.learn(arms, rewards, generator.laplace(size=len(arms)))
    return [BanditOutcome(at, regrets) for regrets in np.split(tally.regrets, len(epsilons))]


class BanditRun:
    """One run of one learner."""

    def __init__(
        self,
        learner: Bandit,
        loss: Losses,
        generator: Generator,
        horizon: int,
        *,
        delay: int = 0,
        meet: Callable[[int, Ints], Ints] = lambda slot, plays: plays,
    ) -> None:
        self.loss, self.generator, self.delay = loss, generator, delay
        self._meet = meet  # which of these plays the log can answer; an empty array ends the run
        self.releases = self.charged = 0  # observations in some released part
        self._charged_to = [1] * len(learner.actions)
        self.course: Course = learner.begin()
        self.chance: Chance = NumpyChance(generator)
        self.arms = np.zeros(horizon, dtype=np.int32)
        self.sums = [PartSums(0.0) for _ in learner.actions]
        self._credited = 0  # number of played slots that the learner knows
        self._chunk = _FIRST_CHUNK

    def played(self) -> Ints:
        """The arms of all slots that were played."""
        slot, horizon = 0, len(self.arms)
        while slot < horizon:
            self.course.begin_slot(slot + 1, [sums.count for sums in self.sums])
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
        for arm, sums in enumerate(self.sums):
            parts = self.course.parts(arm)
            missing = parts[0].stop - 1 - sums.count if parts else len(window) + 1
            if missing <= len(window):
                places = np.flatnonzero(window == arm)
                if len(places) >= missing:
                    at = self._credited + int(places[missing - 1])
                    first = at if first is None else min(first, at)
        return first

    def _credit(self, until: int) -> None:
        """Enter the losses that are known before this slot."""
        window = self.arms[self._credited : until]
        for arm, sums in enumerate(self.sums):
            slots = np.flatnonzero(window == arm) + self._credited
            if len(slots) and self.course.parts(arm):
                sums.keep(self.course.open_from(arm))
                sums.add(self.loss(arm, slots, self.generator), observations=len(slots))
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
    return BanditOutcome((len(losses),), regrets)


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

    def __init__(self, world: WorldLosses, marks: Sequence[int], runs: int) -> None:
        self._world, self._marks, self._next = world, marks, 0
        self._so_far = np.zeros(runs)
        self.regrets = np.empty((runs, len(marks)))

    def add(self, arms: Ints, first: int, stop: int) -> None:
        """Count each run's arm in the slots [first, stop)."""
        while self._next < len(self._marks) and self._marks[self._next] <= stop:
            until = self._world.regret(arms, first, self._marks[self._next])
            self.regrets[:, self._next] = self._so_far + until
            self._next += 1
        self._so_far += self._world.regret(arms, first, stop)


def base_in_rows(learner: Bandit, *, runs: int, horizon: int) -> tuple[Conversion, Base] | None:
    """How a converted learner cuts batches, and its base, if that runs for one horizon."""
    options = dict(learner.options)
    if learner.name != "converted" or (options["base"] != "htinf" and options["horizon"] == "none"):
        return None  # its horizon doubles
    tuned = options.pop("horizon")
    conversion = conversion_of(Fraction(options.pop("epsilon")), **options)
    slots = horizon if tuned == "none" else int(tuned)
    return conversion, conversion.begun(rows=runs, actions=len(learner.actions), horizon=slots)


def play_converted(
    conversion: Conversion,
    base: Base,
    world: WorldLosses,
    tally: RegretTally,
    *,
    horizon: int,
    chance: NumpyChance,
) -> None:
    """Play batch by batch; the last batch may be cut short, and is then not released."""
    tau = conversion.tau
    for first in range(0, horizon, tau):
        arms, stop = base.draw(chance), min(first + tau, horizon)
        tally.add(arms, first, stop)
        if stop == first + tau:
            lost = world.losses(arms, first, stop, chance.generator)
            noise = laplaces(conversion.epsilon, len(arms), chance.generator)
            base.learn(arms, (lost + noise) / tau, chance)


# -- Hybrid-UCB ----------------------------------------------------------------------------------


class Trees:
    """Hybrid-UCB's arrays and trees, a row for each run; runs may have different budgets."""

    def __init__(self, epsilons: Floats, actions: int, *, horizon: int) -> None:
        rows, self._actions = len(epsilons), actions
        unknown = list(range(actions))
        self._order = [unknown.pop(slot % len(unknown)) for slot in range(actions)]
        self._epsilon = epsilons
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
        scale = np.where(whole, 2, 2 * level) / self._epsilon  # the root is the array
        noisy = exact + noise * scale
        for kept, leaf in ((self._nodes, noisy), (self._exact, exact)):
            own = np.where(below | whole[:, None], 0.0, kept[cells])
            own[np.arange(len(cells)), low] = np.where(whole, 0.0, leaf)
            kept[cells] = own
        self._closed[cells] += np.where(whole, noisy, 0.0)
        self._level[cells] += whole
        self._place[cells] = np.where(whole, 0, place)
