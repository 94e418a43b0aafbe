"""The environment over the file: ``STREAMDP__STREAMS__HOME__MODE=shadow``.

Each part of a variable's name, parted by two underscores, is a table or key. Case does not matter,
and where the file has a name with hyphens an underscore stands for them. A value is text, read as
its key wants it; one that begins with ``[`` or ``{`` is read as TOML. Unknown names are refused
like unknown keys, and errors name the variable.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from streamdp.core.errors import InvalidConfig, complaint

PREFIX = "STREAMDP__"

Tree = dict[str, Any]
Origins = dict[tuple[str, ...], str]
"""Which variable a value came from."""


def overlaid(tree: Tree, environment: Mapping[str, str]) -> tuple[Tree, Origins]:
    """The file's tree with the environment's values in it, and where these came from.

    >>> overlaid({"streams": {"my-home": {"epoch": 1}}}, {"STREAMDP__STREAMS__MY_HOME__EPOCH": "2"})
    ({'streams': {'my-home': {'epoch': '2'}}}, {('streams', 'my-home', 'epoch'): \
'STREAMDP__STREAMS__MY_HOME__EPOCH'})
    """
    origins: Origins = {}
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        parts = variable.removeprefix(PREFIX).split("__")
        if not all(parts):
            raise InvalidConfig(
                complaint(variable, "no key", expected=f"{PREFIX}TABLE__KEY", got="an empty part")
            )
        value = _value(variable, environment[variable])
        tree, place = _put(tree, parts, value, variable)
        origins[place] = variable
    return tree, origins


def _put(
    tree: Tree, parts: list[str], value: object, variable: str
) -> tuple[Tree, tuple[str, ...]]:
    """A copy of the tree with a value at a place, and the place by the tree's own names."""
    name = next((key for key in tree if _same(key, parts[0])), parts[0].lower())
    if len(parts) == 1:
        return {**tree, name: value}, (name,)
    below = tree.get(name, {})
    if not isinstance(below, dict):
        got = f"{type(below).__name__} at {name}"
        raise InvalidConfig(complaint(variable, "no such table", expected="a table", got=got))
    changed, place = _put(below, parts[1:], value, variable)
    return {**tree, name: changed}, (name, *place)


def _same(key: str, part: str) -> bool:
    """Whether a part of a variable's name stands for a key."""
    return key.lower().replace("-", "_").replace(".", "_") == part.lower()


def _value(variable: str, text: str) -> object:
    """Text, or a list or table in TOML."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        raise InvalidConfig(
            complaint(variable, "unreadable", expected="a list or table in TOML", got="another")
        ) from None
