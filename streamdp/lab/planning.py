"""`streamdp plan`: what to expect before there is any data.

A plan assumes the hardest simple world with a given gap: Bernoulli losses, one action with mean (1
− Δ)/2 and all others with (1 + Δ)/2, unless the best action's mean is given. (Rare losses, such as
those of clicks, vary little, so fewer slots tell actions apart.) Keys learn alone, so N keys cost N
times as much as one. Real losses may be easier (gaps differ, variances are smaller) or harder (they
drift). The plan is a simulation of the shipped learner with seeded bits; it states its standard
error, beside the theorem's bound, which always holds in such a world.

The best action is **found** at the first slot from which on it is in force (a policy: is shown in
at least three of four requests) in nine runs of ten at any moment. These are not always the same
runs: `always` is the share of those that never lose it again.

With changes (`plan_changes`) the best action lasts a given number of slots on average; then another
one, drawn evenly, becomes the best; the change comes anywhere within half that time before or
after. Of losses the three learners of `following` are compared: the default's memory, blocks that
grow for ever, and memory's blocks with the newest vote in force; of feedback every shipped learner
that takes an ε. Regret is against the best action of each moment; all see the same losses and bits,
or begin with the same bits, so they are compared run by run.

For feedback there is also a *formula*, for tables over gaps and budgets. Each of K actions is shown
n times before the best is known. The difference of two means then has the variance 2v/n from
rewards, v = m(1 − m) at the mean level m, and about (β/(εn))² from two draws of noise; the best is
known when the spread is Δ/z. So Δ² = z²·2v/n + (β/(εn))², solved for n, gives K·n events. Blocks
double, so the policy changes at the next block's end, on average √2 times later: this is the
answer, as in the simulation. z grows with ln K, since the best has to beat K − 1 others. The
constants of `FORMULAS` are fitted to simulations (`tests/fit_plan.py`), and
`test_plan_feedback.py` checks the formula against others: of 100 worlds at random (2 to 40
actions, rates of .01 to .5, gaps of a quarter to 1.2 of the rate, ε of .1 to 2) it said 0.60 to
1.50 times what the simulation said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from math import inf, log, sqrt
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.random import default_rng  # noqa: TID251 - the times of made-up changes: no secret

from streamdp.core.errors import InvalidConfig
from streamdp.core.kinds.kind import Kind
from streamdp.core.learners import RECIPES
from streamdp.core.regret import Bound, bound_of
from streamdp.lab.common.answer import standard_error
from streamdp.lab.common.cells import (
    Candidate,
    Epsilon,
    epsilon_option,
    epsilon_text,
    parse_candidate,
    policies,
)
from streamdp.lab.common.words import per_thousand
from streamdp.lab.papers.learners import Bandit
from streamdp.lab.play import Walk, walks
from streamdp.lab.replay.following import Result, contests, half_interval, ranked
from streamdp.lab.worlds import World

FOUND = 0.9
"""The share of runs that must have found the best action."""

SHOWN = 0.75
"""The share of requests that must show it. (Of two actions, chance alone shows it in half.)"""

Observes = Literal["losses", "feedback"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated: a policy takes longer than a vote."""

    work: int  # blocks × actions × runs of one plan
    runs: tuple[int, int]
    changing_runs: tuple[int, int]
    most_actions: int


