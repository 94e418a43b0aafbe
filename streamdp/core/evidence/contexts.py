"""Contexts: declared fields, their levels, and the cell of a table that an event falls into.

A *field* is a name with levels that are listed, or with cut points that make bins of numbers. One
more level, `other`, holds everything else: a level that is not listed, a missing or unreadable
value. A *cell* is one combination of levels. Cells are numbered with the last field fastest.

Fields, levels and cuts are configuration: public, and never learned from contents.

An *arm* of a stream with contexts is an action in a cell: arm = cell · K + action.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from math import isfinite, prod

from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SPARE

OTHER = "other"
"""The level of everything that is not listed."""

MOST_FIELDS = 8
MOST_LEVELS = 128  # of all fields together
MOST_ARMS = 12_000  # two released numbers each, in one ledger line
_MOST_NAME = 64  # characters
_RESERVED = frozenset(";=\n")
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ContextField:
    """One field: listed levels, or cut points."""

    name: str
    levels: tuple[str, ...] = ()
    cuts: tuple[float, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all levels; bins are named by the cuts around them.

        >>> ContextField("age", cuts=(18.0, 30.0)).names
        ('<18', '18..30', '>=30', 'other')
        """
        if self.levels:
            return (*self.levels, OTHER)
        cuts = [repr(cut).removesuffix(".0") for cut in self.cuts]
        between = [f"{low}..{high}" for low, high in pairwise(cuts)]
        return (f"<{cuts[0]}", *between, f">={cuts[-1]}", OTHER)

    @property
    def size(self) -> int:
        """How many levels, `other` included."""
        return len(self.levels) + 1 if self.levels else len(self.cuts) + 2

    def written(self) -> object:
        """The field as a configuration writes it."""
        return list(self.levels) if self.levels else {"cuts": list(self.cuts)}


