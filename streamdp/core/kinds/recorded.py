"""Recorded releases: what a rebuild takes instead of drawing again (P5)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from streamdp.core.events import BlockSums, Carried, Key, Release


class Drawn(NamedTuple):
    """What names a release within one partition and epoch."""

    key: Key
    born: int
    block: int
    kind: str


class Kept(NamedTuple):
    """What was drawn, and from which records."""

    value: int  # the action's index or the estimate's grid value
    first_offset: int
    last_offset: int
    in_force: int | None = None  # the action in force afterwards, if recorded
    sums: BlockSums | None = None  # of the kind `sums`
    policy: bytes | None = None  # the policy in force afterwards, if recorded
    carried: Carried | None = None  # of an opening that was carried over


Recorded = Mapping[Drawn, Kept]
"""Recorded releases by name."""


_NUMBERS = ("born", "block", "value", "first_offset", "last_offset", "before")
_GONE = -1  # in place of `born`
_END = -1  # of a chain
_SPARE = 1000  # releases that may be gone before their places are


class ManyRecorded(Mapping[Drawn, Kept]):
    """Recorded releases as columns, in the order in which they came: 50 bytes each, and 100 a key.

    A key's releases are a chain, the newest first: `before` is the place of the one before.
    """

    __slots__ = ("_columns", "_count", "_keys", "_kinds", "_last", "_names", "_rest")

    def __init__(self) -> None:
        self._columns = {name: array("q") for name in _NUMBERS}
        self._keys: list[Key] = []
        self._kinds = bytearray()
        self._names: list[str] = []
        self._rest: dict[int, tuple[Any, ...]] = {}  # the last fields, where there are any
        self._last: dict[Key, int] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many."""
        return self._count

    def __iter__(self) -> Iterator[Drawn]:
        """Their names, in the order in which they came."""
        born, block = self._columns["born"], self._columns["block"]
        for at, key in enumerate(self._keys):
            if born[at] != _GONE:
                yield Drawn(key, born[at], block[at], self._names[self._kinds[at]])

    def __getitem__(self, name: Drawn) -> Kept:
        """What was drawn."""
        at = self._place(name)
        if at == _END:
            raise KeyError(name)
        value, first, last = (self._columns[column][at] for column in _NUMBERS[2:5])
        return Kept(value, first, last, *self._rest.get(at, ()))

    def of_key(self, key: object) -> bool:
        """Whether there are any of this key, or have been."""
        return key in self._last

    def add(self, name: Drawn, kept: Kept) -> None:
        """Add one that is not there."""
        at, key = len(self._keys), name.key
        before = self._last.get(key, _END)
        if name.kind not in self._names:
            self._names.append(name.kind)
        for column, number in zip(
            self._columns.values(), (name.born, name.block, *kept[:3], before), strict=True
        ):
            column.append(number)
        self._keys.append(key if before == _END else self._keys[before])
        self._kinds.append(self._names.index(name.kind))
        if any(part is not None for part in kept[3:]):
            self._rest[at] = kept[3:]
        self._last[self._keys[at]] = at
        self._count += 1

    def discard(self, name: Drawn) -> None:
        """Forget one, if it is there."""
        at = self._place(name)
        if at != _END:
            self._columns["born"][at] = _GONE
            self._rest.pop(at, None)
            self._count -= 1
            if self._count < len(self._keys) // 2 - _SPARE:  # most of the columns is gone
                left = ManyRecorded()
                for of, kept in self.items():
                    left.add(of, kept)
                for column in self.__slots__:
                    setattr(self, column, getattr(left, column))

    def _place(self, name: Drawn) -> int:
        """Where it is, or `_END`."""
        born, block, before = (self._columns[of] for of in ("born", "block", "before"))
        at = self._last.get(name.key, _END)
        while at != _END:
            if (born[at], block[at], self._names[self._kinds[at]]) == name[1:]:
                break
            at = before[at]
        return at


def recorded(releases: Iterable[Release]) -> dict[Drawn, Kept]:
    """Index releases by name, with what a rebuild needs of each."""
    return dict(map(named, releases))


def named(release: Release) -> tuple[Drawn, Kept]:
    """A release's name, and what a rebuild needs of it."""
    _, _, key, _, born, block, kind = release.identity
    return Drawn(key, born, block, kind), Kept(
        release.value,
        release.first_offset,
        release.last_offset,
        release.in_force,
        release.sums,
        release.policy,
        release.carried,
    )
