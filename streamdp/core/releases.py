"""The table of releases: what leaves the core, drawn or read back from where it was recorded.

A release is a row of one table, from the draw to the bytes: its name, its block's slots and
records, the numbers that were drawn, and what is in force afterwards. `Release` is a row as a value
of its own, for people and for those who ask for one. `RecordedReleases` is a table that grows and
is searched by name: what a rebuild takes instead of drawing again (P5).

Privacy: all columns are public once a row is published. The numbers are the kind's draw, what is in
force follows from them, and everything else follows from keys, offsets and slots. This module
reaches no private column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.errors import StateMismatch
from streamdp.core.events import ACTION, OPENING, SUMS, Carried, Key
from streamdp.core.evidence.evidence import InForce

NOT_SAID = -1
"""In place of an action in force: the release does not say. A policy that is not said is zeros."""


class Identity(NamedTuple):
    """The permanent name of a release: two releases of one identity are the same release."""

    stream: str
    partition: int
    key: Key
    epoch: int
    born: int
    block: int
    kind: str


def names_of_sums(*, pairs: bool) -> tuple[str, str]:
    """What an arm's two numbers are called, in lines and as private columns.

    Where the action is public: sums of (1/2 − loss) in grid units, with noise, and how often each
    arm was shown, exactly. Where it stands in the content (`pairs`): sums of (1 − loss) and of
    losses in grid units, both with noise.
    """
    return ("rewards", "losses") if pairs else ("sums", "shown")


@dataclass(frozen=True, slots=True)
class Release:
    """What leaves: an action, an estimate or a block's sums, with its block and charge.

    >>> at = Identity("home", 0, b"fr", 1, 0, 2, ACTION)
    >>> print(Release(at, (1,), 5, 12, 4, 10, Fraction(1, 2), action="carousel"))
    home/0 key b'fr': action 'carousel' after block 2, slots 5 to 11 charged ε = 1/2
    """

    identity: Identity
    numbers: tuple[int, ...]
    """What was drawn: an action's index, an estimate in units of 2**-20 loss, or K numbers of the
    arms and K more (`sums`). Nothing, for an opening of a feedback stream."""
    start: int  # the slots [start, stop) that were charged
    stop: int
    first_offset: int  # the records that were read
    last_offset: int
    epsilon: Fraction  # the charge on each of the slots
    in_force: int | None = None  # the action in force afterwards; None where it is the value
    policy: bytes | None = None
    """Feedback streams: what is in force from now on, K little-endian uint32 in parts of 2**24.

    A public function of the sums so far (`core.evidence.policy`), here for convenience."""
    carried: Carried | None = None  # of an opening that was not drawn but carried over
    action: str | None = field(default=None, compare=False)  # the name of the action `value`

    def __str__(self) -> str:
        """One line for people."""
        stream, partition, key, _, _, block, kind = self.identity
        text = f"{stream}/{partition} key {key!r}: {kind} {self._what()}"
        if kind == OPENING:
            carried = "" if self.carried is None else f", carried over from {self.carried.after}"
            return f"{text}{carried}, charged nothing"
        slots = f"slots {self.start} to {self.stop - 1}"
        return f"{text} after block {block}, {slots} charged ε = {self.epsilon}"

    def _what(self) -> str:
        """The action's name or number, or an estimate's value in loss."""
        if self.kind == SUMS:
            return "with noise"
        if self.kind in (OPENING, ACTION):
            action = f"number {self.value}" if self.action is None else repr(self.action)
            others = self.standing != self.value
            return f"{action} (in force: number {self.standing})" if others else action
        return f"of {self.value * 2.0**-20:.4g}"

    @property
    def value(self) -> int:
        """The one number that was drawn; 0 where there is none, or more of them."""
        return self.numbers[0] if len(self.numbers) == 1 else 0

    @property
    def sums(self) -> tuple[Ints, Ints] | None:
        """Of the kind `sums`: the two numbers of each arm (`names_of_sums`)."""
        if self.kind != SUMS:
            return None
        first, second = np.array(self.numbers, dtype=np.int64).reshape(2, -1)
        return first, second

    @property
    def standing(self) -> int:
        """The index of the action in force from this release on."""
        return self.value if self.in_force is None else self.in_force

    @property
    def kind(self) -> str:
        """`opening`, `action`, `sums` or an estimate's name."""
        return self.identity.kind

    @property
    def key(self) -> Key:
        """The key whose learner released this."""
        return self.identity.key


