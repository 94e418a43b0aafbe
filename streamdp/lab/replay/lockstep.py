"""Many runs of one learner, side by side, if every run releases at the same slots.

A converted base releases at the end of each batch and Hybrid-UCB at every slot, so their runs
cannot skip from release to release; but all runs release together, so each is a row of arrays, and
hundreds cost little more than one. The bases are the shipped ones, which play in rows. Hybrid-UCB's
tree is implemented a second time for rows, and a test compares it with the shipped course, play by
play.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import log2, sqrt

import numpy as np
from numpy.random import Generator  # noqa: TID251 - losses are made up: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.lab.papers.learners import Bandit
from streamdp.lab.papers.learners.converted import Conversion, conversion_of
from streamdp.lab.replay.bandit_draws import NumpyChance, laplaces
from streamdp.lab.replay.bandit_worlds import BanditWorld

_TOLD = 4096
"""Slots between two reports of progress."""


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
    if learner.recipe != "converted":
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
        if not slot % _TOLD:
            progress(slot)
        arms = trees.play(slot + 1)
        tally.add(arms, slot, slot + 1)
        rewards = 1 - world.losses(arms, slot, slot + 1, generator)
        trees.learn(arms, rewards, generator.laplace(size=len(arms)))
