"""Made-up worlds with contexts: how many events until each is learned. NOT PRIVATE.

A table has fields of some levels, of which the n-th is 1/n as frequent as the first; rewards are 0
or 1. All actions earn `rate`, and the best one `gap` more. Worlds differ in what the best action
depends on (`WORLDS`). Three choices are played in each: the table of contexts that is asked for,
each field alone, and no contexts at all. All go through the player (`play.play`), with their
own noise and blocks, many runs as rows of one array: what is said follows from playing the shipped
learners.

Regret is against the best action of each cell, in percent of what showing actions at random loses.
A world is *learned* at the first slot from which on nine runs of ten lose at most a quarter of
that.

Each run has a world of its own kind. How much the best single action loses there differs most from
run to run, and decides most of what each choice loses: so more worlds are drawn than played, and
those that are played are spread evenly over it. (A standard error does not know this, and is on the
safe side.)
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
from streamdp.core.learners.feedback.policy_contexts import UP_TO
from streamdp.core.learners.recipes import CONTEXTS
from streamdp.lab.common.answer import Answer, Trajectory, standard_error
from streamdp.lab.common.cells import Candidate, LearnerCell
from streamdp.lab.play import NOBODY, RunBits, play, slots_of

LEARNED = 0.25
"""The share of uniform play's loss that counts as learned."""

ASKED, APART, WITHOUT = "contexts", "each field alone", "no contexts"
"""The choices: the table that is asked for, `interactions = "none"`, a learner that sees none."""