EFFORTS: Mapping[Observes, Effort] = MappingProxyType(
    {
        "losses": Effort(1 << 25, (20, 2000), (8, 200), 10**6),
        "feedback": Effort(1 << 22, (100, 400), (8, 100), 10**4),
    }
)
_SEARCHED = 8  # a step of a search takes such a part of the work: twice the standard error and more
_EPSILONS = (Fraction(1, 1000), Fraction(100))
_STEPS = 11  # of bisection: two digits
_MOST_CHANGES = 10_000
_COURSES = 12
"""Courses of changes that a plan's runs are shared among.

The standard error is that of their means, so it covers when the changes come."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The case to plan for."""

    candidate: Candidate
    actions: int
    gap: float
    horizon: int = 1_000_000
    seed: int = 1
    base: float | None = None  # the best action's mean loss
    keys: int = 1
    traffic: float | None = None  # events of one key in a day

    @classmethod
    def of_clicks(
        cls,
        text: str,
        actions: int,
        rate: float,
        gap: float,
        horizon: int = 1_000_000,
        seed: int = 1,
        keys: int = 1,
        traffic: float | None = None,
    ) -> Wish:
        """Feedback whose mean reward is `rate` for all actions but the best one."""
        if not (gap > 0 and rate >= 0 and rate + gap <= 1):
            expected, got = "0 ≤ rate, 0 < gap, rate + gap ≤ 1", f"{rate} and {gap}"
            raise InvalidConfig("--rate, --gap", "no rates", expected=expected, got=got)
        candidate = parse_candidate(text, observes="feedback")
        base = max(0.0, round(1 - rate - gap, 12))
        return cls(candidate, actions, gap, horizon, seed, base, keys, traffic)

    @property
    def observes(self) -> Observes:
        """What the learner observes."""
        return "losses" if self.candidate.recipe in RECIPES else "feedback"

    @property
    def best(self) -> float:
        """The best action's mean loss; by default, so that losses vary most."""
        return (1 - self.gap) / 2 if self.base is None else self.base

    @property
    def others(self) -> float:
        """All other actions' mean loss."""
        return self.best + self.gap

    @property
    def rate(self) -> float:
        """All other actions' mean reward."""
        return max(0.0, round(1 - self.others, 12))

    @property
    def uniform(self) -> float:
        """The regret of choosing uniformly."""
        return self.gap * self.horizon * (1 - 1 / self.actions)

    def __post_init__(self) -> None:
        """Refuse a world that cannot exist."""
        if not 0 < self.gap <= 1:
            raise InvalidConfig("--gap", "not a gap", expected="0 < Δ ≤ 1", got=self.gap)
        if not (self.best >= 0 and self.others <= 1 + 1e-12):
            got = f"{self.best} and {self.others}"
            raise InvalidConfig("--base", "no losses", expected="both in 0 … 1", got=got)
        if not 1 <= self.keys <= 10**9:
            raise InvalidConfig("--keys", "count", expected="1 … 10**9", got=self.keys)
        most = EFFORTS[self.observes].most_actions
        if not 2 <= self.actions <= most:
            raise InvalidConfig("--actions", "count", expected=f"2 … {most}", got=self.actions)
        if not 1 <= self.horizon <= 2**40:
            raise InvalidConfig("--horizon", "slots", expected="1 … 2**40", got=self.horizon)
        if self.traffic is not None and not 0 < self.traffic < inf:
            raise InvalidConfig("--traffic", "rate", expected="events a day", got=self.traffic)
        if not self.candidate.private:
            raise InvalidConfig(
                "--learner", "not private", expected="one with ε", got=self.candidate.recipe
            )

    def kind(self, epsilon: Epsilon, *, candidate: Candidate | None = None) -> Kind:
        """A learner at an ε; by default the wish's."""
        names = [str(action) for action in range(self.actions)]
        made = (candidate or self.candidate).learner(epsilon, actions=names)
        if isinstance(made, Bandit):
            expected, got = "a learner that a service can run", self.candidate.text
            raise InvalidConfig("--learner", "phases", expected=expected, got=got)
        return made

    def means(self, best: int) -> tuple[float, ...]:
        """The mean loss of each action while this one is the best."""
        others = min(1.0, self.others)
        return tuple(self.best if action == best else others for action in range(self.actions))

    def runs(self, kinds: Sequence[Kind], work: int, limits: tuple[int, int]) -> int:
        """How many runs of these learners are this much work."""
        blocks = max(kind.schedule.block_of(self.horizon) + 1 for kind in kinds)
        return int(np.clip(work // (blocks * self.actions), *limits))


# -- one learner, one best action ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """What to expect of one block."""

    first: int  # slot
    last: int
    found: float  # the share of runs that show the best action often enough
    best_shown: float  # its probability, mean over runs
    regret_so_far: float


@dataclass(frozen=True, slots=True)
class LearnerPlan:
    """What to expect of one learner at one ε."""

    wish: Wish
    epsilon: Epsilon
    walk: Walk
    bound: Bound | None

    @property
    def runs(self) -> int:
        """The number of simulated runs."""
        return len(self.walk.regret)

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
        """The slot from which on the best action is found; None: not within the horizon."""
        return self.walk.settled(shown=SHOWN, runs=FOUND)

    @property
    def found_after(self) -> int | None:
        """The events of a key until the best action is found."""
        return None if self.settled is None else self.settled - 1

    @property
    def always(self) -> float | None:
        """The share of runs that show the best action in every block from then on."""
        return None if self.settled is None else self.walk.always(SHOWN, since=self.settled)

    @property
    def days(self) -> float | None:
        """The days that this takes, if the traffic is given."""
        traffic, events = self.wish.traffic, self.found_after
        return None if traffic is None or events is None else events / traffic

    def blocks(self) -> list[PlannedBlock]:
        """What was in force, block by block."""
        walk = self.walk
        columns = (
            walk.starts,
            walk.starts + walk.lengths - 1,
            walk.found(SHOWN),
            walk.best.mean(axis=1, dtype=np.float64),
            np.cumsum(walk.costs.mean(axis=1)),
        )
        return [
            PlannedBlock(*block)
            for block in zip(*(column.tolist() for column in columns), strict=True)
        ]


def plan_for(
    wish: Wish, epsilon: Epsilon, *, runs: int | None = None, part: int = 1
) -> LearnerPlan:
    """The plan at one ε; with `part` of a part of the usual work."""
    kind, effort = wish.kind(epsilon), EFFORTS[wish.observes]
    (walk,) = walks(
        [kind],
        World("planned", wish.means(0)),
        runs=runs or wish.runs([kind], effort.work // part, effort.runs),
        horizon=wish.horizon,
        seed=wish.seed,
    )
    bound = None
    if kind.releases[0].epsilon:
        bound = bound_of(kind, horizon=wish.horizon, gap=wish.gap)
    return LearnerPlan(wish, epsilon, walk, bound)


def least_epsilon(wish: Wish, *, regret: float) -> LearnerPlan | None:
    """The least ε that keeps the regret below this, to about two digits; None: no ε does.

    All ε are tried on the same losses and bits, so that the answer does not jump.
    """
    tried_at = partial(plan_for, wish, part=_SEARCHED)
    low, high = _EPSILONS
    best = tried_at(high)
    if max(tried_at(None).regret, best.regret) > regret:
        return None
    for _ in range(_STEPS):
        middle = _between(low, high)
        tried = tried_at(middle)
        if tried.regret <= regret:
            high, best = middle, tried
        else:
            low = middle
    return best


def _between(low: Fraction, high: Fraction) -> Fraction:
    """The geometric mean, to three digits."""
    return Fraction(f"{float(low * high) ** 0.5:.3g}")


# -- a best action that changes ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The expected regret of some learners, the least first."""

    wish: Wish
    changes_every: int
    changes: int  # that are to be expected within the horizon
    result: Result
    blocks: Mapping[str, int]  # of a key, by learner
    runs: int  # that were simulated

    @property
    def epsilon(self) -> Epsilon:
        """The ε of an event."""
        return self.result.epsilon

    def mean_loss(self, regret: float) -> float:
        """The mean loss of a slot, by the regret at the horizon."""
        return self.wish.best + regret / self.wish.horizon


def plan_changes(wish: Wish, epsilon: Epsilon, *, every: int) -> ChangePlan:
    """Simulate the learners that are compared in a world that changes."""
    count = wish.horizon // every if every > 0 else 0
    if every < 1 or count > _MOST_CHANGES:
        expected = f"{max(1, wish.horizon // _MOST_CHANGES)} or more"
        raise InvalidConfig("--changes-every", "slots", expected=expected, got=every)
    compared = _compared(wish, epsilon)
    kinds = [wish.kind(epsilon, candidate=candidate) for candidate in compared.values()]
    effort = EFFORTS[wish.observes]
    runs = wish.runs(kinds, effort.work // 2, effort.changing_runs)
    courses = min(runs, _COURSES if count else 1)
    worlds = [changing(wish, every, course) for course in range(courses)]
    runs = -(-runs // courses) * courses
    played = walks(kinds, worlds, runs=runs, horizon=wish.horizon, seed=wish.seed)
    names = [(kind, candidate.text) for kind, candidate in compared.items()]
    finals = {
        name: walk.regret.reshape(-1, courses).mean(axis=0) if count else walk.regret
        for name, walk in zip(names, played, strict=True)
    }
    blocks = {
        text: kind.schedule.block_of(wish.horizon + 1)
        for (_, text), kind in zip(names, kinds, strict=True)
    }
    return ChangePlan(wish, every, count, ranked(epsilon, finals), blocks, runs)


def _compared(wish: Wish, epsilon: Epsilon) -> dict[str, Candidate]:
    """What is compared, by the name of its kind."""
    if wish.observes == "losses":
        names = [str(action) for action in range(wish.actions)]
        (contest,) = contests([epsilon], actions=names, slots=1, seeds=1)
        return {kind.value: cell.candidate for kind, cell in contest.cells.items()}
    asked = [candidate for candidate in (*policies(), wish.candidate) if candidate.private]
    return {candidate.text: candidate for candidate in asked}


def changing(wish: Wish, every: int, course: int) -> World:
    """Another best action after each change; the last of them may come after the horizon.

    When they come, and which action is best, is drawn for each course anew.
    """
    generator = default_rng((wish.seed, course))
    shifts = generator.uniform(-0.5, 0.5, wish.horizon // every)
    best, later = 0, []
    for at, shift in enumerate(shifts.tolist(), start=1):
        best = (best + 1 + int(generator.integers(wish.actions - 1))) % wish.actions
        later.append((min(1.0, (at + shift) * every / wish.horizon), wish.means(best)))
    return World("changes", wish.means(0), tuple(later))


# -- events until found, by a formula -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Formula:
    """Events until found, from two constants of the rewards' spread and one of the noise's."""

    least: float  # z of two actions
    with_log: float  # what z gains with ln K
    noise: float  # β
    most_rate: float = 1.0  # of the best action: above it, floors decide and not noise

    def events(self, *, actions: int, rate: float, gap: float, epsilon: float) -> float:
        """About how many events of one key are needed.

        >>> clicks = FORMULAS["policy_blocks"].events(actions=4, rate=0.02, gap=0.03, epsilon=1)
        >>> 500 < clicks < 10_000
        True
        """
        level = rate + gap / actions
        spread = (self.least + self.with_log * log(actions)) ** 2 * 2 * level * (1 - level)
        noise = (self.noise / epsilon) ** 2
        half = spread / gap**2 / 2
        return sqrt(2) * actions * (half + sqrt(half**2 + noise / gap**2))


FORMULAS: Mapping[str, Formula] = MappingProxyType(
    {
        "policy_following": Formula(least=1.45, with_log=0.58, noise=13.34, most_rate=0.75),
        "policy_blocks": Formula(least=1.9, with_log=0.57, noise=13.82),
        "policy_elimination": Formula(least=4.66, with_log=0.34, noise=25.76),
    }
)
"""For learners with their default options; others are simulated only."""

_TABLE_EPSILONS = ("0.1", "0.25", "0.5", "1", "2")
_TABLE_GAPS = (0.5, 1.0, 2.0)  # times the given gap
_TABLE_RATES = (0.5, 1.0, 2.5, 10.0)  # times the given rate


@dataclass(frozen=True, slots=True)
class EventsTable:
    """Events until found by the formula: a row for each gap, a column for each ε."""

    rate: float
    epsilons: tuple[str, ...]
    gaps: tuple[float, ...]
    events: tuple[tuple[float, ...], ...]


def table_for(wish: Wish, epsilon: Epsilon) -> EventsTable | None:
    """Events for rates and gaps near the planned ones; None if the learner has no formula."""
    formula = FORMULAS.get(wish.candidate.text)
    if formula is None:
        return None
    gaps = tuple(
        gap
        for gap in (wish.gap * factor for factor in _TABLE_GAPS)
        if wish.rate + gap <= formula.most_rate
    )
    if not gaps:
        return None
    epsilons = tuple(
        sorted({*_TABLE_EPSILONS, epsilon_text(epsilon)}, key=lambda text: float(Fraction(text)))
    )
    rows = tuple(
        tuple(
            formula.events(
                actions=wish.actions, rate=wish.rate, gap=gap, epsilon=float(Fraction(text))
            )
            for text in epsilons
        )
        for gap in gaps
    )
    return EventsTable(wish.rate, epsilons, gaps, rows)


def around(wish: Wish, epsilon: Epsilon) -> list[EventsTable]:
    """Tables for half the rate, the rate, 2.5 and 10 times it; gaps grow with the rate.

    Empty if the learner has no formula.
    """
    tables = []
    for factor in _TABLE_RATES:
        rate, gap = wish.rate * factor, wish.gap * factor
        if rate + gap <= 1:
            other = replace(wish, gap=gap, base=max(0.0, round(1 - rate - gap, 12)))
            tables.append(table_for(other, epsilon))
    return [table for table in tables if table is not None]


# -- as JSON -------------------------------------------------------------------------------------


def as_json(plan: LearnerPlan) -> dict[str, Any]:
    """A plan in JSON."""
    wish, bound = plan.wish, plan.bound
    formula, table = FORMULAS.get(wish.candidate.text), table_for(wish, plan.epsilon)
    return {
        "observes": wish.observes,
        "learner": wish.candidate.text,
        "actions": wish.actions,
        "epsilon": epsilon_option(plan.epsilon),
        "gap": wish.gap,
        "best_mean_loss": wish.best,
        "rate": wish.rate,
        "events_a_day": wish.traffic,
        "keys": wish.keys,
        "regret_of_all_keys": plan.regret * wish.keys,
        "horizon": wish.horizon,
        "runs": plan.runs,
        "regret": plan.regret,
        "standard_error": plan.error,
        "uniform_regret": wish.uniform,
        "bound": None if bound is None else {"regret": bound.regret, "source": bound.source},
        "found_after": plan.found_after,
        "found_after_days": plan.days,
        "found_for_good": plan.always,
        "found_after_by_formula": None
        if formula is None or wish.rate + wish.gap > formula.most_rate
        else formula.events(
            actions=wish.actions, rate=wish.rate, gap=wish.gap, epsilon=float(plan.epsilon or inf)
        ),
        "table": None
        if table is None
        else {
            "epsilon": list(table.epsilons),
            "gap": list(table.gaps),
            "events": [list(row) for row in table.events],
        },
        "blocks": [asdict(block) for block in plan.blocks()],
    }


def changes_as_json(plan: ChangePlan) -> dict[str, Any]:
    """A plan with changes in JSON."""
    wish, result = plan.wish, plan.result
    return {
        "observes": wish.observes,
        "changes_every": plan.changes_every,
        "changes": plan.changes,
        "actions": wish.actions,
        "epsilon": epsilon_text(plan.epsilon),
        "gap": wish.gap,
        "best_mean_loss": wish.best,
        "keys": wish.keys,
        "horizon": wish.horizon,
        "runs": plan.runs,
        "recommended": result.winner.name,
        "cannot_be_told_from": [placed.name for placed in result.tied],
        "uniform_regret": wish.uniform,
        "learners": [
            {
                "kind": placed.kind,
                "learner": placed.name,
                "regret": placed.mean,
                "interval": placed.half,
                "regret_in_1000_slots": per_thousand(placed.mean, wish.horizon),
                "mean_loss": plan.mean_loss(placed.mean),
                "regret_of_all_keys": placed.mean * wish.keys,
                "behind_recommended": float(placed.behind.mean()),
                "interval_of_difference": half_interval(placed.behind),
                "votes_of_a_key": plan.blocks[placed.name],
            }
            for placed in result.placed
        ],
    }