@dataclass(frozen=True)
class Contexts:
    """The fields of a stream's contexts.

    >>> contexts = Contexts.read('{"device": ["phone", "desktop"], "age": {"cuts": [18, 65]}}')
    >>> contexts.shape, contexts.cells, contexts.cell({"device": "desktop", "age": 31})
    ((3, 4), 12, 5)
    >>> contexts.levels(5), contexts.cell_of_header(b"device=desktop;age=31")
    ({'device': 'desktop', 'age': '18..65'}, 5)
    """

    fields: tuple[ContextField, ...]

    @classmethod
    def read(cls, text: object) -> Contexts:
        """The fields that a configuration's table, written as JSON, declares."""
        if isinstance(text, Contexts):
            return text
        try:
            table = json.loads(text) if isinstance(text, str) else text
        except ValueError:
            table = None
        if not isinstance(table, Mapping) or not 1 <= len(table) <= MOST_FIELDS:
            got = f"{len(table)} fields" if isinstance(table, Mapping) else type(text).__name__
            raise InvalidConfig(
                "context", "no fields", expected=f"1 … {MOST_FIELDS} fields", got=got
            )
        contexts = cls(tuple(_field(name, levels) for name, levels in table.items()))
        levels = sum(contexts.shape)
        if levels > MOST_LEVELS:
            raise InvalidConfig(
                "context",
                "too many levels, `other` of each field included",
                expected=f"≤ {MOST_LEVELS}",
                got=levels,
            )
        return contexts

    def __str__(self) -> str:
        """As JSON, which `read` reads back."""
        table = {field.name: field.written() for field in self.fields}
        return json.dumps(table, separators=(",", ":"), ensure_ascii=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(field.name for field in self.fields)

    @cached_property
    def declared(self) -> frozenset[str]:
        """The names of the fields, to look one up."""
        return frozenset(self.names)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """How many levels each field has."""
        return tuple(field.size for field in self.fields)

    @cached_property
    def cells(self) -> int:
        """How many combinations of levels."""
        return prod(self.shape)

    @cached_property
    def _places(self) -> tuple[tuple[str, dict[object, int], tuple[float, ...], int, int], ...]:
        """Of each field: name, what levels add to a cell's number, cuts, step, that of `other`."""
        places, step = [], self.cells
        for field in self.fields:
            step //= field.size
            levels: dict[object, int] = {name: at * step for at, name in enumerate(field.names)}
            places.append((field.name, levels, field.cuts, step, (field.size - 1) * step))
        return tuple(places)

    def cell(self, context: Mapping[str, object]) -> int:
        """The cell of a context: levels by their names, numbers as numbers or as decimal text."""
        cell = 0
        for name, levels, cuts, step, other in self._places:
            value = context.get(name)
            named = levels.get(value) if isinstance(value, str) else None
            if named is None and cuts:
                number = _number(value)
                named = None if number is None else bisect_right(cuts, number) * step
            cell += other if named is None else named
        return cell

    def cells_of(self, columns: Sequence[Sequence[object]]) -> list[int]:
        """The cell of each row of a table that has a column for each field, in their order.

        >>> Contexts.read({"floor": ["1", "2"]}).cells_of([[2, "1", None, [1]]])
        [1, 0, 2, 2]
        """
        known: dict[object, int] = {}
        cells = []
        for row in zip(*columns, strict=True):
            try:
                cell = known.get(row)
            except TypeError:  # a list or an object is no level
                row = tuple(of if isinstance(of, Hashable) else None for of in row)
                cell = known.get(row)
            if cell is None:
                cell = known[row] = self.cell(dict(zip(self.names, map(level, row), strict=True)))
            cells.append(cell)
        return cells

    @cached_property
    def unknown(self) -> int:
        """The cell in which every field is `other`: the last one."""
        return self.cells - 1

    def cell_of_header(self, value: bytes | None) -> int:
        """The cell that a header names; all fields are `other` where it cannot be read.

        A field that stands there twice makes the header unreadable; unknown fields are ignored.
        """
        named = self._cells_by_header.get(value or b"")
        if named is not None:
            return named
        try:
            pairs = [part.split("=", 1) for part in (value or b"").decode().split(";")]
            context = dict(pairs)
        except ValueError:
            return self.unknown
        return self.cell(context) if len(context) == len(pairs) else self.unknown

    @cached_property
    def _cells_by_header(self) -> dict[bytes, int]:
        """The cells by the headers that `header_of` writes: most events have such a one."""
        return {self.header_of_cell(cell): cell for cell in range(self.cells)}

    def header_of(self, context: Mapping[str, object]) -> bytes:
        """The header of a context: it names levels and bins, never more than a cell does.

        >>> Contexts.read('{"age": {"cuts": [18, 65]}}').header_of({"age": 31})
        b'age=18..65'
        """
        return self.header_of_cell(self.cell(context))

    @cached_property
    def headers(self) -> tuple[str, ...]:
        """The header of each cell, as text."""
        return tuple(self.header_of_cell(cell).decode() for cell in range(self.cells))

    def header_of_cell(self, cell: int) -> bytes:
        """The header that names a cell; what is `other` is left out."""
        named = self.levels(cell).items()
        return ";".join(f"{name}={level}" for name, level in named if level != OTHER).encode()

    @cached_property
    def widest(self) -> dict[str, str]:
        """Of each field the level whose name takes the most bytes in JSON."""
        return {field.name: max(field.names, key=width_in_json) for field in self.fields}

    def tables(self, interactions: str) -> tuple[tuple[int, ...], ...]:
        """The fields of each table that may be released, the coarsest first.

        All cells together, each field, the interactions that are named, and their pairs.

        >>> fields = Contexts.read({name: ["a"] for name in "pqr"})
        >>> fields.tables("p x r"), fields.tables("none")
        (((), (0,), (1,), (2,), (0, 2)), ((), (0,), (1,), (2,)))
        >>> fields.tables("all")
        ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
        """
        names = {field.name: at for at, field in enumerate(self.fields)}
        if interactions == "all":
            return self._tables([tuple(names.values())])
        named = [] if interactions == "none" else interactions.split(", ")
        parts = [[names.get(name) for name in re.split(" [x×] ", part)] for part in named]
        read = [tuple(sorted({at for at in part if at is not None})) for part in parts]
        for text, part, numbers in zip(named, parts, read, strict=True):
            if len(numbers) < max(2, len(part)) or read.count(numbers) > 1:
                raise InvalidConfig(
                    "learner.interactions",
                    "no interaction, or one twice",
                    expected=f"two or more of {', '.join(names)} with × between; or all, or none",
                    got=text,
                )
        return self._tables(read)

    def _tables(self, named: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """Those of some interactions, in order."""
        pairs = {pair for part in named for pair in combinations(part, 2)}
        alone = {(at,) for at in range(len(self.fields))}
        return tuple(sorted({(), *alone, *pairs, *named}, key=lambda of: (len(of), of)))

    def actions_in(self, arms: int) -> int:
        """How many actions each cell has, of so many arms; refuse a table that does not fit."""
        count, rest = divmod(arms, self.cells)
        if rest or count < 2 or arms > MOST_ARMS:
            raise InvalidConfig(
                "context",
                "the table does not fit",
                expected=f"2 or more actions in each of {self.cells} cells, {MOST_ARMS} in all",
                got=f"{arms} arms",
            )
        return count

    def arms(self, actions: tuple[str, ...]) -> tuple[str, ...]:
        """The names of all arms: the levels of a cell, then the action; spare ones have none."""
        return _arms(self, actions)

    def actions(self, arms: tuple[str, ...]) -> tuple[str, ...] | None:
        """The actions that `arms` names these for; None if it names none of them so.

        >>> fields = Contexts.read({"device": ["phone"]})
        >>> fields.actions(fields.arms(("a", "b"))), fields.actions(("a", "b"))
        (('a', 'b'), None)
        """
        first = "".join(f"{field}={level};" for field, level in self.levels(0).items())
        actions = tuple(arm.removeprefix(first) for arm in arms[: len(arms) // self.cells])
        return actions if self.arms(actions) == arms else None

    def levels(self, cell: int) -> dict[str, str]:
        """The names of a cell's levels."""
        steps = [place[3] for place in self._places]
        return {
            field.name: field.names[cell // step % field.size]
            for field, step in zip(self.fields, steps, strict=True)
        }


def level(value: object) -> object:
    """What a table's value is as a level: whole numbers are texts, as CSV files and headers have.

    >>> level(3), level("phone"), level(3.5)
    ('3', 'phone', 3.5)
    """
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def width_in_json(name: str) -> int:
    """How many bytes a name takes in JSON.

    >>> width_in_json("phone"), width_in_json("é")
    (7, 4)
    """
    return len(json.dumps(name, ensure_ascii=False).encode())


@lru_cache(maxsize=16)
def _arms(contexts: Contexts, actions: tuple[str, ...]) -> tuple[str, ...]:
    cells = [
        ";".join(f"{field}={level}" for field, level in contexts.levels(cell).items())
        for cell in range(contexts.cells)
    ]
    return tuple(
        SPARE if action == SPARE else f"{cell};{action}" for cell in cells for action in actions
    )


def _field(name: object, levels: object) -> ContextField:
    """One declared field; refuse what a header could not name."""
    where = f"context.{name}"
    if not _sound(name) or name == "request":  # HTTP asks for ?request=ID&field=level
        got = type(name).__name__ if not isinstance(name, str) else f"{len(name)} characters"
        raise InvalidConfig(
            "context", "no name of a field", expected="text without ; and =", got=got
        )
    assert isinstance(name, str)
    if isinstance(levels, Mapping):
        cuts = levels.get("cuts")
        if set(levels) != {"cuts"} or not isinstance(cuts, list | tuple) or not _rising(cuts):
            raise InvalidConfig(where, "no cuts", expected="cuts = [numbers that rise]", got=levels)
        return ContextField(name, cuts=tuple(float(cut) for cut in cuts))
    names = levels if isinstance(levels, list | tuple) else ()
    if not names or not all(map(_sound, names)) or OTHER in names:
        raise InvalidConfig(
            where,
            "no levels",
            expected=f"a list of names without ; and =, `{OTHER}` not among them",
            got=levels,
        )
    if len(set(names)) < len(names):
        raise InvalidConfig(where, "a level twice", expected="each once", got=names)
    return ContextField(name, levels=tuple(names))


def _sound(name: object) -> bool:
    """Whether a header can name it."""
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME:
        return False
    return not _RESERVED.intersection(name) and name.isprintable()


def _rising(cuts: list[object] | tuple[object, ...]) -> bool:
    """Whether these are finite numbers that rise."""
    numbers = [
        float(cut) for cut in cuts if isinstance(cut, int | float) and not isinstance(cut, bool)
    ]
    if not numbers or len(numbers) < len(cuts) or not all(map(isfinite, numbers)):
        return False
    return all(low < high for low, high in pairwise(numbers))


def _number(value: object) -> float | None:
    """A number, or decimal text; None for everything else."""
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None
