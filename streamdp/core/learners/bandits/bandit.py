"""A paper's feedback learner as a value, and what its course of play looks like from outside.

The papers' learners have phases that end when *an arm's own count* of observations is full, and the
phases of different arms interleave. So everything is said in an arm's own observations, numbered
from 1, and each arm has an account of its own:

1. An observation is credited to the arm that its header names, whatever is played at that moment.
2. A `Part` is a run of one arm's observations. When the last of them is credited, their sum is
   released with discrete Laplace noise of scale 1/ε of the part (sensitivity 1), and each of them
   is charged ε. Which parts there are follows from public counts and earlier releases.
3. A `Course` is the public side of one run: it says which arms are played and which parts are
   released when, and it is told noisy sums. It never sees an observation, so whatever it does is
   post-processing: play, indices and posterior draws cost nothing.

The engine of blocks rests on contiguous slots, so these learners run in library, replay and
simulation (`core.engine.bandit`), and the service refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ParamSpec, Protocol

from streamdp.core.arrays import Floats, Ints
from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.learners.leader import read_actions, read_recipe, registered


@dataclass(frozen=True, slots=True)
class Part:
    """A run of one arm's observations whose sum is released, and what that costs each of them.

    `epsilon` None says that the sum is released as it is: not private, for baselines.
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
    """One run of a learner: what is played, and what is released when; reads releases only."""

    def begin_slot(self, slot: int, entered: Sequence[int]) -> None:
        """Begin slot `slot`; `entered` says how many observations of each arm came before it.

        A course that restarts by the calendar of slots does so here.
        """
        ...

    def plays(self, slot: int, most: int, chance: Chance) -> Ints:
        """The arms of the next 1 to `most` slots from `slot` on, if nothing is released meanwhile.

        Only the arms up to the next release count; later slots are asked for again.
        """
        ...

    def due(self, arm: int) -> int | None:
        """The arm's observation with which the next of its parts ends.

        None: no part of this arm is open, and its observations are not entered anywhere.
        """
        ...

    def open_from(self, arm: int) -> Sequence[int]:
        """Where parts of this arm that have not ended may begin, but for its next observation."""
        ...

    def parts(self, arm: int) -> Sequence[Part]:
        """The parts that end with the observation that is due."""
        ...

    def released(self, slot: int, arm: int, sums: Sequence[float], chance: Chance) -> None:
        """The noisy sums of losses of these parts, in the order of `parts`, are public now."""
        ...


@dataclass(frozen=True)
class Bandit:
    """A learner of bandit feedback as a value: what it charges, and how its runs begin.

    `charge` is the most that any observation is charged by all parts together; None: not private.
    """

    actions: tuple[str, ...]
    charge: Fraction | None
    begin: Callable[[], Course] = field(compare=False, repr=False)
    recipe: str = "bandit"
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no engine could run."""
        object.__setattr__(self, "actions", read_actions(self.actions))

    @property
    def private(self) -> bool:
        """Whether the learner promises anything."""
        return self.charge is not None

    def to_config(self) -> dict[str, str]:
        """The learner as a table of options; `bandit_of` reads it back."""
        return {"recipe": self.recipe, **dict(self.options)}

    def __str__(self) -> str:
        """One line for tables and logs."""
        options = ", ".join(f"{name}={value}" for name, value in self.options if value != "none")
        return f"{self.recipe}({options}) of {len(self.actions)} actions"


BANDIT_RECIPES: dict[str, Callable[..., Bandit]] = {}
"""Every recipe of a paper's feedback learner by its name."""

P = ParamSpec("P")


def bandit_recipe(function: Callable[P, Bandit]) -> Callable[P, Bandit]:
    """Register a recipe under its function's name, and write its options on what it makes."""
    return registered(BANDIT_RECIPES, function)


def bandit_of(config: Mapping[str, str], *, actions: Sequence[str]) -> Bandit:
    """The learner that a table of options names; the inverse of `Bandit.to_config`."""
    return read_recipe(BANDIT_RECIPES, config, actions=actions, default="lazy_thompson")


def read_choice(option: str, choices: Sequence[str], *, where: str) -> str:
    """One of a few words."""
    if option not in choices:
        raise InvalidConfig(complaint(where, "unknown", expected=" | ".join(choices), got=option))
    return option


def read_positive(option: str | Fraction | int, *, where: str) -> Fraction:
    """An exact number above 0."""
    return parse_epsilon(option, where)


def read_horizon(option: str | int | None, *, where: str) -> int | None:
    """A number of slots, or none: then the horizon is doubled as slots go by.

    >>> read_horizon("1000", where="horizon"), read_horizon("none", where="horizon")
    (1000, None)
    """
    if option is None or option == "none":
        return None
    text = str(option)
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 40:
        raise InvalidConfig(complaint(where, "no number of slots", expected="1 … 2**40", got=text))
    return int(text)
