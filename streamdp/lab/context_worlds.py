"""Made-up worlds with contexts: how many events until each is learned. NOT PRIVATE.

A table has fields of some levels, of which the n-th is 1/n as frequent as the first; rewards are 0
or 1. All actions earn `rate`, and the best one `gap` more. Worlds differ in what the best action
depends on (`WORLDS`). The learner with contexts plays beside the default, which sees none; both go
through the player (`play.play`), with their own noise and blocks, many runs as rows of one array.

A world is *learned* at the first slot from which on nine runs of ten lose at most a quarter of what
uniform play loses. Regret is against the best action of each cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - rewards are made up: no secret

from streamdp.core.arrays import Columns, Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.evidence import InForce
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import NULL, UNIT
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.kinds.recipe import config_of
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, feedback_learner_of
from streamdp.core.learners.recipes import CONTEXTS
from streamdp.lab.common.answer import standard_error
from streamdp.lab.play import NOBODY, RunBits, play, slots_of, totals

LEARNED = 0.25
"""The share of uniform play's loss that counts as learned."""

_FOUND = 0.9  # of the runs
_WORTH = 0.9  # contexts are worth it where they lose less than this share of what none lose
_WORK = 400_000  # numbers of tables in all runs together
_RUNS = (4, 40)

Shape = tuple[int, ...]


def _best(shape: Shape, decides: int, actions: int, rng: Generator) -> Floats:
    """1 for the best action of each cell, by the first fields of the shape."""
    kept = [*shape[:decides], *(1 for _ in shape[decides:])]
    best = np.broadcast_to(rng.integers(actions, size=kept), shape)
    return np.asarray(best[..., None] == np.arange(actions), dtype=np.float64)


def _normal(shape: Shape, actions: int, rng: Generator) -> Floats:
    """Normal effects of all fields' levels, which add up to a standard deviation of 1/2."""
    effects = np.zeros((*shape, actions))
    for field, size in enumerate(shape):
        kept = [1] * len(shape)
        kept[field] = size
        effects += rng.normal(0, 0.5 / np.sqrt(len(shape)), (*kept, actions))
    return effects


WORLDS: Mapping[str, Callable[[Shape, int, Generator], Floats]] = MappingProxyType(
    {
        "nothing": lambda shape, actions, rng: _best(shape, 0, actions, rng),
        "the first field": lambda shape, actions, rng: _best(shape, 1, actions, rng),
        "all fields, a little each": _normal,
        "the first two fields together": lambda shape, actions, rng: _best(shape, 2, actions, rng),
        "every cell": lambda shape, actions, rng: _best(shape, len(shape), actions, rng),
    }
)
"""Rewards of each cell and action above the rate, in gaps, by what the best action depends on."""


