"""Lets environment variables override the file: ``STREAMDP__STREAMS__HOME__EPOCH=2``.

The parts of a variable's name, separated by two underscores, are tables and a key. Case does not
matter, and an underscore matches a hyphen in the file's name. A value is text, read as its key
needs it; one that begins with ``[`` or ``{`` is read as TOML. Unknown names are refused like
unknown keys. Errors name the variable, also for values inside a list or table that a variable set,
and for a table that exists only because of a mistyped variable.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamdp.core.errors import InvalidConfig

PREFIX = "STREAMDP__"

_PART = re.compile(r'"([^"]+)"(?=\.|$)|([^.]+)')  # of a place, which is written as in TOML

Tree = dict[str, Any]
Place = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origins:
    """Which variable set each value, and each table that the file does not have."""

    values: dict[Place, str] = field(default_factory=dict)
    tables: dict[Place, str] = field(default_factory=dict)

    def where(self, file: object, place: Place) -> str:
        """How a message names a place: by its variable, if a variable is the cause.

        >>> Origins({("http",): "STREAMDP__HTTP"}).where("x.toml", ("http", "listen"))
        'STREAMDP__HTTP: http.listen'
        """
        if place in self.values:
            return self.values[place]
        dotted = ".".join(f'"{part}"' if "." in part else part for part in place)
        for length in range(len(place), 0, -1):
            variable = self.values.get(place[:length]) or self.tables.get(place[:length])
            if variable is not None:
                return f"{variable}: {dotted}"
        return f"{file}: {dotted}"

    def placed(self, error: InvalidConfig, file: object, table: Place = ()) -> InvalidConfig:
        """The error of a key of a table, with the file, or with the variable that set it.

        >>> Origins().placed(InvalidConfig("a", "no", expected=1, got=2), "x.toml", ("b.c",))
        InvalidConfig('x.toml: "b.c".a: no; expected 1, got 2')
        """
        key = (quoted or plain for quoted, plain in _PART.findall(error.where))
        return error.at(self.where(file, (*table, *key)))

    def table(self, place: Place) -> Place | None:
        """The table around a place, if only a variable made it."""
        above = (place[:length] for length in range(1, len(place) + 1))
        return next((prefix for prefix in above if prefix in self.tables), None)

    def within(self, place: Place) -> list[str]:
        """The variables that set something in a table."""
        return [name for at, name in self.values.items() if at[: len(place)] == place]


def overlaid(tree: Tree, environment: Mapping[str, str]) -> tuple[Tree, Origins]:
    """Merge the environment's values into the file's tree; return also which variable set which.

    >>> tree = {"streams": {"my-home": {"epoch": 1}}}
    >>> tree, origins = overlaid(tree, {"STREAMDP__STREAMS__MY_HOME__EPOCH": "2"})
    >>> tree, origins.values
    ({'streams': {'my-home': {'epoch': '2'}}}, {('streams', 'my-home', 'epoch'): \
'STREAMDP__STREAMS__MY_HOME__EPOCH'})
    """
    origins = Origins()
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        parts = variable.removeprefix(PREFIX).split("__")
        if not all(parts):
            raise InvalidConfig(
                variable, "no key", expected=f"{PREFIX}TABLE__KEY", got="an empty part"
            )
        value = _value(variable, environment[variable])
        place = _named(tree, parts)
        for length in range(1, len(place)):
            if not _has(tree, place[:length]):
                origins.tables[place[:length]] = variable
        tree = _put(tree, place, value, variable)
        origins.values[place] = variable
    return tree, origins


def _named(tree: object, parts: list[str]) -> Place:
    """A variable's parts, each spelled as in the tree if the tree has it."""
    if not parts:
        return ()
    names = tree if isinstance(tree, dict) else {}
    name = next((key for key in names if _same(key, parts[0])), parts[0].lower())
    return (name, *_named(names.get(name), parts[1:]))


def _has(tree: object, place: Place) -> bool:
    """Whether the tree has this place."""
    for name in place:
        if not isinstance(tree, dict) or name not in tree:
            return False
        tree = tree[name]
    return True


def _put(tree: Tree, place: Place, value: object, variable: str) -> Tree:
    """A copy of the tree with a value at a place."""
    name, *rest = place
    if not rest:
        return {**tree, name: value}
    below = tree.get(name, {})
    if not isinstance(below, dict):
        got = f"{type(below).__name__} at {name}"
        raise InvalidConfig(variable, "not a table", expected="a table", got=got)
    return {**tree, name: _put(below, tuple(rest), value, variable)}


def _same(key: str, part: str) -> bool:
    """Whether a part of a variable's name means this key."""
    return key.lower().replace("-", "_").replace(".", "_") == part.lower()


def _value(variable: str, text: str) -> object:
    """The value of a variable: text, or a list or table in TOML."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        raise InvalidConfig(
            variable,
            "unreadable",
            expected="a list or table in TOML",
            got=f"{len(text)} characters that are not TOML",
        ) from None
