"""A learner as a value: schedule + window + selection (+ resampling and prior).

The full-information algorithms of the papers differ in these choices only. At the end of each
block a `Leader` privately selects the action in force from the next slot on, from the sums of the
losses of that block's window. A block's slots enter that one selection and are charged for it;
different blocks have different slots, so every event is charged once.

A `Leader` is made by a recipe, never by hand in a configuration: rates and charges come from
`calibration`, and `learner_of` runs the recipe again, so that no file can claim a charge.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import wraps
from hashlib import sha256
from typing import Any, ClassVar, Literal, ParamSpec, Protocol, TypeVar

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.evidence import NEWEST, Memory
from streamdp.core.schedule import Schedule, schedule_of
from streamdp.core.selection import Mechanism, Prior

Window = Literal["whole", "random_prefix", "running"]
Resample = Literal["none", "bernoulli"]

MOST_ACTIONS = 10**6
MOST_BONUS = Fraction(1000)
DEFAULT_RECIPE = "remembering_leader"
"""The recipe of a configuration that names none."""


@dataclass(frozen=True)
class Leader:
    """A full-information block learner, as a value.

    `window` says which losses of a block count: all (`whole`), those of a random prefix of it, or
    all losses since the learner was born (`running`; not private). `charge` is what the ledger
    books for each slot of a block; None means that the learner is not private. `bonus` is the head
    start of the action in force in the next selection, in noise units: a public prior, since the
    action in force follows from earlier releases. `memory` computes the action in force from the
    newest vote, or from more votes.
    """

    actions: tuple[str, ...]
    schedule: Schedule
    window: Window
    resample: Resample
    choose: Mechanism
    charge: Fraction | None
    bonus: Fraction = Fraction(0)
    memory: Memory = NEWEST
    recipe: str = "leader"
    options: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """As given to the recipe, as text; not compared: "0.5" and "1/2" make equal learners."""

    def __post_init__(self) -> None:
        """Refuse a learner that no engine could run."""
        object.__setattr__(self, "actions", read_actions(self.actions))
        if self.charge is not None and self.charge <= 0:
            raise InvalidConfig(
                complaint(self.recipe, "no charge", expected="> 0", got=self.charge)
            )
        if self.charge is not None and self.window == "running":
            raise InvalidConfig(
                complaint(
                    self.recipe,
                    "a running window reads slots again",
                    expected="no charge",
                    got=self.charge,
                )
            )

    @property
    def private(self) -> bool:
        """Whether the learner is private."""
        return self.charge is not None

    @property
    def remembers(self) -> bool:
        """Whether another action than the newest vote may be in force."""
        return bool(self.memory.name)

    def prior(self, in_force: Ints) -> Prior | None:
        """The prior of selections while these actions are in force."""
        return Prior.incumbent(in_force, self.bonus) if self.bonus else None

    def log_probabilities(self, sums: Ints, *, in_force: int) -> Floats:
        """The exact law of a selection from a window's K sums, for audits and tests.

        Sums are on the grid and, where losses are resampled, of the resampled losses.
        """
        return self.choose.log_probabilities(sums, self.prior(np.array([in_force])))

    def to_config(self) -> dict[str, str]:
        """The learner's table in a configuration file; `learner_of` reads it back."""
        return {"recipe": self.recipe, **dict(self.options)}

    def digest(self) -> str:
        """A fingerprint of everything that the learner's state and privacy depend on."""
        parts: dict[str, object] = {
            "recipe": self.recipe,
            "actions": self.actions,
            "schedule": [self.schedule.name, self.schedule.prefix, self.schedule.tail],
            "window": self.window,
            "resample": self.resample,
            "choose": [self.choose.name, str(self.choose.rate)],
            "charge": str(self.charge),
            "bonus": str(self.bonus),
        }
        if self.remembers:  # the digests of other learners stay what they were before memories
            parts["memory"] = self.memory.name
        return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        """One line for tables and logs."""
        options = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.recipe}({options}) of {len(self.actions)} actions"


RECIPES: dict[str, Callable[..., Leader]] = {}
"""Every recipe by its name."""


class RecipeResult(Protocol):
    """A dataclass: what a recipe makes."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


P = ParamSpec("P")
L = TypeVar("L", bound=RecipeResult)


def recipe(function: Callable[P, Leader]) -> Callable[P, Leader]:
    """Register a recipe under its function's name, and write its options on what it makes."""
    return registered(RECIPES, function)