@dataclass(frozen=True, slots=True)
class Table:
    """What is asked: a table of contexts, and how clearly actions differ."""

    shape: Shape  # levels of each field, `other` included
    actions: int
    rate: float
    gap: float
    epsilon: Fraction
    slots: int = 1_000_000
    seed: int = 1
    played: str = "header"
    interactions: str = "all"  # or the parts of the table, of fields named f1, f2, …
    own: PolicyLearner | None = None  # a stream's own learner with contexts, as it is
    traffic: float | None = None  # events of one key in a day

    def __post_init__(self) -> None:
        """Refuse rewards that cannot be."""
        if not (self.gap > 0 and self.rate >= 0 and self.rate + self.gap <= 1):
            expected, got = "0 ≤ rate, 0 < gap, rate + gap ≤ 1", f"{self.rate} and {self.gap}"
            raise InvalidConfig("--rate, --gap", "no rates", expected=expected, got=got)
        if self.traffic is not None and not 0 < self.traffic < inf:
            expected = "events a day, above 0"
            raise InvalidConfig("--traffic", "no number", expected=expected, got=self.traffic)

    @classmethod
    def read(cls, text: str, where: str = "--context") -> Shape:
        """A shape as it is written: `8,3,4,6`.

        >>> Table.read("8,3")
        (8, 3)
        """
        try:
            shape = tuple(int(size) for size in text.split(","))
        except ValueError:
            shape = ()
        if not shape or min(shape) < 2:
            expected = "levels of each field, two or more (one is `other`), such as 8,3,4,6"
            raise InvalidConfig(where, "no fields", expected=expected, got=text)
        return shape

    @classmethod
    def of_stream(cls, learner: PolicyLearner, **asked: Any) -> Table:
        """That of a stream's own learner with contexts."""
        rule, options = learner.rule, dict(learner.options)
        assert isinstance(rule, ContextModel)
        assert learner.charge is not None
        return cls(
            rule.shape,
            rule.actions,
            epsilon=learner.charge,
            played=learner.played,
            interactions=options["interactions"],
            own=learner,
            **asked,
        )

    @property
    def runs(self) -> int:
        """How many runs are simulated."""
        return int(np.clip(_WORK // (int(np.prod(self.shape)) * self.actions), *_RUNS))

    def learners(self) -> dict[str, PolicyLearner]:
        """With contexts and without; and each field by itself, beside a table of several."""
        fields = {f"f{n}": list(map(str, range(1, size))) for n, size in enumerate(self.shape, 1)}
        contexts = Contexts.read(fields)
        names = tuple(str(action) for action in range(self.actions))
        options = {"epsilon": self.epsilon, "played": self.played}
        made = self.own or FEEDBACK_RECIPES[CONTEXTS](
            actions=contexts.arms(names),
            context=contexts,
            interactions=self.interactions,
            **options,
        )
        found = {
            "with": made,
            "without": FEEDBACK_RECIPES[FEEDBACK_RECIPES.default](actions=names, **options),
        }
        if self.interactions == "all" and len(self.shape) > 1:
            config = {**config_of(made), "interactions": "none"}
            found["apart"] = feedback_learner_of(config, actions=made.actions)
        return found

    def worlds(self) -> list[str]:
        """Those that differ from each other with so many fields."""
        fewest = {
            "all fields, a little each": 2,
            "the first two fields together": 3,
            "every cell": 2,
        }
        return [name for name in WORLDS if len(self.shape) >= fewest.get(name, 1)]


@dataclass(frozen=True, slots=True)
class Course:
    """What a learner loses in a world."""

    learned: int | None  # events until it is learned; None: not within the horizon
    regret: float  # in percent of uniform play's, mean of all runs
    error: float  # its standard error

    def __str__(self) -> str:
        """The form used in tables."""
        return f"{self.regret:.0f} ± {self.error:.0f}"


@dataclass(frozen=True, slots=True)
class Learned:
    """What to expect in a world, with contexts and without."""

    world: str
    contexts: Course
    without: Course
    apart: Course | None = None  # `interactions = "none"`, where the asked table is the whole one

    @property
    def best(self) -> Course:
        """With contexts, the better one of the tables that were simulated."""
        tables = [of for of in (self.contexts, self.apart) if of is not None]
        return min(tables, key=lambda of: of.regret)

    @property
    def worth(self) -> bool:
        """Whether contexts lose clearly less than none."""
        return self.best.regret < _WORTH * self.without.regret


def learned(
    table: Table, *, progress: Callable[[str], None] = lambda world: None
) -> Iterator[Learned]:
    """Every world, with contexts and without."""
    learners = table.learners()
    for number, world in enumerate(WORLDS):
        if world not in table.worlds():
            continue
        progress(world)
        rng = default_rng((table.seed, number))
        above = [WORLDS[world](table.shape, table.actions, rng) for _ in range(table.runs)]
        cells = np.reshape(above, (table.runs, -1, table.actions))
        rates = np.clip(table.rate + table.gap * cells, 0.0, 1.0)
        of_each = [_course(table, rates, learner, number) for learner in learners.values()]
        yield Learned(world, *of_each)


def _course(table: Table, rates: Floats, learner: PolicyLearner, number: int) -> Course:
    """Play all runs of one learner."""
    shows = TableShows(rates, shares_of(table.shape), learner, (table.seed, number), table.slots)
    bits = RunBits.of(table.seed, range(len(rates)), number=number)
    gaps = rates.max(axis=2, keepdims=True) - rates
    uniform = gaps.mean(axis=2) @ shows.shares  # of each run, an event
    lost, ends = [], [0]
    for step in play(learner, len(bits), shows, bits):
        slots = slots_of(learner.schedule, step.block, table.slots)
        if not slots:
            break
        policy = shows.policies(step.in_force)
        lost.append((policy * gaps).sum(axis=2) @ shows.shares)
        ends.append(slots.stop)
    shares = np.array(lost) / np.maximum(uniform, 1e-300)  # blocks × runs
    away = np.flatnonzero((shares <= LEARNED).mean(axis=1) < _FOUND)
    first = int(away[-1]) + 1 if len(away) else 0
    regret = 100 * (np.diff(ends) @ shares) / table.slots
    return Course(
        ends[first] if first < len(shares) else None, float(regret.mean()), standard_error(regret)
    )


def shares_of(shape: Shape) -> Floats:
    """How frequent each cell is.

    >>> shares_of((2,)).round(2)
    array([0.67, 0.33])
    """
    shares = np.ones(1)
    for size in shape:
        of_field = 1 / np.arange(1, size + 1)
        shares = np.multiply.outer(shares, of_field / of_field.sum()).reshape(-1)
    return shares


class TableShows:
    """Fills the columns of a kind that sees the shown action's reward, in a table of cells.

    Rates are runs × cells × actions. A learner without contexts has one policy for all cells.
    """

    def __init__(
        self,
        rates: Floats,
        shares: Floats,
        learner: PolicyLearner,
        seed: Sequence[int],
        horizon: int,
    ) -> None:
        self.shares = shares
        self._rates = rates
        self._learner = learner
        self._rng, self._horizon = default_rng(seed), horizon
        self._apart = len(learner.actions) > rates.shape[2]

    def policies(self, in_force: InForce) -> Floats:
        """The policy of each run and cell."""
        policies = np.reshape(in_force / PARTS, (len(self._rates), -1, self._rates.shape[2]))
        return np.asarray(np.broadcast_to(policies, self._rates.shape))

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """Draw the events of a block."""
        schedule = self._learner.schedule
        if schedule.stop(block) - 1 > self._horizon:
            return NOBODY
        length = schedule.stop(block) - schedule.start(block)
        policies = self.policies(in_force)
        policies = policies / policies.sum(axis=2, keepdims=True)
        events = self._rng.multinomial(length, self.shares, size=len(self._rates))
        shown: Ints = self._rng.multinomial(events, policies)
        gains: Ints = self._rng.binomial(shown, self._rates) * UNIT - shown * NULL
        if not self._apart:
            gains, shown = gains.sum(axis=1), shown.sum(axis=1)
        many = len(rows)
        return rows, totals(self._learner, gains.reshape(many, -1), shown.reshape(many, -1))


def as_json(table: Table, found: Iterable[Learned]) -> dict[str, object]:
    """For machines."""
    return {
        "shape": list(table.shape),
        "actions": table.actions,
        "rate": table.rate,
        "gap": table.gap,
        "epsilon": str(table.epsilon),
        "played": table.played,
        "interactions": table.interactions,
        "events": table.slots,
        "events_a_day": table.traffic,
        "runs": table.runs,
        "worlds": [
            {
                "decides": of.world,
                "learned_after": of.contexts.learned,
                "regret_percent": of.contexts.regret,
                "standard_error": of.contexts.error,
                "without_contexts_percent": of.without.regret,
                "interactions_none": None
                if of.apart is None
                else {
                    "learned_after": of.apart.learned,
                    "regret_percent": of.apart.regret,
                    "standard_error": of.apart.error,
                },
                "worth_it": of.worth,
            }
            for of in found
        ],
    }
