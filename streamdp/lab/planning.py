"""`streamdp plan`: what to expect before there is any data: a simulation of one made-up world.

A plan assumes the hardest simple world with a given gap: Bernoulli losses, one action with mean (1
− Δ)/2 and all others with (1 + Δ)/2, unless the best action's mean is given. (Rare losses, such as
those of clicks, vary little, so fewer slots tell actions apart.) Keys learn alone, so N keys cost N
times as much as one. Real losses may be easier (gaps differ, variances are smaller) or harder (they
drift). The plan states its standard error, beside the theorem's bound, which always holds in such a
world.

With changes (`changing`) the best action lasts a given number of slots on average; then another
one, drawn evenly, becomes the best; the change comes anywhere within half that time before or
after. Several learners are compared there: of losses those of `FOLLOWING`, of feedback every
shipped learner that takes an ε. Regret is against the best action of each moment; all see the same
losses and bits, or begin with the same bits, so they are compared run by run.

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
from typing import Any

import numpy as np
from numpy.random import default_rng  # noqa: TID251 - the times of made-up changes: no secret

from streamdp.core.errors import InvalidConfig
from streamdp.core.kinds.kind import Kind
from streamdp.core.regret import bound_of
from streamdp.lab.common.answer import Answer
from streamdp.lab.common.cells import (
    FOLLOWING,
    Candidate,
    Epsilon,
    Observes,
    epsilon_text,
    parse_candidate,
    parse_candidates,
    policies,
)
from streamdp.lab.common.words import days_text, number, plus_minus
from streamdp.lab.simulation import OwnRuns, SimulationSize, simulate
from streamdp.lab.simulation import as_json as simulated
from streamdp.lab.worlds import World


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
NO_NOISE = Fraction(10**6)
"""The ε that stands for no privacy where a policy needs a noise: of a millionth of a loss."""
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
        return self.candidate.observes

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
        if isinstance(made, OwnRuns):
            expected, got = "a learner that a service can run", self.candidate.text
            raise InvalidConfig("--learner", "phases", expected=expected, got=got)
        kind: Kind = made
        return kind

    def compared(self) -> list[Candidate]:
        """What is compared where the best action changes."""
        if self.observes == "losses":
            return list(parse_candidates(FOLLOWING))
        asked = [candidate for candidate in (*policies(), self.candidate) if candidate.private]
        return list(dict.fromkeys(asked))

    def by_formula(self, epsilon: Epsilon) -> float | None:
        """Events until found, by the formula; None if the learner has none here."""
        formula = FORMULAS.get(self.candidate.text)
        if formula is None or self.rate + self.gap > formula.most_rate:
            return None
        epsilon_ = float(epsilon or inf)
        return formula.events(actions=self.actions, rate=self.rate, gap=self.gap, epsilon=epsilon_)

    def means(self, best: int) -> tuple[float, ...]:
        """The mean loss of each action while this one is the best."""
        others = min(1.0, self.others)
        return tuple(self.best if action == best else others for action in range(self.actions))

    def runs(self, kinds: Sequence[Kind], work: int, limits: tuple[int, int]) -> int:
        """How many runs of these learners are this much work."""
        blocks = max(kind.schedule.block_of(self.horizon) + 1 for kind in kinds)
        return int(np.clip(work // (blocks * self.actions), *limits))


# -- the worlds, and what is simulated in them ----------------------------------------------------


def plan_for(wish: Wish, epsilon: Epsilon, *, runs: int | None = None, part: int = 1) -> Answer:
    """The learner at one ε, where the best action stays; `part`: of a part of the usual work."""
    effort, world = EFFORTS[wish.observes], World("planned", wish.means(0))
    many = runs or wish.runs([wish.kind(epsilon)], effort.work // part, effort.runs)
    size = SimulationSize(many, wish.horizon, wish.seed)
    (answer,) = simulate([wish.candidate], [epsilon], [world], size)
    return answer


def least_epsilon(wish: Wish, *, regret: float) -> Answer | None:
    """The least ε that keeps the regret below this, to about two digits; None: no ε does.

    All ε are tried on the same losses and bits, so that the answer does not jump.
    """
    tried_at = partial(plan_for, wish, part=_SEARCHED)
    low, high = _EPSILONS
    best = tried_at(high)
    if max(tried_at(None).mean, best.mean) > regret:
        return None
    for _ in range(_STEPS):
        middle = Fraction(f"{float(low * high) ** 0.5:.3g}")  # the geometric mean, to three digits
        tried = tried_at(middle)
        if tried.mean <= regret:
            high, best = middle, tried
        else:
            low = middle
    return best


def least(wish: Wish, target: float) -> dict[str, Any]:
    """The least ε for a regret, for the figures."""
    found = least_epsilon(wish, regret=target)
    regret, epsilon = f"a regret of {number(target)}", None if found is None else found.cell.epsilon
    if found is None or epsilon is None:
        said = f"No ε reaches {regret} here: not even without privacy, or not up to ε = 100."
        return {"least_epsilon": None, "said": [said]}
    said = f"The least ε for {regret} is about {epsilon_text(epsilon)}: {number(found.mean)}."
    return {"least_epsilon": float(epsilon), "said": [said]}


def plan_changes(wish: Wish, epsilon: Epsilon, *, every: int) -> tuple[World, list[Answer]]:
    """The learners that are compared in a world that changes, the least regret first."""
    count = wish.horizon // every if every > 0 else 0
    if every < 1 or count > _MOST_CHANGES:
        expected = f"{max(1, wish.horizon // _MOST_CHANGES)} or more"
        raise InvalidConfig("--changes-every", "slots", expected=expected, got=every)
    compared = wish.compared()
    kinds = [wish.kind(epsilon, candidate=candidate) for candidate in compared]
    effort = EFFORTS[wish.observes]
    runs = wish.runs(kinds, effort.work // 2, effort.changing_runs)
    courses = min(runs, _COURSES if count else 1)
    worlds = tuple(changing(wish, every, course) for course in range(courses))
    world = replace(worlds[0], courses=worlds) if count else worlds[0]
    size = SimulationSize(-(-runs // courses) * courses, wish.horizon, wish.seed)
    answers = simulate(compared, [epsilon], [world], size)
    return world, sorted(answers, key=lambda answer: answer.mean)


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
    return World("planned", wish.means(0), tuple(later))


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


def as_json(
    wish: Wish, answers: Sequence[Answer], world: World | None = None, every: int | None = None
) -> dict[str, Any]:
    """What a simulation has of these answers, and what they mean for the wish; what is said of it.

    `world`: the one that changes `every` so many slots, in which they are.
    """
    figures = simulated(answers, [world or World("planned", wish.means(0))], wish.horizon)
    for answer, row in zip(answers, figures["answers"], strict=True):
        if answer.cell.epsilon == NO_NOISE:
            row["epsilon"] = "inf"
        row |= {
            "regret_of_all_keys": answer.mean * wish.keys,
            "found_after_days": None
            if wish.traffic is None or row["found_after"] is None
            else row["found_after"] / wish.traffic,
            "found_after_by_formula": wish.by_formula(answer.cell.epsilon),
            "bound": _bound(wish, answer) if world is None else None,
        }
    table = table_for(wish, answers[0].cell.epsilon)
    figures |= {
        "relative": None,
        "observes": wish.observes,
        "actions": wish.actions,
        "gap": wish.gap,
        "changes_every": every,
        "best_mean_loss": wish.best,
        "rate": wish.rate,
        "keys": wish.keys,
        "events_a_day": wish.traffic,
        "table": None if table is None or world is not None else asdict(table),
    }
    return figures | {"lead": _lead(figures)}


def _bound(wish: Wish, answer: Answer) -> dict[str, Any] | None:
    """What a theorem adds, of a learner with an ε."""
    if not answer.cell.learner.releases[0].epsilon:
        return None
    bound = bound_of(answer.cell.learner, horizon=wish.horizon, gap=wish.gap)
    return None if bound is None else {"regret": bound.regret, "source": bound.source}


def _lead(plan: Mapping[str, Any]) -> dict[str, str]:
    """What was simulated, what it says, and how sure that is."""
    (world,), rows, slots = plan["worlds"], plan["answers"], plan["slots"]
    feedback = plan["observes"] == "feedback"
    if feedback:
        best, others = plan["rate"] + plan["gap"], plan["rate"]
        law = f"clicks: the best action's rate is {best:g}, all others' {others:g}"
    else:
        best, others = plan["best_mean_loss"], plan["best_mean_loss"] + plan["gap"]
        law = f"Bernoulli losses: the best action's mean is {best:g}, all others' {others:g}"
    runs = f"{rows[0]['runs']:,} simulated runs of {slots:,} slots of {law}"
    if plan["changes_every"] is not None:
        runs += f"; the best action changes every {plan['changes_every']:,} slots"
    uniform = f"choosing uniformly costs {number(world['uniform_regret'])}"
    if plan["changes_every"] is not None or len({row["learner"] for row in rows}) > 1:
        return {"compared": f"{runs}.", **_recommended(rows, plan["keys"], uniform)}
    said = [_found(row, plan) for row in rows if row["epsilon"] != "inf"]
    proved = [row["bound"] for row in rows if row["bound"] is not None]
    sure = "No bound below the regret of choosing uniformly is proved for this learner here."
    if len(rows) > 1:
        sure = "Means over runs with 95 % intervals."
    elif proved and proved[0]["regret"] < world["uniform_regret"]:
        bound = proved[0]
        sure = f"Proved: expected regret is at most {number(bound['regret'])} ({bound['source']})."
    return {"compared": f"{runs}; {uniform}.", "worth": "\n".join(said), "sure": sure}


def _recommended(rows: Sequence[Mapping[str, Any]], keys: int, uniform: str) -> dict[str, str]:
    """The learner with the least regret, and which cannot be told from it."""
    best = min(rows, key=lambda row: row["regret"])
    of_all = f", {number(best['regret_of_all_keys'])} over {keys:,} keys" * (keys > 1)
    tied = [
        row["learner"]
        for row in rows
        if row is not best and abs(row["behind_best"]) <= (row["interval_of_difference"] or inf)
    ]
    return {
        "worth": f"Recommended: {best['learner']}, which loses"
        f" {plus_minus(best['regret'], best['standard_error'])} in a key{of_all}; {uniform}.",
        "sure": f"It cannot be told from {', '.join(tied)}."
        if tied
        else "All others lose more, beyond chance.",
    }


def _found(row: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """When the best action is found, and what learning costs."""
    epsilon = f"At ε = {row['epsilon']} " if len(plan["answers"]) > 1 else ""
    events, slots, keys = row["found_after"], plan["slots"], plan["keys"]
    if events is None:
        text = f"{epsilon}the best action is not found within {slots:,} events of a key"
    else:
        text = f"{epsilon}the best action is found after {events:,} events of a key"
        if (days := row["found_after_days"]) is not None:
            text += f", {days_text(days)} at {plan['events_a_day']:,g} a day"
        text += (
            " (from then on 9 of 10 runs show it in at least 3 of 4 requests at any moment,"
            f" {row['found_for_good']:.0%} of all always)"
        )
    cost = plus_minus(row["regret"], row["standard_error"])
    of_all = f", {number(row['regret_of_all_keys'])} over {keys:,} keys" * (keys > 1)
    return f"{text[0].upper()}{text[1:]}. Until then and up to {slots:,} it costs {cost}{of_all}."
