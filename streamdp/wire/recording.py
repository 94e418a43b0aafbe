"""Encodes many releases at once: the bytes that a commit makes durable and the next one publishes.

The bytes are those of `state.record` and `state.encode_recorded` (a test compares them), in a fifth
of the time: columns in, columns out, and no object for a release. Most of a line is equal for all
releases of a kind, so the plain encoder is called once for many commits, with marks in place of the
numbers and the key, and its result is cut at the marks; a line is these pieces with the columns'
texts between them. What was drawn comes last in each line; the ends for each action also come from
the plain encoder, once for many commits. The arms' numbers in a feedback stream's release have
marks of their own and are inserted as base64: length and steps are functions of K. Estimates, whose
ends are all different, use the plain encoder, and so do carried openings, of which a key has one in
an epoch.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from hashlib import shake_128
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.events import OPENING, SUMS, Key
from streamdp.core.releases import NOT_SAID, SPAN, Identity, Release, Releases
from streamdp.wire.entries import release_entry, written_keys
from streamdp.wire.lines import ENDS_BLOCK
from streamdp.wire.published import Lines, key_field
from streamdp.wire.recorded import BLOCK, CARRIED, DRAWN, ESTIMATE, HEAD, Heads, sealed
from streamdp.wire.state import record

_integers = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ReadyReleases:
    """Releases ready for a commit, a column of each part; what was drawn is not public yet."""

    keys: list[Key] = field(default_factory=list)  # of the published records
    places: list[bytes] = field(default_factory=list)  # the state entries' keys
    values: list[bytes] = field(default_factory=list, repr=False)  # and values
    ledgers: list[bytes] = field(default_factory=list, repr=False)
    actions: list[bytes | None] = field(default_factory=list, repr=False)

    def add(self, others: ReadyReleases) -> None:
        """Add later ones."""
        self.keys += others.keys
        self.places += others.places
        self.values += others.values
        self.ledgers += others.ledgers
        self.actions += others.actions

    def published(self) -> tuple[list[tuple[Key, bytes]], list[tuple[Key, bytes]]]:
        """The records of the actions topic and of the ledger, once these are durable."""
        shown = zip(self.keys, self.actions, strict=True)
        actions = [(key, action) for key, action in shown if action is not None]
        return actions, list(zip(self.keys, self.ledgers, strict=True))


def record_all(
    releases: Releases, *, lines: Lines, ordinal: int, input_id: str | None = None
) -> ReadyReleases:
    """Every release with its final bytes, in order; the first ledger line has this ordinal.

    The very first ledger line of a partition has the input topic's id.
    """
    heads, places, ledgers = _heads(releases, ordinal), list[bytes](), list[bytes]()
    actions = list[bytes | None]()
    plainly = (heads["kind"] == ESTIMATE) | (heads["kind"] == CARRIED)
    plainly[:1] |= ordinal == 1 and input_id is not None
    parts = [np.flatnonzero(plainly)]
    for at in parts[0].tolist():
        release, number = releases[at], ordinal + at
        its = replace(lines, input_id=input_id or UNSET) if number == 1 else lines
        plain = record(release, lines=its, ordinal=number)
        places.append(release_entry(release.identity))
        ledgers.append(plain.ledger)
        actions.append(plain.action)
    for code in range(len(releases.kinds)):
        some = np.flatnonzero((releases.kind == code) & ~plainly)
        if len(some):
            parts.append(some)
            place, ledger, action = _texts(releases, code, some, lines=lines, ordinal=ordinal)
            places += place
            ledgers += ledger
            actions += action
    if sum(len(part) > 0 for part in parts) > 1:
        order = np.argsort(np.concatenate(parts)).tolist()
        places, ledgers = [places[at] for at in order], [ledgers[at] for at in order]
        actions = [actions[at] for at in order]
    pairs = lines.played == "value" if releases.has_policies else None
    values = sealed(heads, places, ledgers, actions, pairs=pairs)
    return ReadyReleases(list(releases.keys), places, values, ledgers, actions)


def _heads(releases: Releases, ordinal: int) -> Heads:
    """The heads of all releases."""
    heads, acts = np.zeros(len(releases), dtype=HEAD), not releases.has_policies
    codes = [
        DRAWN if of == OPENING else BLOCK if of in ENDS_BLOCK else ESTIMATE for of in releases.kinds
    ]
    heads["kind"] = np.array(codes, dtype=np.uint8)[releases.kind]
    for name in SPAN:
        heads[name] = getattr(releases, name)
    heads["ordinal"] = np.arange(ordinal, ordinal + len(releases))
    heads["value"], heads["in_force"] = releases.numbers[:, 0] if acts else 0, NOT_SAID
    if acts and releases.in_force is not None:
        says = heads["kind"] != ESTIMATE
        heads["in_force"][says] = releases.in_force[says]
    if releases.carried:
        for at in np.flatnonzero(heads["kind"] == DRAWN).tolist():
            if (releases.keys[at], int(releases.born[at])) in releases.carried:
                heads["kind"][at] = CARRIED
    return heads


def _base64(table: NDArray[Any], numbers: str) -> Iterator[bytes]:
    """Each row's numbers as lines contain them."""
    rows = table.astype(numbers)
    written, width = memoryview(rows.tobytes()), rows.itemsize * rows.shape[1]
    return (
        b2a_base64(written[at : at + width], newline=False) for at in range(0, len(written), width)
    )


