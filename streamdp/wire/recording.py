"""Encodes many releases at once: the bytes that a commit makes durable and the next one publishes.

The bytes are those of `state.record` and `state.encode_recorded` (a test compares them), in a third
of the time. Heads are made from columns. Most of a line is equal for all releases of a kind, so the
plain encoder is called once for many commits, with marks in place of the numbers and the key, and
its result becomes a template. What was drawn comes last in each line; the ends for each action also
come from the plain encoder, once for many commits. The arms' numbers in a feedback stream's release
have marks of their own and are inserted as base64: length and steps are functions of K. Estimates,
whose ends are all different, use the plain encoder, and so do carried openings, of which a key has
one in an epoch.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from hashlib import shake_128
from typing import Any, NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.events import OPENING, SUMS, Key
from streamdp.core.releases import NOT_SAID, Identity, Release, Releases
from streamdp.wire.entries import release_entry, written_key
from streamdp.wire.lines import ENDS_BLOCK
from streamdp.wire.published import Lines, key_field
from streamdp.wire.recorded import BLOCK, CARRIED, DRAWN, ESTIMATE, HEAD, Heads, sealed
from streamdp.wire.state import record


class Entry(NamedTuple):
    """One release, ready for a commit."""

    key: Key  # of the published records
    place: bytes  # the state entry's key
    recorded: bytes  # the state entry's value
    ledger: bytes
    action: bytes | None

    def __repr__(self) -> str:
        """Show the entry's key, never the draw, which is not public yet."""
        return f"Entry({self.place!r})"


def record_all(
    releases: Releases, *, lines: Lines, ordinal: int, input_id: str | None = None
) -> list[Entry]:
    """Every release with its final bytes, in order; the first ledger line has this ordinal.

    The very first ledger line of a partition has the input topic's id.
    """
    count, heads = len(releases), _heads(releases, ordinal)
    places, ledgers = [b""] * count, [b""] * count
    actions: list[bytes | None] = [None] * count
    plainly = (heads["kind"] == ESTIMATE) | (heads["kind"] == CARRIED)
    plainly[:1] |= ordinal == 1 and input_id is not None
    for at in np.flatnonzero(plainly).tolist():
        release, number = releases[at], ordinal + at
        its = replace(lines, input_id=input_id or UNSET) if number == 1 else lines
        plain = record(release, lines=its, ordinal=number)
        places[at], ledgers[at] = release_entry(release.identity), plain.ledger
        actions[at] = plain.action
    for code in range(len(releases.kinds)):
        some = np.flatnonzero((releases.kind == code) & ~plainly)
        if len(some):
            texts = _texts(releases, code, some, lines=lines, ordinal=ordinal)
            for at, place, ledger, action in zip(some.tolist(), *texts, strict=True):
                places[at], ledgers[at], actions[at] = place, ledger, action
    pairs = lines.played == "value" if releases.has_policies else None
    values = sealed(heads, places, ledgers, actions, pairs=pairs)
    return list(map(Entry, releases.keys, places, values, ledgers, actions))


