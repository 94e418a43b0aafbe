"""The errors of a configuration, one line each: where, what, expected, got.

All of pydantic's complaints are shown together. The values in the open tables (a transport's
password among them) are never validated here, so they are never quoted; nor is any value in the
place of a transport's table or of a seed.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.service.config.environment import Origins, Place

Detail = Mapping[str, Any]
"""One of pydantic's complaints."""

_OPERATIONS = ("most_series", "operator_listen", "operator_token_file")
"""Keys of the operations listener: `serve`, which the table http is for, has none of them."""

GONE: Mapping[Place, str] = {
    ("streams", "*", "mode"): "no mode: a trial is a stream that nobody reads, and `streamdp mode"
    " STREAM fallback` takes the readers of a stream away",
    ("operations", "operator_exact"): "no exact figures of what runs: `streamdp replay` computes"
    " them from the log, and an estimate shows them privately",
}
"""Keys that there are no longer (`*`: any name), and what to do instead."""


def as_ours(
    error: ValidationError, *, model: type[BaseModel], file: str, origins: Origins
) -> InvalidConfig:
    """Turn pydantic's complaints into one `InvalidConfig`."""
    lines = (_line(detail, model, file, origins) for detail in error.errors(include_url=False))
    return InvalidConfig("\n".join(lines))


def _line(detail: Detail, model: type[BaseModel], file: str, origins: Origins) -> str:
    place = tuple(str(part) for part in detail["loc"] if part != "[key]")
    where = origins.where(file, place)
    match detail["type"]:
        case "value_error":
            return str(origins.placed(detail["ctx"]["error"], file, place))
        case "extra_forbidden" if instead := _instead(place):
            return complaint(where, "no key any more", expected=instead, got=place[-1])
        case "extra_forbidden" if place[0] == "http" and place[-1] in _OPERATIONS:
            expected = "it in the table [operations], which `run` and `assemble` read"
            return complaint(where, "not a key of `serve`", expected=expected, got=place[-1])
        case "extra_forbidden":
            return complaint(where, "unknown key", expected=_known(model, place), got=place[-1])
        case "missing":
            made = origins.table(place)
            what = "missing" if made is None else f"missing, and {file} has no {'.'.join(made)}"
            return complaint(where, what, expected=_description(model, place), got="nothing")
        case "string_pattern_mismatch":
            expected = "letters, digits, _ and -"
        case "model_type" | "dict_type":
            expected = "a table"
        case _:
            expected = detail["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    got = "another" if _is_secret(place) else shown(detail["input"])
    return complaint(where, "not usable", expected=expected, got=got)


def _instead(place: Place) -> str | None:
    """What to do instead of a key that there is no longer."""
    return GONE.get(place) or GONE.get((place[0], "*", *place[2:]))


def _is_secret(place: Place) -> bool:
    """Whether the value in this place may be, or hold, a secret."""
    return place[0] == "transport" or (place[0] == "streams" and place[2:3] == ("seed",))


def shown(value: object) -> str:
    """A value, shortened to a few characters."""
    if isinstance(value, str | int | float):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}…"
    return type(value).__name__


def _known(model: type[BaseModel], place: Place) -> str:
    """The keys of the table around a place, or the one that was probably meant.

    A key of this name in a table around this one, or within it, is likelier than a similar name.
    """
    *around, name = place
    names = list(_keys(model, around))
    others = [around[:depth] for depth in range(len(around) - 1, 0, -1)]
    others += [[*around, inner] for inner in names]
    found = [[*other, name] for other in others if name in _keys(model, other)]
    if found:
        return " or ".join(".".join(other) for other in found)
    close = get_close_matches(name, names, n=1)
    return close[0] if close else "one of " + ", ".join(names)


def _keys(model: type[BaseModel], place: Sequence[str]) -> Collection[str]:
    """The keys of the table at a place; none if there is no table."""
    table = _table(model, place)
    return () if table is None else table.model_fields


def _description(model: type[BaseModel], place: Place) -> str:
    """What a missing key is for."""
    table = _table(model, place[:-1])
    field = None if table is None else table.model_fields.get(place[-1])
    return field.description or "a value" if field is not None else "a value"


def _table(model: type[BaseModel], place: Sequence[str]) -> type[BaseModel] | None:
    """The type of the table at a place."""
    kind: Any = model
    for part in place:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(part)
            kind = None if field is None else _plain(field.annotation)
        elif get_origin(kind) in (dict, list):
            kind = _plain(get_args(kind)[-1])
        else:
            return None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _plain(annotation: Any) -> Any:
    """A type without its annotations and without None."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _plain(next(kind for kind in get_args(annotation) if kind is not types.NoneType))
    return annotation
