"""Recorded releases: what a rebuild takes instead of drawing again (P5)."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
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

NOT_RECORDED = -1
"""In a column of actions in force: the release does not say."""


class Rest(NamedTuple):
    """What only some releases have; the last fields of `Kept`."""

    sums: BlockSums | None = None
    policy: bytes | None = None
    carried: Carried | None = None


NOTHING = Rest()


class Names(NamedTuple):
    """What names many releases of one kind."""

    kind: str
    keys: Sequence[Key]
    born: Ints
    block: Ints


class ManyKept(NamedTuple):
    """What was drawn in many releases, and from which records."""

    value: Ints
    first_offset: Ints
    last_offset: Ints
    in_force: Ints  # `NOT_RECORDED` where it is not
    rest: Sequence[Rest]

    @classmethod
    def of(cls, kept: Sequence[Kept]) -> Self:
        """The same as columns."""
        numbers = [
            (of[0], of[1], of[2], NOT_RECORDED if of.in_force is None else of.in_force)
            for of in kept
        ]
        value, first, last, in_force = np.array(numbers, dtype=np.int64).reshape(len(kept), 4).T
        rest = [Rest(*of[4:]) if any(of[4:]) else NOTHING for of in kept]
        return cls(value, first, last, in_force, rest)


_NUMBERS = (
    "born", "block", "value", "first_offset", "last_offset", "in_force", "before", "text",
)  # fmt: skip
_GONE = -1  # in place of `born`
_END = -1  # of a chain
_SPARE = 1000  # releases that may be gone before their places are
_AT_ONCE = 1 << 14


class _Shape(NamedTuple):
    """The lengths of the sums and the policy of a release; None where it has none."""

    sums: int | None  # of each of the two
    pairs: bool
    policy: int | None


_PLAIN = _Shape(None, False, None)
_NO_TEXT = -1


class ManyRecorded(Mapping[Drawn, Kept]):
    """Recorded releases as columns, in the order in which they came: 68 bytes each and their
    numbers, and 100 a key.

    A key's releases are a chain, the newest first: `before` is the place of the one before.
    """

    __slots__ = (
        "_carried", "_columns", "_count", "_keys", "_kinds", "_last", "_names", "_shapes", "_texts",
    )  # fmt: skip

    def __init__(self) -> None:
        self._columns = {name: array("q") for name in _NUMBERS}
        self._keys: list[Key] = []
        self._kinds = bytearray()
        self._names: list[str] = []
        self._texts = bytearray()  # sums and policies: the number of a shape, and its bytes
        self._shapes: list[_Shape] = []
        self._carried: dict[int, Carried] = {}
        self._last: dict[Key, int] = {}
        self._count = 0

    @classmethod
    def of(cls, releases: Recorded) -> Self:
        """The same releases as columns."""
        if isinstance(releases, cls):
            return releases
        many = cls()
        many.update(releases)
        return many

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
        value, first, last, in_force = (self._columns[column][at] for column in _NUMBERS[2:6])
        known = None if in_force == NOT_RECORDED else in_force
        return Kept(value, first, last, known, *self._rest(at))

    def of_key(self, key: object) -> bool:
        """Whether there are any of this key, or have been."""
        return key in self._last

    def parts(self) -> Iterator[tuple[Names, Ints]]:
        """The names of all of them and their last records, some of one kind at a time."""
        for first in range(0, len(self._keys), _AT_ONCE):
            places = first + np.flatnonzero(self._column("born")[first : first + _AT_ONCE] != _GONE)
            kinds = np.frombuffer(self._kinds, dtype=np.uint8)[places]
            for code, kind in enumerate(self._names):
                some = places[kinds == code]
                if len(some):
                    keys = [self._keys[at] for at in some.tolist()]
                    born, block, last = (
                        self._column(name)[some] for name in ("born", "block", "last_offset")
                    )
                    yield Names(kind, keys, born, block), last

    def places(self, names: Names) -> Ints:
        """Where each of these is, for `kept`; -1 where it is not there."""
        born, block, before = (self._column(of) for of in ("born", "block", "before"))
        kinds = np.frombuffer(self._kinds, dtype=np.uint8)
        code = self._names.index(names.kind) if names.kind in self._names else -1
        find = self._last.get
        at = np.fromiter(map(find, names.keys, repeat(_END)), dtype=np.int64, count=len(names.keys))
        left = np.flatnonzero(at != _END)
        while len(left):
            of = at[left]
            other = (born[of] != names.born[left]) | (block[of] != names.block[left])
            left = left[other | (kinds[of] != code)]
            at[left] = before[at[left]]
            left = left[at[left] != _END]
        return at

    def kept(self, places: Ints) -> ManyKept:
        """What was drawn in the releases at these places."""
        rest: Sequence[Rest] = [NOTHING] * len(places)
        if self._texts or self._carried:
            rest = list(map(self._rest, places.tolist()))
        value, first, last, in_force = (self._column(of)[places] for of in _NUMBERS[2:6])
        return ManyKept(value, first, last, in_force, rest)

    def update(self, releases: Recorded) -> None:
        """Add some that are not there."""
        kinds = defaultdict[str, list[tuple[Drawn, Kept]]](list)
        for name, kept in releases.items():
            kinds[name.kind].append((name, kept))
        for kind, pairs in kinds.items():
            numbers = np.array([name[1:3] for name, _ in pairs], dtype=np.int64)
            names = Names(kind, [name.key for name, _ in pairs], *numbers.T)
            self.add_many(names, ManyKept.of([kept for _, kept in pairs]))

    def add_many(self, names: Names, kept: ManyKept) -> None:
        """Add some of one kind that are not there."""
        if names.kind not in self._names:
            self._names.append(names.kind)
        kinds = bytes([self._names.index(names.kind)]) * len(names.keys)
        self._append(names.keys, kinds, (names.born, names.block, *kept[:4]), kept.rest)

    def discard(self, name: Drawn) -> None:
        """Forget one, if it is there."""
        at = self._place(name)
        if at != _END:
            self._columns["born"][at] = _GONE
            self._carried.pop(at, None)
            self._count -= 1
            if self._count < len(self._keys) // 2 - _SPARE:  # most of the columns is gone
                self._close_up()

    def _append(
        self, keys: Sequence[Key], kinds: bytes, numbers: Sequence[Ints], rest: Sequence[Rest]
    ) -> None:
        begin, before = len(self._keys), self._columns["before"]
        get, append, known = self._last.get, self._keys.append, self._keys
        for at, key in enumerate(keys, start=begin):
            last = get(key, _END)
            before.append(last)
            append(key if last == _END else known[last])
            self._last[key] = at
        for column, of in zip(_NUMBERS, numbers, strict=False):  # the first six
            self._columns[column].frombytes(of.astype(np.int64, copy=False).tobytes())
        self._kinds += kinds
        text = self._columns["text"]
        if rest.count(NOTHING) == len(rest):
            text.frombytes(np.full(len(rest), _NO_TEXT, dtype=np.int64).tobytes())
        else:
            text.extend(self._written(at, of) for at, of in enumerate(rest, begin))
        self._count += len(keys)

    def _written(self, at: int, rest: Rest) -> int:
        """Where the sums and the policy of one release are now, or `_NO_TEXT`."""
        sums, policy, carried = rest
        if carried is not None:
            self._carried[at] = carried
        shape = _Shape(
            None if sums is None else len(sums.first),
            sums is not None and sums.pairs,
            None if policy is None else len(policy),
        )
        if shape == _PLAIN:
            return _NO_TEXT
        if shape not in self._shapes:
            self._shapes.append(shape)
        begin = len(self._texts)
        self._texts.append(self._shapes.index(shape))
        if sums is not None:
            assert len(sums.first) == len(sums.second)
            self._texts += sums.first + sums.second
        self._texts += policy or b""
        return begin

    def _rest(self, at: int) -> Rest:
        """What only some releases have."""
        begin, carried = self._columns["text"][at], self._carried.get(at)
        if begin == _NO_TEXT:
            return NOTHING if carried is None else Rest(carried=carried)
        width, pairs, policy = self._shapes[self._texts[begin]]
        first, last = begin + 1 + (width or 0), begin + 1 + 2 * (width or 0)
        sums = None
        if width is not None:
            one, other = self._texts[begin + 1 : first], self._texts[first:last]
            sums = BlockSums(bytes(one), bytes(other), pairs)
        return Rest(
            sums, None if policy is None else bytes(self._texts[last : last + policy]), carried
        )

    def _close_up(self) -> None:
        """Use no memory for those that are gone."""
        left, places = ManyRecorded(), np.flatnonzero(self._column("born") != _GONE)
        left._names = self._names
        left._append(
            [self._keys[at] for at in places.tolist()],
            np.frombuffer(self._kinds, dtype=np.uint8)[places].tobytes(),
            [self._column(of)[places] for of in _NUMBERS[:6]],
            self.kept(places).rest,
        )
        for slot in self.__slots__:
            setattr(self, slot, getattr(left, slot))

    def _column(self, name: str) -> Ints:
        """A column, for a moment: while somebody has it, none can be added."""
        column: NDArray[np.int64] = np.frombuffer(self._columns[name], dtype=np.int64)
        return column

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
