"""`streamdp plan`: what to expect before there is any data.

A plan assumes the hardest simple world with a given gap: Bernoulli losses, one action with mean (1
− Δ)/2 and all others with (1 + Δ)/2, unless the best action's mean is given. (Rare losses, such as
those of clicks, vary little, so fewer slots tell actions apart.) Keys learn alone, so N keys cost N
times as much as one. Real losses may be easier (gaps differ, variances are smaller) or harder (they
drift). The plan is a simulation of the shipped learner with seeded bits; it states its standard
error, beside the theorem's bound, which always holds in such a world.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.regret import Bound, bound_of
from streamdp.lab.replay.blocks import Bernoulli, DrawnOnce, LossWorld, Walk, walk
from streamdp.lab.replay.cells import Candidate, Epsilon, epsilon_text
from streamdp.lab.replay.figures import SETTLED
from streamdp.lab.replay.spread import standard_error

_WORK = 1 << 25  # selections × actions of one simulation
_SEARCH_WORK = _WORK // 8  # of each step of a search: twice the standard error and more
_RUNS = (20, 2000)
_EPSILONS = (Fraction(1, 1000), Fraction(100))
_STEPS = 11  # of bisection: two digits


@dataclass(frozen=True, slots=True)
class Wish:
    """The case to plan for."""

    candidate: Candidate
    actions: int
    gap: float
    horizon: int
    seed: int = 1
    base: float | None = None  # the best action's mean loss
    keys: int = 1

    @property
    def best(self) -> float:
        """The best action's mean loss; by default, so that losses vary most."""
        return (1 - self.gap) / 2 if self.base is None else self.base

    @property
    def others(self) -> float:
        """All other actions' mean loss."""
        return self.best + self.gap

    def __post_init__(self) -> None:
        """Refuse a world that cannot exist."""
        if not 0 < self.gap <= 1:
            raise InvalidConfig(complaint("--gap", "not a gap", expected="0 < Δ ≤ 1", got=self.gap))
        if not (self.best >= 0 and self.others <= 1):
            got = f"{self.best} and {self.others}"
            raise InvalidConfig(complaint("--base", "no losses", expected="both in 0 … 1", got=got))
        if not 1 <= self.keys <= 10**9:
            raise InvalidConfig(complaint("--keys", "count", expected="1 … 10**9", got=self.keys))
        if not 2 <= self.actions <= 10**6:
            raise InvalidConfig(
                complaint("--actions", "count", expected="2 … 1000000", got=self.actions)
            )
        if not 1 <= self.horizon <= 2**40:
            raise InvalidConfig(
                complaint("--horizon", "slots", expected="1 … 2**40", got=self.horizon)
            )
        if not self.candidate.private:
            raise InvalidConfig(
                complaint(
                    "--learner", "not private", expected="one with ε", got=self.candidate.recipe
                )
            )


@dataclass(frozen=True, slots=True)
class LearnerPlan:
    """What to expect of one learner at one ε."""

    wish: Wish
    epsilon: Epsilon
    walk: Walk
    bound: Bound | None

    @property
    def regret(self) -> float:
        """The mean regret at the horizon."""
        return float(self.walk.regret.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return standard_error(self.walk.regret)

    @property
    def settled(self) -> int | None:
        """The slot from which on the best action is in force with probability 0.9."""
        return self.walk.settled(SETTLED)

    def blocks(self) -> list[tuple[int, int, float, float]]:
        """For each choice in force: first slot, last slot, P(best), regret so far."""
        starts, lengths = self.walk.starts, self.walk.lengths
        total = np.cumsum(self.walk.costs.mean(axis=1))
        return [
            (int(start), int(start + length - 1), float(right), float(cost))
            for start, length, right, cost in zip(
                starts, lengths, self.walk.right, total, strict=True
            )
        ]


def plan_for(
    wish: Wish, epsilon: Epsilon, *, world: LossWorld | None = None, work: int = _WORK
) -> LearnerPlan:
    """The plan at one ε, in a world of this wish's if there is one already."""
    names = [str(action) for action in range(wish.actions)]
    leader = wish.candidate.at(epsilon, actions=names)
    blocks = leader.schedule.block_of(wish.horizon) + 1
    runs = int(np.clip(work // (blocks * wish.actions), *_RUNS))
    regret = walk(leader, world or _world(wish), horizon=wish.horizon, runs=runs, seed=wish.seed)
    bound = bound_of(leader, horizon=wish.horizon, gap=wish.gap) if leader.private else None
    return LearnerPlan(wish, epsilon, regret, bound)


def _world(wish: Wish) -> LossWorld:
    """One action is the best, and all others are alike."""
    means = np.full(wish.actions, wish.others)
    means[0] = wish.best
    return Bernoulli(means)


def least_epsilon(
    wish: Wish, *, regret: float | None = None, slots: int | None = None
) -> LearnerPlan | None:
    """The least ε that reaches a target, to about two digits; None: no ε does.

    All ε are tried on the same losses and bits, so that the answer does not jump.
    """

    def good(plan: LearnerPlan) -> bool:
        settled = plan.settled
        enough = slots is None or (settled is not None and settled <= slots)
        return enough and (regret is None or plan.regret <= regret)

    tried_at = partial(plan_for, wish, world=DrawnOnce(_world(wish)), work=_SEARCH_WORK)
    if not good(tried_at(None)):
        return None
    low, high = _EPSILONS
    best = tried_at(high)
    if not good(best):
        return None
    for _ in range(_STEPS):
        middle = _between(low, high)
        tried = tried_at(middle)
        if good(tried):
            high, best = middle, tried
        else:
            low = middle
    return best


def _between(low: Fraction, high: Fraction) -> Fraction:
    """The geometric mean, to three digits."""
    return Fraction(f"{float(low * high) ** 0.5:.3g}")


def as_json(plan: LearnerPlan) -> dict[str, Any]:
    """A plan in JSON."""
    bound = plan.bound
    return {
        "learner": plan.wish.candidate.text,
        "actions": plan.wish.actions,
        "epsilon": epsilon_text(plan.epsilon).replace("∞", "inf"),
        "gap": plan.wish.gap,
        "best_mean_loss": plan.wish.best,
        "keys": plan.wish.keys,
        "regret_of_all_keys": plan.regret * plan.wish.keys,
        "horizon": plan.wish.horizon,
        "runs": len(plan.walk.regret),
        "regret": plan.regret,
        "standard_error": plan.error,
        "settled_at": plan.settled,
        "bound": None if bound is None else {"regret": bound.regret, "source": bound.source},
        "blocks": [
            {"first": first, "last": last, "best_in_force": right, "regret_so_far": cost}
            for first, last, right, cost in plan.blocks()
        ],
    }