SPAN = ("born", "block", "start", "stop", "first_offset", "last_offset")
"""The columns that say of which learner, slots and records a release is; heads of recorded releases
have them under the same names."""

_COLUMNS = ("kind", *SPAN, "ordinal", "numbers")


@dataclass(frozen=True, slots=True)
class Releases(Sequence[Release]):
    """Many releases of one partition as columns; a `Release` is made when one is asked for."""

    stream: str
    partition: int
    epoch: int
    kinds: tuple[str, ...]  # what the codes in `kind` mean: 0 is an opening, 1 what ends a block
    charges: tuple[Fraction, ...]  # the charge of each kind
    keys: Sequence[Key]  # one per release
    kind: NDArray[np.uint8]
    born: Ints
    block: Ints
    start: Ints
    stop: Ints
    first_offset: Ints
    last_offset: Ints
    ordinal: Ints
    """What releases are ordered by: here the place, in its batch, of the record that ended the
    block; of a recorded release, that of its ledger line."""
    numbers: Ints  # n × width, as they were drawn; 0 where there are none
    in_force: InForce | None = None  # after each; None where that is the newest number
    carried: Mapping[tuple[Key, int], Carried] | None = None
    """What the openings carried over, by key and born."""
    actions: tuple[str, ...] = ()  # the names that the numbers of openings and actions stand for

    def __len__(self) -> int:
        """How many releases."""
        return len(self.block)

    def __getitem__(self, at: int) -> Release:  # type: ignore[override]  # no slices
        """The release at one place, as a value of its own."""
        code, name = int(self.kind[at]), self.kinds[self.kind[at]]
        born, acts, said = int(self.born[at]), name in (OPENING, ACTION), None
        if self.in_force is not None:
            said = self.in_force[at]
        numbers = tuple(self.numbers[at].tolist())
        drawn = () if self.has_policies and name == OPENING else numbers
        chosen = acts and drawn and drawn[0] < len(self.actions)
        return Release(
            identity=Identity(
                self.stream, self.partition, self.keys[at], self.epoch, born, int(self.block[at]),
                name,
            ),
            numbers=drawn,
            start=int(self.start[at]),
            stop=int(self.stop[at]),
            first_offset=int(self.first_offset[at]),
            last_offset=int(self.last_offset[at]),
            epsilon=self.charges[code],
            in_force=None if said is None or said.ndim or not acts else int(said),
            policy=said.astype("<u4").tobytes() if said is not None and said.ndim else None,
            carried=(self.carried or {}).get((self.keys[at], born)) if name == OPENING else None,
            action=self.actions[drawn[0]] if chosen else None,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Release]:
        """Each release in the order in which its block ended."""
        return (self[at] for at in range(len(self)))

    def __repr__(self) -> str:
        """Show the number, not the content."""
        return f"Releases({self.stream}/{self.partition}, {len(self)})"

    @property
    def has_policies(self) -> bool:
        """Whether policies are in force, not actions."""
        return self.in_force is not None and self.in_force.ndim > 1

    @property
    def opens(self) -> Bools:
        """Which are openings."""
        return np.asarray(self.kind == 0, dtype=np.bool_)

    @property
    def ends(self) -> Bools:
        """Which end a block: votes or sums. The others are openings and estimates."""
        return np.asarray(self.kind == 1, dtype=np.bool_)

    def at(self, some: Ints) -> Releases:
        """The releases at these places, in this order; the table itself where these are all."""
        if len(some) == len(self) and (some == np.arange(len(some))).all():
            return self
        columns: dict[str, Any] = {name: getattr(self, name)[some] for name in _COLUMNS}
        in_force = None if self.in_force is None else self.in_force[some]
        keys = [self.keys[at] for at in some.tolist()]
        return replace(self, keys=keys, in_force=in_force, **columns)

    def joined(self, parts: Sequence[Releases]) -> Releases:
        """These parts one after the other; this table, which is empty, if there are none."""
        if len(parts) < 2:
            return parts[0] if parts else self
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS
        }
        if self.in_force is not None:
            columns["in_force"] = np.concatenate([part.in_force for part in parts])
        keys = [key for part in parts for key in part.keys]
        carried = {at: of for part in parts for at, of in (part.carried or {}).items()}
        return replace(self, keys=keys, carried=carried or None, **columns)

    def of(self, releases: Iterable[Release]) -> Releases:
        """These releases as columns of a table like this one.

        `StateMismatch` if one has other numbers than are drawn here.
        """
        if isinstance(releases, Releases):
            return releases
        given, width = list(releases), self.numbers.shape[1]
        kinds = (*self.kinds, *sorted({of.kind for of in given}.difference(self.kinds)))
        for of in given:
            draws = 0 if self.has_policies and of.kind == OPENING else width
            if len(of.numbers) != draws:
                expected, got = f"{draws} numbers", f"{len(of.numbers)} of them"
                raise StateMismatch(
                    f"rebuild: {of.kind}", "not recorded", expected=expected, got=got
                )
        named = [of.identity for of in given]
        columns: dict[str, Any] = {
            name: np.array([getattr(of, name) for of in rows], dtype=np.int64)
            for rows, names in (
                (named, ("born", "block")),
                (given, ("start", "stop", "first_offset", "last_offset")),
            )
            for name in names
        }
        return replace(
            self,
            kinds=kinds,
            charges=(*self.charges, *[Fraction(0)] * (len(kinds) - len(self.charges))),
            keys=[of.key for of in named],
            kind=np.array([kinds.index(of.kind) for of in named], dtype=np.uint8),
            ordinal=np.arange(len(given)),
            numbers=np.array(
                [of.numbers or (0,) * width for of in given], dtype=np.int64
            ).reshape(len(given), width),
            in_force=self._said(given),
            carried={
                (of.key, of.identity.born): of.carried for of in given if of.carried is not None
            } or None,
            **columns,
        )  # fmt: skip

    def _said(self, given: Sequence[Release]) -> InForce | None:
        """What these releases say is in force, as a table like this one has it."""
        if self.in_force is None:
            return None
        if self.in_force.ndim > 1:
            arms = self.in_force.shape[1]
            policies = b"".join([of.policy or bytes(4 * arms) for of in given])
            return np.frombuffer(policies, "<u4").reshape(-1, arms).astype(self.in_force.dtype)
        said = [of.standing if of.kind in (OPENING, ACTION) else NOT_SAID for of in given]
        return np.array(said, dtype=self.in_force.dtype)


