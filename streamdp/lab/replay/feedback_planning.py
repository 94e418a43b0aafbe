"""`streamdp plan --observes feedback`: the number of events until the best action is found.

The planned world: one action has the rate (mean reward) r + Δ, all others have r; rewards are 0 or
1, like clicks; each key learns alone. The best action is **found** at the first event from which on
the policy shows it in at least three of four requests, in nine runs of ten.

There are two answers:

- a *simulation* of the configured learner, block by block, which is the real answer;
- a *formula*, for tables over gaps and budgets. Each of K actions is shown n times before the best
  is known. The difference of two means then has the variance 2v/n from rewards, v = m(1 − m) at the
  mean level m, and about (β/(εn))² from two draws of noise; the best is known when the spread is
  Δ/z. So Δ² = z²·2v/n + (β/(εn))², solved for n, gives K·n events. Blocks double, so the policy
  changes at the next block's end, on average √2 times later: this is the answer, as in the
  simulation. z grows with ln K, since the
  best has to beat K − 1 others. The constants of `FORMULAS` are fitted to simulations
  (`tests/fit_plan.py`), and `tests/test_plan_feedback.py` checks the formula against others.

The formula is right within a factor of two: of 100 worlds at random (2 to 40 actions, rates of .01
to .5, gaps of a quarter to 1.2 of the rate, ε of .1 to 2) it said 0.60 to 1.50 times what the
simulation said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, log, sqrt
from typing import Any

import numpy as np
from numpy.random import default_rng  # noqa: TID251 - rewards are made up: no secret

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.lab.replay.cells import epsilon_text
from streamdp.lab.replay.feedback import BASELINES, Environment, feedback_candidate, steps
from streamdp.lab.replay.spread import standard_error

FOUND = 0.9
"""The share of runs that must have found the best action."""

SHOWN = 0.75
"""The share of requests that must show it. (Of two actions, chance alone shows it in half.)"""

RUNS = (100, 400)
_WORK = 1 << 22  # runs × actions × blocks of one simulation
_EPSILONS = ("0.1", "0.25", "0.5", "1", "2")
_GAPS = (0.5, 1.0, 2.0)  # times the given gap
_RATES = (0.5, 1.0, 2.5, 10.0)  # times the given rate


@dataclass(frozen=True, slots=True)
class Formula:
    """Events until found, from two constants of the rewards' spread and one of the noise's."""

    least: float  # z of two actions
    with_log: float  # what z gains with ln K
    noise: float  # β

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


FORMULAS: Mapping[str, Formula] = {
    "policy_blocks": Formula(least=1.9, with_log=0.57, noise=13.82),
    "policy_elimination": Formula(least=4.66, with_log=0.34, noise=25.76),
}
"""For learners with their default options; others are simulated only."""


@dataclass(frozen=True, slots=True)
class FeedbackWish:
    """The case to plan for."""

    text: str  # the learner, as on the command line
    epsilon: Fraction
    actions: int
    rate: float  # the mean reward of all actions but the best
    gap: float
    horizon: int = 1_000_000
    seed: int = 1
    keys: int = 1
    traffic: float | None = None  # events of one key in a day

    def __post_init__(self) -> None:
        """Refuse an impossible world."""
        if not 2 <= self.actions <= 10_000:
            raise InvalidConfig(
                complaint("--actions", "count", expected="2 … 10000", got=self.actions)
            )
        if not (self.gap > 0 and self.rate >= 0 and self.rate + self.gap <= 1):
            expected = "0 ≤ rate, 0 < gap, rate + gap ≤ 1"
            got = f"{self.rate} and {self.gap}"
            raise InvalidConfig(complaint("--rate, --gap", "no rates", expected=expected, got=got))
        if not 1 <= self.horizon <= 2**40 or not 1 <= self.keys <= 10**9:
            got = f"{self.horizon} slots of {self.keys} keys"
            expected = "1 … 2**40 slots of 1 … 10**9 keys"
            raise InvalidConfig(complaint("plan", "size", expected=expected, got=got))
        if self.traffic is not None and not 0 < self.traffic < inf:
            raise InvalidConfig(
                complaint("--traffic", "rate", expected="events a day", got=self.traffic)
            )
        if self.text.split(":")[0] in BASELINES:
            raise InvalidConfig(
                complaint("--learner", "not private", expected="policy_…", got=self.text)
            )

    @property
    def learner(self) -> PolicyLearner:
        """The learner that a service would run."""
        return feedback_candidate(
            self.text, self.epsilon, actions=[str(arm) for arm in range(self.actions)]
        )

    @property
    def world(self) -> Environment:
        """The planned world, with the best action first."""
        means = (self.rate + self.gap, *(self.rate,) * (self.actions - 1))
        return Environment("planned", (means,))


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """What to expect of one block."""

    first: int  # slot
    last: int
    found_share: float  # of runs whose policy shows the best action often enough
    best: float  # its probability of being shown, mean over runs
    regret: float  # so far


@dataclass(frozen=True, slots=True)
class FeedbackPlan:
    """What to expect of one learner."""

    wish: FeedbackWish
    runs: int
    blocks: tuple[PlannedBlock, ...]
    regret: float
    error: float

    @property
    def found_after(self) -> int | None:
        """The events of a key until the best action is found; None: not within the horizon."""
        return found_after(self.blocks)

    @property
    def days(self) -> float | None:
        """The days that this takes, if the traffic is given."""
        traffic, events = self.wish.traffic, self.found_after
        return None if traffic is None or events is None else events / traffic

    @property
    def uniform(self) -> float:
        """The regret of showing every action equally often."""
        wish = self.wish
        return wish.gap * wish.horizon * (1 - 1 / wish.actions)


def found_after(blocks: tuple[PlannedBlock, ...]) -> int | None:
    """The slots before the first block from which on enough runs have found the best action."""
    away = [at for at, block in enumerate(blocks) if block.found_share < FOUND]
    if not away:
        return 0
    return None if away[-1] == len(blocks) - 1 else blocks[away[-1]].last


def plan_feedback(wish: FeedbackWish, *, runs: int | None = None) -> FeedbackPlan:
    """Simulate the learner of the plan."""
    learner = wish.learner
    blocks = learner.schedule.block_of(wish.horizon) + 1
    many = int(np.clip(_WORK // (blocks * wish.actions), *RUNS)) if runs is None else runs
    total, planned = np.zeros(many), []
    for step in steps(
        wish.world, learner, many, horizon=wish.horizon, generator=default_rng(wish.seed)
    ):
        total += step.regret
        best = step.policy[:, 0]
        planned.append(
            PlannedBlock(
                step.first,
                step.stop - 1,
                float((best >= SHOWN).mean()),
                float(best.mean()),
                float(total.mean()),
            )
        )
    return FeedbackPlan(wish, many, tuple(planned), float(total.mean()), standard_error(total))


@dataclass(frozen=True, slots=True)
class EventsTable:
    """Events until found by the formula: a row for each gap, a column for each ε."""

    epsilons: tuple[str, ...]
    gaps: tuple[float, ...]
    events: tuple[tuple[float, ...], ...]


def table_for(wish: FeedbackWish) -> EventsTable | None:
    """Events for rates and gaps near the planned ones; None if the learner has no formula."""
    formula = FORMULAS.get(wish.text)
    if formula is None:
        return None
    gaps = tuple(wish.gap * factor for factor in _GAPS if wish.rate + wish.gap * factor <= 1)
    epsilons = tuple(
        sorted({*_EPSILONS, epsilon_text(wish.epsilon)}, key=lambda text: float(Fraction(text)))
    )
    rows = tuple(
        tuple(
            formula.events(
                actions=wish.actions, rate=wish.rate, gap=gap, epsilon=float(Fraction(epsilon))
            )
            for epsilon in epsilons
        )
        for gap in gaps
    )
    return EventsTable(epsilons, gaps, rows)


def around(wish: FeedbackWish) -> list[tuple[float, EventsTable]]:
    """Tables for half the rate, the rate, 2.5 and 10 times it; gaps grow with the rate.

    Empty if the learner has no formula.
    """
    tables = []
    for factor in _RATES:
        try:
            other = replace(wish, rate=wish.rate * factor, gap=wish.gap * factor)
        except InvalidConfig:  # not a rate any more
            continue
        table = table_for(other)
        if table is not None:
            tables.append((other.rate, table))
    return tables


def as_json(plan: FeedbackPlan) -> dict[str, Any]:
    """A plan in JSON."""
    wish, table = plan.wish, table_for(plan.wish)
    formula = FORMULAS.get(wish.text)
    return {
        "observes": "feedback",
        "learner": wish.text,
        "actions": wish.actions,
        "epsilon": epsilon_text(wish.epsilon),
        "rate": wish.rate,
        "gap": wish.gap,
        "horizon": wish.horizon,
        "keys": wish.keys,
        "events_a_day": wish.traffic,
        "runs": plan.runs,
        "found_after": plan.found_after,
        "found_after_days": plan.days,
        "found_after_by_formula": None
        if formula is None
        else formula.events(
            actions=wish.actions, rate=wish.rate, gap=wish.gap, epsilon=float(wish.epsilon)
        ),
        "regret": plan.regret,
        "standard_error": plan.error,
        "regret_of_all_keys": plan.regret * wish.keys,
        "uniform_regret": plan.uniform,
        "table": None
        if table is None
        else {
            "epsilon": list(table.epsilons),
            "gap": list(table.gaps),
            "events": [list(row) for row in table.events],
        },
        "blocks": [
            {
                "first": block.first,
                "last": block.last,
                "found": block.found_share,
                "best_shown": block.best,
                "regret_so_far": block.regret,
            }
            for block in plan.blocks
        ],
    }