_KEY = b"8b1d0c5e-a-mark-for-the-key"
_PARTITION, _EPOCH, _BORN, _BLOCK, _FIRST, _LAST, _START, _STOP, _ORDINAL = (
    7_905_316_482_000_000_000 + at for at in range(9)
)


def _texts(
    releases: Releases, code: int, some: Ints, *, lines: Lines, ordinal: int
) -> tuple[Iterable[bytes], Iterable[bytes], Iterable[bytes]]:
    """The entries' keys and both lines of some releases of one kind, from its pieces."""
    name, numbers, in_force = releases.kinds[code], releases.numbers, releases.in_force
    arms = None
    if in_force is not None and releases.has_policies:
        arms = numbers.shape[1] // 2, in_force.shape[1]
    pieces = _pieces(lines, releases.stream, name, releases.charges[code], arms)
    place, ledger, action = map(list, pieces)
    partition, epoch = b"%d" % releases.partition, b"%d" % releases.epoch
    beginning = [ledger[1], ledger[2] + epoch + ledger[3], *ledger[4:9]]  # the same in both lines
    place[:3] = [place[0] + partition + place[1] + epoch + place[2]]
    ledger[:9], action[:9] = [ledger[0] + partition], [action[0] + partition]
    keys = written_keys([releases.keys[at] for at in some.tolist()])
    named = [b'"key":' + key for key in keys]
    for at in [at for at, key in enumerate(keys) if key[:1] == b"{"]:
        named[at] = key_field(releases.keys[some[at]])
    born, block, *read = (
        _decimals(getattr(releases, of)[some])
        for of in ("born", "block", "first_offset", "last_offset", "start", "stop")
    )
    beginnings = list(_joined(beginning, named, born, block, *read))
    drawn: list[Iterable[bytes]]
    if arms is not None and in_force is not None:
        halves = (numbers[some, : arms[0]], numbers[some, arms[0] :]) if name == SUMS else ()
        drawn = [_base64(half, "<i8") for half in halves]
        said = _base64(in_force[some], "<u4")
    else:
        value = numbers[some, 0].tolist()
        standing = value if in_force is None else in_force[some].tolist()
        pairs = list(zip(value, standing, strict=True))
        ends = {pair: _ends(lines, name, *pair) for pair in set(pairs)}
        drawn, said = [[ends[pair][0] for pair in pairs]], (ends[pair][1] for pair in pairs)
    ordinals = _decimals(some + ordinal)
    return (
        _joined(place, born, block, keys),
        _joined(ledger, beginnings, ordinals, *drawn),
        _joined(action, beginnings, said),
    )


