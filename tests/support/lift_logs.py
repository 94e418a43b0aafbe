"""Logs of learners that show what their own releases led to, and what lift says of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import pi
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

from streamdp.core.arrays import Floats
from streamdp.core.evidence.context_value import RewardInterval
from streamdp.core.evidence.lift import Lift
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import PolicyLearner, feedback_learner_of


@dataclass(frozen=True)
class Setting:
    """What a line is about."""

    actions: int = 6
    shows: int = 100_000
    rate: float = 0.05
    world: str = "still"
    late: bool = False
    floor: str = "4"
    recipe: str = "policy_following"

    def __str__(self) -> str:
        late, floor = ", late" * self.late, f", floor {self.floor}" * (self.floor != "4")
        recipe = f", {self.recipe}" * (self.recipe != "policy_following")
        world = f"{self.rate:.0%} {self.world}{late}{floor}{recipe}"
        return f"K = {self.actions}, {self.shows:,} shows, {world}"


class Logs(NamedTuple):
    """What each block released, runs × blocks × actions, and its rates."""

    gains: Floats
    shown: Floats
    rates: Floats
    noise: float


def learner_of(of: Setting) -> PolicyLearner:
    """The setting's learner, at ε = 1."""
    floor = {} if of.recipe == "policy_weights" else {"floor": of.floor}
    names = [str(number) for number in range(of.actions)]
    return feedback_learner_of({"recipe": of.recipe, "epsilon": "1", **floor}, actions=names)


def logs(of: Setting, runs: int) -> Logs:
    """Learners that show what their own releases led to."""
    learner, random = learner_of(of), default_rng([of.actions, round(of.rate * 1000)])
    drawn = np.clip(random.normal(of.rate, 0.3 * of.rate, (2, runs, of.actions)), of.rate / 20, 1)
    evidence, schedule = learner.evidence, learner.schedule
    scale = float(learner.sums_scale or 0) / UNIT
    public: dict[str, Any] = {
        each.name: np.zeros((runs, *each.shape), each.dtype) for each in evidence.fields
    }
    before = np.full((runs, of.actions), 1 / of.actions)
    gains, shows, rates = list[Floats](), list[Floats](), list[Floats]()
    for block in range(schedule.block_of(of.shows)):
        lengths = schedule.lengths(np.full(runs, block))
        policy, count = evidence.in_force(public, lengths) / PARTS, int(lengths[0])
        rates.append(_rates(of, drawn, (schedule.start(block) + count / 2) / of.shows))
        late, soon = (0.675, 0.225) if of.late else (0.0, 1.0)
        shown = random.multinomial(round(count * late), before)
        shown += random.multinomial(round(count * soon), policy)
        before, clicks = policy, random.binomial(shown, rates[-1])
        gains.append(clicks - shown / 2 + random.laplace(0, scale, shown.shape))
        shows.append(shown.astype(np.float64))
        sums = np.concatenate([np.rint(gains[-1] * UNIT).astype(np.int64), shown], axis=1)
        public |= evidence.fold(public, sums, lengths)
    every = [np.stack(each, axis=1) for each in (gains, shows, rates)]
    return Logs(every[0], every[1], every[2], 2 * scale**2)


def _rates(of: Setting, drawn: Floats, at: float) -> Floats:
    """The rates after this part of all shows."""
    if of.world == "falls":
        return np.asarray(drawn[0] * (1.5 - at))
    if of.world == "wave":
        return np.asarray(drawn[0] * (1 + 0.3 * np.sin(2 * pi * at * of.shows / 10_000)))
    return np.asarray(drawn[int(of.world == "jump" and at > 0.5)])


class Told(NamedTuple):
    """Intervals that hold all at once, what is true of the same shows, and of how many of all."""

    name: str
    intervals: list[RewardInterval]
    truths: list[float]
    share: float


def told(of: Logs, run: int) -> Iterator[Told]:
    """What a log says of all alike and of each action: the reward, and what was earned more."""
    shown, count = of.shown[run], of.shown.shape[2]
    lift, true = Lift(count), Lift(count)
    lift.add(of.gains[run], shown, noise=of.noise)
    true.add(shown * (of.rates[run] - 0.5), shown, noise=of.noise)
    found = lift.earned()
    assert found is not None
    for name, each in (("alike", [(count, found.alike)]), ("one", [*enumerate(found.always)])):
        there = [(at, beside) for at, beside in each if beside is not None]
        right = [true_of(true, at, beside.shows) for at, beside in there]
        share = float(np.mean([beside.shows for _, beside in there] or [0])) / found.shows
        yield Told(name, [of.reward for _, of in there], [mean for mean, _ in right], share)
        yield Told(
            f"{name}, more", [of.more for _, of in there], [more for _, more in right], share
        )


def true_of(of: Lift, at: int, shows: int) -> tuple[float, float]:
    """What is true of the set of blocks that has so many shows: the mean, and what is more."""
    sets = np.cumsum([sums[at] for _, sums in sorted(of._classes.items())], axis=0)
    _, count, earned, would, *_ = next(each for each in sets if round(each[1]) == shows)
    return would / count, (earned - would) / count
