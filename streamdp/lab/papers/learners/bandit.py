"""A paper's feedback learner as a value, and the interface of its course of play.

The papers' learners have phases that end when *an arm's own count* of observations is full, and the
phases of different arms interleave. So everything is counted in an arm's own observations, numbered
from 1, and each arm has an account of its own:

1. An observation is credited to the arm that its header names, whatever is played at that moment.
2. A `Part` is a run of one arm's observations. When the last of them is credited, their sum is
   released with discrete Laplace noise of scale 1/ε of the part (sensitivity 1), and each of them
   is charged ε. Which parts there are follows from public counts and earlier releases.
3. A `Course` is the public side of one run: it decides which arms are played and which parts are
   released when, and it gets noisy sums. It never sees an observation, so whatever it does is
   post-processing: play, indices and posterior draws cost nothing.

The service's engine needs blocks of consecutive slots, so it refuses these learners; they run in
the library, in replays and in simulations (`lab.papers.bandit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import ParamSpec, Protocol

from streamdp.core.arrays import Floats, Ints
from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig
from streamdp.core.kinds.recipe import config_of
from streamdp.core.learners.leader import read_actions
from streamdp.core.learners.recipes import Recipes, registered


@dataclass(frozen=True, slots=True)
class Part:
    """A run of one arm's observations whose sum is released, and the charge of each of them.

    `epsilon` None: the sum is released without noise, in baselines that are not private.
    """

    start: int  # the first observation, numbered from 1
    stop: int  # the first one after it
    epsilon: Fraction | None

    def shifted(self, count: int) -> Part:
        """The same part of an arm that had `count` observations before."""
        return Part(self.start + count, self.stop + count, self.epsilon)


class Chance(Protocol):
    """Public random draws: independent of all data."""

    def uniform(self, *shape: int) -> Floats:
        """Uniform draws in (0, 1)."""
        ...

    def beta(self, alpha: Floats, beta: Floats) -> Floats:
        """A draw of each Beta(α, β); α, β ≥ 1."""
        ...


class Course(Protocol):
    """One run of a learner: decides plays and releases; reads releases only."""

    def begin_slot(self, slot: int, entered: Sequence[int]) -> None:
        """Begin slot `slot`; `entered` says how many observations of each arm came before it.

        A course that restarts by the calendar of slots does so here.
        """
        ...

    def plays(self, slot: int, most: int, chance: Chance) -> Ints:
        """The arms of the next 1 to `most` slots from `slot` on, if nothing is released meanwhile.

        Only the arms up to the next release are used; the caller asks again for later slots.
        """
        ...

    def parts(self, arm: int) -> Sequence[Part]:
        """The parts of the arm that end next, all with the same observation.

        None: no part of this arm is open, and its observations are not entered.
        """
        ...

    def open_from(self, arm: int) -> Sequence[int]:
        """The first observations of all open parts of the arm, those that end later too."""
        ...

    def released(self, slot: int, arm: int, sums: Sequence[float], chance: Chance) -> None:
        """Take the noisy sums of losses of the parts that ended, in the order of `parts`."""
        ...


@dataclass(frozen=True)
class Bandit:
    """A learner of bandit feedback as a value: what it charges, and how its runs begin.

    `charge` is the most that any observation is charged by all parts together; None: not private.
    """

    actions: tuple[str, ...]
    charge: Fraction | None
    begin: Callable[[], Course] = field(compare=False, repr=False)
    name: str = "bandit"
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Check the actions' names."""
        object.__setattr__(self, "actions", read_actions(self.actions))

    def __reduce__(self) -> tuple[object, ...]:
        """What is sent to another process: the recipe and its options; `begin` is made there."""
        return partial(bandit_of, actions=self.actions), (config_of(self),)

    def __str__(self) -> str:
        """One line for tables and logs."""
        options = ", ".join(f"{name}={value}" for name, value in self.options if value != "none")
        return f"{self.name}({options}) of {len(self.actions)} actions"


BANDIT_RECIPES: Recipes[Bandit] = Recipes(default="lazy_thompson")
"""Every recipe of a paper's feedback learner by its name."""

P = ParamSpec("P")

Number = str | Fraction | int | None
"""An option that is a number; None: it follows from others."""


def bandit_recipe(function: Callable[P, Bandit]) -> Callable[P, Bandit]:
    """Register a recipe under its function's name, and write its options on what it makes."""
    return registered(BANDIT_RECIPES, function)


def bandit_of(config: Mapping[str, str], *, actions: Sequence[str]) -> Bandit:
    """The learner that a table of options names; the inverse of `config_of`."""
    return BANDIT_RECIPES.read(config, actions=actions)


def read_horizon(option: str | int | None, *, where: str) -> int | None:
    """A number of slots, or None: then the horizon doubles as slots go by.

    >>> read_horizon("1000", where="horizon"), read_horizon("none", where="horizon")
    (1000, None)
    """
    if option is None or option == "none":
        return None
    text = str(option)
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 40:
        raise InvalidConfig(where, "not a slot count", expected="1 … 2**40", got=text)
    return int(text)


def read_number(option: Number, *, where: str) -> float | None:
    """A positive number, or None: then it follows from other options."""
    return None if option is None or option == "none" else float(parse_epsilon(option, where))