def registered(recipes: dict[str, Callable[..., L]], function: Callable[P, L]) -> Callable[P, L]:
    """Register a function in `recipes`, and write its name and options on what it makes."""
    name = function.__name__
    signature = inspect.signature(function)

    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> L:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidConfig(
                complaint(
                    name, str(error), expected=", ".join(signature.parameters), got=sorted(kwargs)
                )
            ) from None
        bound.apply_defaults()
        options = {
            key: written(value) for key, value in bound.arguments.items() if key != "actions"
        }
        return replace(function(*args, **kwargs), recipe=name, options=tuple(options.items()))

    if name in recipes:
        raise InvalidConfig(
            complaint("learners", "two recipes of one name", expected="distinct names", got=name)
        )
    recipes[name] = made
    return made


def learner_of(config: Mapping[str, str], *, actions: Sequence[str]) -> Leader:
    """The learner that a configuration's table names; the inverse of `Leader.to_config`."""
    return read_recipe(RECIPES, config, actions=actions, default=DEFAULT_RECIPE)


def read_recipe(
    recipes: Mapping[str, Callable[..., L]],
    config: Mapping[str, str],
    *,
    actions: Sequence[str],
    default: str,
) -> L:
    """Run the recipe that a configuration's table names, with the table's options."""
    options = dict(config)
    if "actions" in options:
        raise InvalidConfig(
            complaint(
                "learner",
                "`actions` is not an option of a recipe",
                expected="actions beside the table of options",
                got=type(options["actions"]).__name__,
            )
        )
    name = options.pop("recipe", default)
    if name not in recipes:
        raise InvalidConfig(
            complaint("learner.recipe", "unknown", expected=", ".join(sorted(recipes)), got=name)
        )
    return recipes[name](actions=actions, **options)


def written(option: object) -> str:
    """An option as text, as a configuration writes it.

    >>> from streamdp.core.schedule import geometric
    >>> written(geometric("2.5")), written(Fraction(1, 2)), written(None)
    ('geometric 5/2', '1/2', 'none')
    """
    if isinstance(option, Schedule):
        return f"{option.name} {option.parameter}" if option.parameter else option.name
    return "none" if option is None else str(option)


def read_schedule(option: object) -> Schedule:
    """A schedule, given as such or as text, such as ``"geometric 5/2"``."""
    if isinstance(option, Schedule):
        return option
    if not isinstance(option, str):
        got = type(option).__name__
        raise InvalidConfig(
            complaint("learner.schedule", "unknown", expected="a schedule or its name", got=got)
        )
    name, _, parameter = option.partition(" ")
    try:
        return schedule_of(name, parameter or None)
    except InvalidConfig as error:
        raise InvalidConfig(f"learner.{error}") from None


def read_actions(actions: Sequence[str]) -> tuple[str, ...]:
    """The actions' names, checked.

    >>> read_actions(["a", "b"])
    ('a', 'b')
    """
    listed = isinstance(actions, Sequence) and not isinstance(actions, str)
    names = tuple(actions) if listed else ()
    texts = all(issubclass(kind, str) for kind in set(map(type, names))) and all(names)
    if not listed or not texts:
        raise InvalidConfig(
            complaint(
                "actions",
                "not names",
                expected="a list of non-empty strings",
                got=type(actions).__name__,
            )
        )
    if not 2 <= len(names) <= MOST_ACTIONS:
        raise InvalidConfig(
            complaint("actions", "count", expected=f"2 … {MOST_ACTIONS}", got=len(names))
        )
    twice, times = Counter(names).most_common(1)[0]
    if times > 1:
        places = [str(at) for at, name in enumerate(names, 1) if name == twice]
        got = f"{twice!r} as no. {' and '.join(places)}"
        raise InvalidConfig(
            complaint("actions", "a name twice", expected="distinct names", got=got)
        )
    return names


def read_bonus(option: str | Fraction | int) -> Fraction:
    """The bonus of the action in force, in noise units; 0 for none."""
    if option in (0, "0"):
        return Fraction(0)
    bonus = parse_epsilon(option, "learner.bonus")
    if bonus > MOST_BONUS:
        raise InvalidConfig(
            complaint("learner.bonus", "too large", expected=f"≤ {MOST_BONUS}", got=bonus)
        )
    return bonus


def one_of(option: str, choices: Sequence[str], *, where: str) -> str:
    """An option that must be one of some words."""
    if option not in choices:
        raise InvalidConfig(complaint(where, "unknown", expected=" | ".join(choices), got=option))
    return option