def _joined(pieces: Sequence[bytes], *columns: Iterable[bytes]) -> Iterator[bytes]:
    """Rows of texts, each with a column's text behind each of the pieces, and the last piece."""
    turns = [of for pair in zip(map(repeat, pieces), columns, strict=False) for of in pair]
    return map(b"".join, zip(*turns, *map(repeat, pieces[len(columns) :]), strict=False))


def _decimals(column: Ints) -> list[bytes]:
    """Integers as texts."""
    return _integers(column.tolist())[1:-1].split(b",")


@lru_cache(maxsize=64)
def _pieces(
    lines: Lines,
    stream: str,
    kind: str,
    charge: Fraction,
    arms: tuple[int, int] | None,
) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The text between what differs in an entry's key and in both lines of a kind of release.

    The plain encoder is called once. `arms`: how many numbers of each sort, and parts of a policy,
    a feedback stream has.
    """
    sums, policy = list[bytes](), None
    if arms is not None:
        policy = _mark("policy", 4 * arms[1])
        if kind == SUMS:
            sums = [_mark("first", 8 * arms[0]), _mark("second", 8 * arms[0])]
    said = [] if policy is None else [policy]
    numbers = tuple(np.frombuffer(b"".join(sums), "<i8").tolist()) if arms else (0,)
    marked = Release(
        Identity(stream, _PARTITION, _KEY, _EPOCH, _BORN, _BLOCK, kind),
        numbers, _START, _STOP, _FIRST, _LAST, charge, policy=policy,
    )  # fmt: skip
    plain = record(marked, lines=lines, ordinal=_ORDINAL)
    key, named = b'"%b"' % _KEY, b'"key":"%b"' % _KEY
    assert plain.action is not None, "an estimate"
    both = _PARTITION, named, _EPOCH, _BORN, _BLOCK, _FIRST, _LAST, _START, _STOP
    ledger = _cut(_head(plain.ledger), *both, _ORDINAL, *map(_written, sums))
    action = _cut(_head(plain.action), *both, *map(_written, said))
    assert ledger[1:9] == action[1:9]
    place = _cut(release_entry(marked.identity), _PARTITION, _EPOCH, _BORN, _BLOCK, key)
    return place, ledger, action


def _mark(name: str, size: int) -> bytes:
    """A mark of this many bytes that no name contains; it stands for the arms' numbers."""
    return shake_128(name.encode()).digest(size)


def _written(mark: bytes) -> bytes:
    """The mark as lines contain it."""
    return b2a_base64(mark, newline=False)


@lru_cache(maxsize=4096)
def _ends(lines: Lines, kind: str, value: int, in_force: int) -> tuple[bytes, bytes]:
    """The ends of a ledger line and of an actions line with this value, after their heads."""
    identity = Identity(lines.stream, 0, _KEY, 0, 0, 0, kind)
    release = Release(identity, (value,), 1, 1, 0, 0, Fraction(0), in_force)
    ledger, action = lines.ledger(release, ordinal=1), lines.action(release)
    assert action is not None, "an estimate"
    return ledger[len(_head(ledger)) :], action[len(_head(action)) :]


def _head(line: bytes) -> bytes:
    """The text before the drawn value."""
    return line[: line.rindex(b'"index":')] if b'"index":' in line else line


def _cut(text: bytes, *marks: bytes | int) -> list[bytes]:
    """The pieces before, between and behind the marks, which are there once and in this order."""
    pieces, rest = list[bytes](), text
    for mark in (b"%d" % of if isinstance(of, int) else of for of in marks):
        if text.count(mark) != 1:
            raise ValueError("a name in the configuration looks like a mark of the templates")
        piece, _, rest = rest.partition(mark)
        pieces.append(piece)
    return [*pieces, rest]