_WORK = 300_000  # policies of arms, in all blocks and runs of a learner in one world
_RUNS = (4, 40)
_DRAWN = 16  # worlds for each one that is played

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
    def read(cls, text: str) -> Shape:
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
            raise InvalidConfig("--context", "no fields", expected=expected, got=text)
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
            interactions=options["interactions"].removeprefix(UP_TO),
            own=learner,
            **asked,
        )

    def learners(self) -> dict[str, PolicyLearner]:
        """The choices, by name; each field alone where a whole table of several is asked for."""
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
        found = {ASKED: made}
        if self.interactions == "all" and len(self.shape) > 1:
            config = {**config_of(made), "interactions": "none"}
            found[APART] = feedback_learner_of(config, actions=made.actions)
        found[WITHOUT] = FEEDBACK_RECIPES[FEEDBACK_RECIPES.default](actions=names, **options)
        return found

    def runs(self, learners: Iterable[PolicyLearner]) -> int:
        """How many runs of these are played."""
        work = [of.schedule.block_of(self.slots) * len(of.actions) for of in learners]
        return int(np.clip(_WORK // max(1, *work), *_RUNS))

    def worlds(self) -> list[str]:
        """Those that differ from each other with so many fields."""
        alone = ("nothing", "the first field")
        return [name for name in WORLDS if len(self.shape) > 1 or name in alone]

    def rates(self, world: str, runs: int, rng: Generator) -> Floats:
        """The rates of each run's cells and actions, of a world of its own: R × C × K."""
        drawn = [WORLDS[world](self.shape, self.actions, rng) for _ in range(_DRAWN * runs)]
        above = np.reshape(drawn, (len(drawn), -1, self.actions))
        rates = np.clip(self.rate + self.gap * above, 0.0, 1.0)
        single = np.einsum("rck,c->rk", _gaps(rates), shares_of(self.shape))
        order = np.argsort(single.min(axis=1) / single.mean(axis=1), kind="stable")
        return np.asarray(rates[order[_DRAWN // 2 :: _DRAWN]])


def _gaps(rates: Floats) -> Floats:
    """What each action loses in each cell."""
    return np.asarray(rates.max(axis=2, keepdims=True) - rates)


@dataclass(frozen=True, slots=True)
class Learned:
    """What to expect in a world of each choice: regrets in percent of what random play loses."""

    world: str
    best: float  # the mean reward of an event if the best action is shown everywhere
    random: float  # if actions are shown at random
    answers: Mapping[str, Answer]  # by choice

    @property
    def least(self) -> str:
        """The choice that loses least."""
        return min(self.answers, key=lambda name: self.answers[name].mean)

    @property
    def alike(self) -> list[str]:
        """The choices that lose no clearly different amount than it does."""
        least = self.answers[self.least].regret
        behind = {name: of.regret - least for name, of in self.answers.items()}
        return [name for name, by in behind.items() if by.mean() <= 2 * standard_error(by)]


def mean_lost(found: Sequence[Learned]) -> dict[str, float]:
    """What each choice loses, in percent of what random play loses: the mean of the worlds."""
    return {
        name: sum(of.answers[name].mean for of in found) / len(found) for name in found[0].answers
    }


def learned(
    table: Table, *, progress: Callable[[str], None] = lambda world: None
) -> Iterator[Learned]:
    """Every world, with every choice."""
    for world in table.worlds():
        progress(world)
        yield in_world(table, world)


def in_world(table: Table, world: str) -> Learned:
    """One world, with every choice: the same beside others and alone."""
    learners, number = table.learners(), list(WORLDS).index(world)
    rates = table.rates(world, table.runs(learners.values()), default_rng((table.seed, number)))
    shares = shares_of(table.shape)
    best = float((rates.max(axis=2) @ shares).mean())
    answers = {
        name: _answer(table, rates, name, learner, number) for name, learner in learners.items()
    }
    return Learned(world, best, float((rates.mean(axis=2) @ shares).mean()), answers)


def _answer(table: Table, rates: Floats, name: str, learner: PolicyLearner, number: int) -> Answer:
    """Play all runs of one learner."""
    shares, gaps = shares_of(table.shape), _gaps(rates)
    best = rates.max(axis=2) @ shares  # of each run, an event
    uniform = gaps.mean(axis=2) @ shares
    if len(learner.actions) == table.actions:  # without contexts all cells are one: the same law
        rates, gaps = (np.einsum("rck,c->rk", of, shares)[:, None] for of in (rates, gaps))
        shares = np.ones(1)
    generator = default_rng((table.seed, number))
    shows = TableShows(rates, shares, learner, generator, table.slots)
    bits = RunBits.of(table.seed, range(len(rates)), number=number)
    lost, ends = [], [0]
    for step in play(learner, len(bits), shows, bits):
        slots = slots_of(learner.schedule, step.block, table.slots)
        if not slots:
            break
        lost.append((shows.policies(step.in_force) * gaps).sum(axis=2) @ shares)
        ends.append(slots.stop)
    parts = np.array(lost) / np.maximum(uniform, 1e-300)  # blocks × runs
    so_far = np.cumsum(np.diff(ends)[:, None] * parts, axis=0) / table.slots
    candidate = Candidate(name, learner.recipe.name, learner.options)
    return Answer(
        cell=LearnerCell(candidate, table.epsilon, learner),
        runs=len(rates),
        regret=100 * so_far[-1],
        course=Trajectory.of_runs(np.array(ends[1:]), 100 * so_far.T),
        best=(parts <= LEARNED).mean(axis=1),
        rewards=best - so_far[-1] * uniform,
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


@dataclass(frozen=True)
class TableShows:
    """Fills the columns of a kind that sees the shown action's reward, in a table of cells.

    Rates are runs × cells × actions. A learner without contexts has one policy for all cells.
    """

    rates: Floats
    shares: Floats
    learner: PolicyLearner
    generator: Generator
    horizon: int

    def policies(self, in_force: InForce) -> Floats:
        """The policy of each run and cell."""
        policies = np.reshape(in_force / PARTS, (len(self.rates), -1, self.rates.shape[2]))
        return np.asarray(np.broadcast_to(policies, self.rates.shape))

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """Draw the events of a block."""
        schedule, generator = self.learner.schedule, self.generator
        if schedule.stop(block) - 1 > self.horizon:
            return NOBODY
        length = schedule.stop(block) - schedule.start(block)
        policies = self.policies(in_force)
        policies = policies / policies.sum(axis=2, keepdims=True)
        events = generator.multinomial(length, self.shares, size=len(self.rates))
        shown: Ints = generator.multinomial(events, policies)
        gains: Ints = generator.binomial(shown, self.rates) * UNIT - shown * NULL
        if len(self.learner.actions) == self.rates.shape[2]:  # without contexts
            gains, shown = gains.sum(axis=1), shown.sum(axis=1)
        many = len(rows)
        return rows, self.learner.added(gains.reshape(many, -1), shown.reshape(many, -1))


def as_json(table: Table, found: Iterable[Learned]) -> dict[str, Any]:
    """For machines, and what the words for people are made of."""
    worlds = list(found)
    lost = mean_lost(worlds)
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
        "runs": worlds[0].answers[ASKED].runs,
        "take": min(lost, key=lambda name: lost[name]),
        "mean_regret_percent": lost,
        "worlds": [
            {
                "decides": of.world,
                "best_reward": of.best,
                "random_reward": of.random,
                "least": of.least,
                "not_clearly_worse": of.alike,
                "choices": {
                    name: {
                        "learned_after": None if answer.settled is None else answer.settled - 1,
                        "regret_percent": answer.mean,
                        "standard_error": answer.error,
                        "reward": float(answer.rewards.mean()),
                    }
                    for name, answer in of.answers.items()
                },
            }
            for of in worlds
        ],
    }