def _heads(releases: Releases, ordinal: int) -> Heads:
    """The heads of all releases."""
    heads, acts = np.zeros(len(releases), dtype=HEAD), not releases.has_policies
    codes = [
        DRAWN if of == OPENING else BLOCK if of in ENDS_BLOCK else ESTIMATE for of in releases.kinds
    ]
    heads["kind"] = np.array(codes, dtype=np.uint8)[releases.kind]
    for name in ("born", "block", "start", "stop", "first_offset", "last_offset"):
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
) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The entries' keys and both lines of some releases of one kind, from its templates."""
    name, numbers, in_force = releases.kinds[code], releases.numbers, releases.in_force
    arms = None
    if in_force is not None and releases.has_policies:
        arms = numbers.shape[1] // 2, in_force.shape[1]
    templates = _templates(lines, releases.stream, name, releases.charges[code], arms)
    at = releases.partition, releases.epoch
    place, ledger, action = (text % at for text in templates)
    keys = [releases.keys[at] for at in some.tolist()]
    written = list(map(written_key, keys))
    named_keys = [
        key_field(key) if text[:1] == b"{" else b'"key":' + text
        for key, text in zip(keys, written, strict=True)
    ]
    born, block = releases.born[some].tolist(), releases.block[some].tolist()
    read = (releases.first_offset, releases.last_offset, releases.start, releases.stop)
    others = (column[some].tolist() for column in read)
    named = list(zip(named_keys, born, block, *others, strict=True))
    ordinals = (some + ordinal).tolist()
    places = [place % three for three in zip(born, block, written, strict=True)]
    if arms is not None and in_force is not None:
        halves = (numbers[some, : arms[0]], numbers[some, arms[0] :]) if name == SUMS else ()
        sums = [_base64(half, "<i8") for half in halves]
        policies = _base64(in_force[some], "<u4")
        ledgers = [
            ledger % (*of_one, number, *drawn)
            for of_one, number, *drawn in zip(named, ordinals, *sums, strict=True)
        ]
        actions = [
            action % (*of_one, policy) for of_one, policy in zip(named, policies, strict=True)
        ]
        return places, ledgers, actions
    value = numbers[some, 0].tolist()
    standing = value if in_force is None else in_force[some].tolist()
    drawn = list(zip(value, standing, strict=True))
    ends = {pair: _ends(lines, name, *pair) for pair in set(drawn)}
    ledgers = [
        ledger % (*of_one, number) + ends[pair][0]
        for of_one, number, pair in zip(named, ordinals, drawn, strict=True)
    ]
    actions = [action % of_one + ends[pair][1] for of_one, pair in zip(named, drawn, strict=True)]
    return places, ledgers, actions


class _Templates(NamedTuple):
    """The texts of one kind of release of a stream, with placeholders for what differs.

    Partition and epoch are filled in first, for a commit; then what differs between releases, whose
    placeholders are escaped here.
    """

    place: bytes
    ledger: bytes
    action: bytes


@lru_cache(maxsize=64)
def _templates(
    lines: Lines,
    stream: str,
    kind: str,
    charge: Fraction,
    arms: tuple[int, int] | None,
) -> _Templates:
    """Call the plain encoder once and put placeholders where the marks are.

    `arms`: how many numbers of each sort, and parts of a policy, a feedback stream has.
    """
    sums, policy = list[bytes](), None
    if arms is not None:
        policy = _mark("policy", 4 * arms[1])
        if kind == SUMS:
            sums = [_mark("first", 8 * arms[0]), _mark("second", 8 * arms[0])]
    numbers = tuple(np.frombuffer(b"".join(sums), "<i8").tolist()) if arms else (0,)
    marked = Release(
        Identity(stream, _PARTITION, _KEY, _EPOCH, _BORN, _BLOCK, kind),
        numbers, _START, _STOP, _FIRST, _LAST, charge, policy=policy,
    )  # fmt: skip
    plain = record(marked, lines=lines, ordinal=_ORDINAL)
    partition, epoch = ((b"%d" % mark, b"%d") for mark in (_PARTITION, _EPOCH))
    born, block, *read, ordinal = (
        (b"%d" % mark, b"%%d") for mark in (_BORN, _BLOCK, _FIRST, _LAST, _START, _STOP, _ORDINAL)
    )
    named = (partition, (b'"key":"%b"' % _KEY, b"%%b"), epoch, born, block, *read)
    of_arms = tuple(map(_written, sums))
    in_force = () if policy is None else (_written(policy),)
    assert plain.action is not None, "an estimate"
    ledger, action = _head(plain.ledger), _head(plain.action)
    return _Templates(
        place=_template(
            release_entry(marked.identity),
            (partition, epoch, born, block, (b'"%b"' % _KEY, b"%%b")),
        ),
        ledger=_template(ledger, (*named, ordinal, *of_arms)),
        action=_template(action, (*named, *in_force)),
    )


def _mark(name: str, size: int) -> bytes:
    """A mark of this many bytes that no name contains; it stands for the arms' numbers."""
    return shake_128(name.encode()).digest(size)


def _written(mark: bytes) -> tuple[bytes, bytes]:
    """The mark as lines contain it, and its placeholder."""
    return b2a_base64(mark, newline=False), b"%%b"


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


def _template(text: bytes, places: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The text with placeholders for the marks, each of which occurs once and in this order."""
    pattern = text.replace(b"%", b"%%%%")  # it is filled in twice
    parts = []
    for mark, place in places:
        if pattern.count(mark) != 1:
            raise ValueError("a name in the configuration looks like a mark of the templates")
        before, _, pattern = pattern.partition(mark)
        parts += [before, place]
    return b"".join((*parts, pattern))