_KEPT: dict[str, type] = {"kind": np.uint8, **dict.fromkeys(SPAN, np.int64)}
_GONE = -1  # in place of `born`
_NONE = -1  # the end of a chain; no numbers
_SPARE = 1000  # releases that may be gone before their places are
_AT_ONCE = 1 << 14


class RecordedReleases:
    """Recorded releases as columns, in the order in which they came: 65 bytes each and what was
    drawn, and 100 a key.

    A key's releases are a chain, the newest first: `before` is the place of the one before. Numbers
    are kept where there are any: `drawn` is their place.
    """

    __slots__ = ("_carried", "_columns", "_count", "_keys", "_last", "_of")

    def __init__(self, nothing: Releases) -> None:
        """`nothing`: an empty table of the releases that will be recorded."""
        self._of = nothing
        kinds: dict[str, Any] = {**_KEPT, "before": np.int32, "drawn": np.int32}
        shapes = {"numbers": nothing.numbers.shape[1:]}
        kinds["numbers"] = np.int64
        if nothing.in_force is not None:
            kinds["in_force"] = nothing.in_force.dtype
            shapes["in_force"] = nothing.in_force.shape[1:]
        self._columns = {
            name: (np.dtype(kind), shapes.get(name, ()), bytearray())
            for name, kind in kinds.items()
        }
        self._keys: list[Key] = []
        self._carried: dict[tuple[Key, int], Carried] = {}
        self._last: dict[Key, int] = {}
        self._count = 0

    @classmethod
    def like(
        cls, nothing: Releases, releases: Iterable[Release] | RecordedReleases
    ) -> RecordedReleases:
        """The same releases, to be searched by name."""
        if isinstance(releases, RecordedReleases):
            return releases
        recorded = cls(nothing)
        recorded.add(nothing.of(releases))
        return recorded

    def __len__(self) -> int:
        """How many."""
        return self._count

    def of_key(self, key: object) -> bool:
        """Whether there are any of this key, or have been."""
        return key in self._last

    def chunks(self) -> Iterator[Releases]:
        """All of them, some at a time."""
        for first in range(0, len(self._keys), _AT_ONCE):
            born = self._column("born")[first : first + _AT_ONCE]
            yield self.at(first + np.flatnonzero(born != _GONE))

    def find(self, kind: str, keys: Sequence[Key], born: Ints, block: Ints) -> Ints:
        """Where the releases of these names are, for `at`; -1 where one is not there."""
        kinds = self._of.kinds
        codes = np.full(len(keys), kinds.index(kind) if kind in kinds else len(kinds), np.uint8)
        return self._find(codes, keys, born, block)

    def places(self, of: Releases) -> Ints:
        """Where releases with the names of these are; -1 where one is not there."""
        return self._find(self._codes(of), of.keys, of.born, of.block)

    def at(self, places: Ints) -> Releases:
        """The releases at these places."""
        columns: dict[str, Any] = {name: self._column(name)[places] for name in _KEPT}
        if self._of.in_force is not None:
            columns["in_force"] = self._column("in_force")[places]
        drawn, numbers = self._column("drawn")[places], self._column("numbers")
        columns["numbers"] = np.zeros((len(places), numbers.shape[1]), dtype=np.int64)
        columns["numbers"][drawn != _NONE] = numbers[drawn[drawn != _NONE]]
        keys = [self._keys[at] for at in places.tolist()]
        return replace(
            self._of, keys=keys, ordinal=places, carried=self._carried or None, **columns
        )

    def add(self, releases: Releases) -> None:
        """Add some that are not there."""
        codes, begin = self._codes(releases), len(self._keys)
        get, append, known = self._last.get, self._keys.append, self._keys
        before = []
        for at, key in enumerate(releases.keys, start=begin):
            last = get(key, _NONE)
            before.append(last)
            append(key if last == _NONE else known[last])
            self._last[key] = at
        draws = ~(self._of.has_policies & (codes == 0))
        drawn = np.where(draws, len(self._column("numbers")) - 1 + np.cumsum(draws), _NONE)
        own = {"kind": codes, "before": np.array(before), "drawn": drawn}
        own["numbers"] = releases.numbers[draws]
        for name, (kind, _, column) in self._columns.items():
            of = own[name] if name in own else getattr(releases, name)
            column += of.astype(kind, copy=False).tobytes()
        self._carried |= releases.carried or {}
        self._count += len(codes)

    def discard(self, names: Sequence[Identity]) -> None:
        """Forget those of these that are there."""
        kinds = self._of.kinds
        named = [of for of in names if of.kind in kinds]
        codes = np.array([kinds.index(of.kind) for of in named], dtype=np.uint8)
        born, block = (np.array([of[at] for of in named], dtype=np.int64) for at in (4, 5))
        places = self._find(codes, [of.key for of in named], born, block)
        there = places != _NONE
        self._column("born")[places[there]] = _GONE
        self._count -= int(there.sum())
        for of in named:
            if of.kind == OPENING:
                self._carried.pop((of.key, of.born), None)
        if self._count < len(self._keys) // 2 - _SPARE:  # most of the columns is gone
            left = RecordedReleases(self._of)
            for part in self.chunks():
                left.add(part)
            for slot in self.__slots__:
                setattr(self, slot, getattr(left, slot))

    def _find(self, codes: NDArray[np.uint8], keys: Sequence[Key], born: Ints, block: Ints) -> Ints:
        kind, since, number, before = map(self._column, ("kind", "born", "block", "before"))
        at = np.fromiter(map(self._last.get, keys, repeat(_NONE)), dtype=np.int64, count=len(keys))
        left = np.flatnonzero(at != _NONE)
        while len(left):
            of = at[left]
            other = (since[of] != born[left]) | (number[of] != block[left])
            left = left[other | (kind[of] != codes[left])]
            at[left] = before[at[left]]
            left = left[at[left] != _NONE]
        return at

    def _codes(self, of: Releases) -> NDArray[np.uint8]:
        """Their kinds as these columns number them."""
        own = self._of.kinds
        if own[: len(of.kinds)] == of.kinds:
            return of.kind
        new = [name for name in of.kinds if name not in own]
        charges = [of.charges[of.kinds.index(name)] for name in new]
        self._of = replace(self._of, kinds=(*own, *new), charges=(*self._of.charges, *charges))
        codes = [self._of.kinds.index(name) for name in of.kinds]
        return np.array(codes, dtype=np.uint8)[of.kind]

    def _column(self, name: str) -> NDArray[Any]:
        """A column, for a moment: while somebody has it, none can be added."""
        kind, shape, column = self._columns[name]
        return np.frombuffer(column, dtype=kind).reshape(-1, *shape)
