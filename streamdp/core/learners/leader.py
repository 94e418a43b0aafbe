"""Recipes: functions that make a learner of actions, ε and a few options, and how they are read.

A learner is made by a recipe, never by hand in a configuration: rates and charges come from
`calibration`, and `learner_of` runs the recipe again, so that no file can claim a charge.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, wraps
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar

from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig
from streamdp.core.kinds.losses import Leader, Resample, Window
from streamdp.core.kinds.names import read_actions
from streamdp.core.schedule import Schedule, schedule_of

__all__ = [
    "DEFAULT_RECIPE",
    "RECIPES",
    "Leader",
    "Recipes",
    "Resample",
    "Window",
    "learner_of",
    "offered",
    "one_of",
    "package_of",
    "read_actions",
    "read_bonus",
    "read_recipe",
    "read_schedule",
    "recipe",
    "registered",
    "written",
]

MOST_BONUS = Fraction(1000)
DEFAULT_RECIPE = "remembering_leader"
"""The recipe of a configuration that names none."""


GROUP = "streamdp.recipes"
"""The entry points by which a package offers recipes: each recipe's name, and its function."""


class RecipeResult(Protocol):
    """A dataclass: what a recipe makes."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


P = ParamSpec("P")
L = TypeVar("L", bound=RecipeResult)


class Recipes(MutableMapping[str, Callable[..., L]]):
    """Recipes of one sort by their names: of streamdp's files, and of entry points.

    A recipe of an entry point is imported when it is first asked for; whoever lists all recipes
    imports all. A name has one recipe, of whatever sort.
    """

    sorts: ClassVar[list[Recipes[Any]]] = []

    def __init__(self) -> None:
        self.made: dict[str, Callable[..., L]] = {}
        self.sorts.append(self)

    def __getitem__(self, name: str) -> Callable[..., L]:
        entry = offered().get(name)
        if entry is not None and not _stands(name):
            _load(entry)
        return self.made[name]

    def __setitem__(self, name: str, recipe: Callable[..., L]) -> None:
        self.made[name] = recipe

    def __delitem__(self, name: str) -> None:
        del self.made[name]

    def __iter__(self) -> Iterator[str]:
        for name, entry in offered().items():
            if not _stands(name):
                _load(entry)
        return iter(tuple(self.made))

    def __len__(self) -> int:
        return len(tuple(iter(self)))


RECIPES: Recipes[Leader] = Recipes()
"""Every recipe of a learner that sees all losses, by its name."""


def _stands(name: str, *, house: str = "") -> bool:
    """Whether a recipe has this name already, in modules of another house than this."""
    made = (sort.made[name] for sort in Recipes.sorts if name in sort.made)
    return any(one.__module__.partition(".")[0] != house for one in made)


@cache  # a look-up reads the metadata of every installed package
def offered() -> Mapping[str, EntryPoint]:
    """The entry points of recipes by their names; refused if one name stands twice."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value or _stands(entry.name, house=_house(entry)):
            of = {"streamdp" if other.value == entry.value else _package(other), _package(entry)}
            raise InvalidConfig(
                f"recipe {entry.name}",
                "is offered twice",
                expected="one package for each name",
                got=" and ".join(sorted(of)),
            )
    return found


def _house(entry: EntryPoint) -> str:
    return entry.module.partition(".")[0]


def _package(entry: EntryPoint) -> str:
    return "a folder" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def package_of(recipe: str) -> str | None:
    """The package, with its version, that offers a recipe; None: streamdp itself."""
    entry = offered().get(recipe)
    return None if entry is None or _house(entry) == "streamdp" else _package(entry)


def _load(entry: EntryPoint) -> None:
    """Import a recipe's module, whose decorator registers it."""
    where = f"recipe {entry.name} of {_package(entry)}"
    try:
        entry.load()
    except (ImportError, AttributeError) as error:
        raise InvalidConfig(
            where, "cannot be imported", expected=entry.value, got=str(error)
        ) from error
    if not _stands(entry.name):
        expected = "a function of this name with the decorator @recipe or @feedback_recipe"
        raise InvalidConfig(where, "is not registered", expected=expected, got=entry.value)


def recipe(function: Callable[P, Leader]) -> Callable[P, Leader]:
    """Register a recipe under its function's name, and write its options on what it makes."""
    return registered(RECIPES, function)


def registered(recipes: Recipes[L], function: Callable[P, L]) -> Callable[P, L]:
    """Register a function in `recipes`, and write its name and options on what it makes."""
    name = function.__name__
    signature = inspect.signature(function)
    known = ", ".join(signature.parameters)
    needed = [
        option.name for option in signature.parameters.values() if option.default is option.empty
    ]

    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> L:
        if args:
            by_name = f"{name}({', '.join(f'{option}=…' for option in needed)})"
            raise InvalidConfig(name, "options without names", expected=by_name, got=len(args))
        if "epsilon" in kwargs and "epsilon" not in signature.parameters:
            raise InvalidConfig(
                "learner.epsilon",
                f"{name} is a baseline that is not private: no ε bounds what it releases",
                expected=known,
                got=sorted(kwargs),
            )
        for option in (*kwargs, *needed):
            if (option in kwargs) == (option in signature.parameters):
                continue
            wrong = f"{'unknown option' if option in kwargs else 'missing option'} of {name}"
            raise InvalidConfig(f"learner.{option}", wrong, expected=known, got=sorted(kwargs))
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        options = {
            key: written(value) for key, value in bound.arguments.items() if key != "actions"
        }
        return replace(function(*args, **kwargs), recipe=name, options=tuple(options.items()))

    house = function.__module__.partition(".")[0]
    entry = None if house == "streamdp" else offered().get(name)
    if _stands(name) or (entry is not None and _house(entry) != house):
        raise InvalidConfig(
            "learners", "two recipes of one name", expected="distinct names", got=name
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
            "learner",
            "`actions` is not an option of a recipe",
            expected="actions beside the table of options",
            got=type(options["actions"]).__name__,
        )
    name = options.pop("recipe", default)
    if name not in recipes:
        raise InvalidConfig(
            "learner.recipe",
            "unknown",
            expected=f"one of {', '.join(sorted(recipes))}, or an installed package that offers it",
            got=name,
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
            "learner.schedule", "unknown", expected="a schedule or its name", got=got
        )
    name, _, parameter = option.partition(" ")
    try:
        return schedule_of(name, parameter or None)
    except InvalidConfig as error:
        raise error.at(f"learner.{error.where}") from None


def read_bonus(option: str | Fraction | int) -> Fraction:
    """The bonus of the action in force, in noise units; 0 for none."""
    if option in (0, "0"):
        return Fraction(0)
    bonus = parse_epsilon(option, "learner.bonus")
    if bonus > MOST_BONUS:
        raise InvalidConfig("learner.bonus", "too large", expected=f"≤ {MOST_BONUS}", got=bonus)
    return bonus


def one_of(option: str, choices: Sequence[str], *, where: str) -> str:
    """An option that must be one of some words."""
    if option not in choices:
        raise InvalidConfig(where, "unknown", expected=" | ".join(choices), got=option)
    return option
