"""Recipes: functions that make a kind of actions, ε and a few options, and how they are found.

A learner is made by a recipe, never by hand in a configuration: rates and charges come from
`calibration`, and `kind_of` runs the recipe again, so that no file can claim a charge.

Whoever needs a stream's kind by its name asks here, and does not know which kinds there are.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, ParamSpec, TypeVar

from streamdp.core.errors import InvalidConfig
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.recipe import Made, config_of
from streamdp.core.schedule import Schedule

CONTEXTS = "policy_contexts"
"""The recipe of streams with a table of contexts."""

FITTING = "fitting"
"""An option's word for what follows from K and ε. Where a learner says which number that is, the
number is what is written of it: a name in a ledger stands for one arithmetic (`kind_written`)."""

GROUP = "streamdp.recipes"
"""The entry points by which a package offers recipes: each recipe's name, and its function."""


P = ParamSpec("P")
L = TypeVar("L", bound=Made)


class Recipes(MutableMapping[str, Callable[..., L]]):
    """Recipes of one sort by their names: of streamdp's files, and of entry points.

    A recipe of an entry point is imported when it is first asked for; whoever lists all recipes
    imports all. A name has one recipe, of whatever sort.
    """

    sorts: ClassVar[list[Recipes[Any]]] = []

    def __init__(self, *, default: str) -> None:
        self.default = default
        self.made: dict[str, Callable[..., L]] = {}
        self.sorts.append(self)

    def read(self, config: Mapping[str, str], *, actions: Sequence[str]) -> L:
        """Run the recipe that a configuration's table names, with the table's options."""
        options = dict(config)
        if "actions" in options:
            raise InvalidConfig(
                "learner",
                "`actions` is not an option of a recipe",
                expected="actions beside the table of options",
                got=type(options["actions"]).__name__,
            )
        name = options.pop("recipe", self.default)
        if name not in self:
            raise InvalidConfig(
                "learner.recipe",
                "unknown",
                expected=f"one of {', '.join(sorted(self))}, or an installed package that offers"
                " it",
                got=name,
            )
        return self[name](actions=actions, **options)

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


OBSERVED: dict[str, Recipes[Any]] = {}
"""The recipes of kinds, by what a stream observes: `losses` or `feedback`."""


def kind_of(
    config: Mapping[str, str], *, actions: Sequence[str], observes: str | None = None
) -> Kind:
    """The kind that a configuration's table names, of a stream that observes this.

    A ledger and a state name the recipe in any case, and do not say what the stream observes.
    """
    if observes is None:
        named = (of for of, recipes in OBSERVED.items() if config.get("recipe") in recipes)
        observes = next(named, "losses")
    kind: Kind = OBSERVED[observes].read(config, actions=actions)
    return kind


def kind_written(text: str, *, actions: Sequence[str]) -> Kind:
    """The kind that a ledger or a state names, as `Recipe.learner` writes it."""
    kind = kind_of(json.loads(text), actions=actions)
    if not is_name_of(text, kind):
        raise InvalidConfig(
            "learner", "of another version of streamdp", expected=kind.recipe.learner, got=text
        )
    return kind


def is_name_of(text: str, kind: Kind) -> bool:
    """Whether a kind that was read from a name would write these options so.

    A name stands for one arithmetic: another one is of a version that computed something else. It
    may lack options that came later, whose defaults compute what was computed without them.
    """
    return bool(json.loads(text).items() <= config_of(kind.recipe).items())


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
        learner = function(*args, **kwargs)
        of_another = learner.name in recipes.made  # else these it writes itself
        options |= () if of_another else learner.options
        return replace(learner, name=name, options=tuple(options.items()))

    house = function.__module__.partition(".")[0]
    entry = None if house == "streamdp" else offered().get(name)
    if _stands(name) or (entry is not None and _house(entry) != house):
        raise InvalidConfig(
            "learners", "two recipes of one name", expected="distinct names", got=name
        )
    recipes[name] = made
    return made


def written(option: object) -> str:
    """An option as text, as a configuration writes it.

    >>> from fractions import Fraction
    >>> from streamdp.core.schedule import geometric
    >>> written(geometric("2.5")), written(Fraction(1, 2)), written(None)
    ('geometric 5/2', '1/2', 'none')
    """
    if isinstance(option, Schedule):
        return f"{option.name} {option.parameter}" if option.parameter else option.name
    return "none" if option is None else str(option)
