"""The regret of the papers' feedback learners in made-up worlds. NOT PRIVATE.

A run follows a learner's shipped course of play (`core.learners.bandits`) from release to release.
Between two releases the course says which arms are played, and only the slot at which the next part
ends has to be computed. With independent losses, a part's sum is one binomial draw; in a world that
is a table of losses, it is a sum of the table. Learners that release at the same slots in every run
are played side by side instead (`lockstep`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - losses are made up: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.lab.papers.learners import Bandit, Course, ExpertCourse, ExpertLearner
from streamdp.lab.papers.learners.bandit import Chance
from streamdp.lab.papers.learners.bases import drawn
from streamdp.lab.papers.learners.experts import PARTS
from streamdp.lab.papers.part_sums import PartSums
from streamdp.lab.replay.bandit_draws import NumpyChance, laplace
from streamdp.lab.replay.bandit_worlds import BanditWorld, Losses
from streamdp.lab.replay.lockstep import (
    RegretTally,
    Trees,
    conversion_in_rows,
    play_converted,
    play_hybrid,
)
from streamdp.lab.replay.spread import standard_error

_FIRST_CHUNK = 256
_MOST_CHUNK = 1 << 16


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
        regrets[run] = world.regret(played, at)
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
