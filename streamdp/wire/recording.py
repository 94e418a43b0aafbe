"""Encodes many releases at once: the bytes that a commit makes durable and the next one publishes.

The bytes are those of `state.record` and `state.encode_recorded` (a test compares them), in a third
of the time. Most of a line is equal for all releases of a kind, so the plain encoder is called
once for many commits, with marks in place of the numbers and the key, and its result becomes a
template. What was drawn comes last in each line; the ends for each action also come from the plain
encoder, once for many commits. The arms' numbers in a feedback stream's release have marks of their
own and are inserted as base64: length and steps are functions of K. Estimates, whose ends are all
different, use the plain encoder, and so do carried openings, of which a key has one in an epoch.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from hashlib import shake_128
from itertools import repeat
from typing import Any, NamedTuple

from numpy.typing import NDArray

from streamdp.core.events import (
    OPENING,
    SUMS,
    BlockSums,
    Identity,
    Key,
    Release,
    Releases,
)
from streamdp.wire.entries import release_entry, written_key
from streamdp.wire.lines import ENDS_BLOCK
from streamdp.wire.published import INTEGER_WIDTH, Lines, key_field
from streamdp.wire.state import encode_recorded, record


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
    if ordinal == 1 and input_id is not None and len(releases):
        first = _plainly(releases[0], lines=replace(lines, input_id=input_id), ordinal=1)
        return [first, *record_all(releases, lines=lines, ordinal=1)[1:]]
    kinds: dict[int, _Kind] = {}
    carried, entries, templated = releases.carried or {}, list[Entry](), {OPENING, *ENDS_BLOCK}
    for number, row in enumerate(_rows(releases), start=ordinal):
        name = releases.kinds[row.code]
        if name not in templated or (name == OPENING and (row.key, row.born) in carried):
            release = releases[number - ordinal]
            entries.append(_plainly(release, lines=lines, ordinal=number))
            continue
        if row.code not in kinds:
            kinds[row.code] = _Kind(releases, row.code, lines)
        entries.append(kinds[row.code].entry(row, number))
    return entries


class _Row(NamedTuple):
    """What differs between releases; sums, counts and policy as lines contain them."""

    key: Key
    code: int  # of the kind
    born: int
    block: int
    first_offset: int
    last_offset: int
    start: int
    stop: int
    value: int
    in_force: int
    first: bytes  # of each arm; empty where it has none, as the next two
    second: bytes
    policy: bytes


def _rows(releases: Releases) -> Iterator[_Row]:
    """Each release."""
    standing, feedback = releases.in_force, releases.feedback
    columns = (
        releases.kind,
        releases.born,
        releases.block,
        releases.first_offset,
        releases.last_offset,
        releases.start,
        releases.stop,
        releases.value,
        releases.value if standing is None else standing,
    )
    of_arms: list[Iterator[bytes]] = [repeat(b"", len(releases)) for _ in range(3)]
    if feedback is not None:
        of_arms = [
            _base64(feedback.first, "<i8"),
            _base64(feedback.second, "<i8"),
            _base64(feedback.policy, "<u4"),
        ]
    numbers = (column.tolist() for column in columns)
    return map(_Row._make, zip(releases.keys, *numbers, *of_arms, strict=True))


def _base64(table: NDArray[Any], numbers: str) -> Iterator[bytes]:
    """Each row's numbers as lines contain them."""
    rows = table.astype(numbers)
    written, width = memoryview(rows.tobytes()), rows.itemsize * rows.shape[1]
    return (
        b2a_base64(written[at : at + width], newline=False) for at in range(0, len(written), width)
    )


def _plainly(release: Release, *, lines: Lines, ordinal: int) -> Entry:
    """The entry of one release, from the plain encoder."""
    recorded = record(release, lines=lines, ordinal=ordinal)
    place = release_entry(release.identity)
    return Entry(release.key, place, encode_recorded(recorded), recorded.ledger, recorded.action)


_KEY = b"8b1d0c5e-a-mark-for-the-key"
_PARTITION, _EPOCH, _BORN, _BLOCK, _FIRST, _LAST, _START, _STOP, _ORDINAL = (
    7_905_316_482_000_000_000 + at for at in range(9)
)


class _Kind:
    """The texts of one kind of release within one commit."""

    def __init__(self, releases: Releases, code: int, lines: Lines) -> None:
        self._lines, self._name = lines, releases.kinds[code]
        of, at = releases.feedback, (releases.partition, releases.epoch)
        arms = of and (of.first.shape[1], of.policy.shape[1], of.pairs)
        texts = _templates(lines, releases.stream, self._name, releases.charges[code], arms)
        self._place, self._drawn, self._ledger = (
            texts.place % at,
            texts.drawn % (),
            texts.ledger % at,
        )
        self._action = texts.action % at
        self._ends: dict[tuple[int, int], tuple[bytes, bytes]] = {}

    def entry(self, row: _Row, ordinal: int) -> Entry:
        """The entry of one release of this kind."""
        key, _, born, block, since, until, start, stop, value, in_force, first, second, policy = row
        written = written_key(key)
        named_key = key_field(key) if written[:1] == b"{" else b'"key":' + written
        named = (named_key, born, block, since, until, start, stop)
        if policy:
            sums = (first, second) if self._name == SUMS else ()
            ledger = self._ledger % (*named, ordinal, *sums)
            action = self._action % (*named, policy)
        else:
            ends = self._ends.get((value, in_force))
            if ends is None:
                ends = _ends(self._lines, self._name, value, in_force)
                self._ends[value, in_force] = ends
            ledger = self._ledger % (*named, ordinal) + ends[0]
            action = self._action % named + ends[1]
        drawn = self._drawn % (start, stop, since, until, ordinal, value)
        recorded = b"\n".join((drawn, ledger, action))
        return Entry(key, self._place % (born, block, written), recorded, ledger, action)


class _Templates(NamedTuple):
    """The texts of one kind of release of a stream, with placeholders for what differs.

    Partition and epoch are filled in first, for a commit; then what differs between releases, whose
    placeholders are escaped here.
    """

    place: bytes
    drawn: bytes
    ledger: bytes
    action: bytes


@lru_cache(maxsize=64)
def _templates(
    lines: Lines,
    stream: str,
    kind: str,
    charge: Fraction,
    arms: tuple[int, int, bool] | None,
) -> _Templates:
    """Call the plain encoder once and put placeholders where the marks are.

    `arms`: how many numbers sums and policies of a feedback stream have, and what sums are of.
    """
    sums = policy = None
    if arms is not None:
        wide, parts, pairs = arms
        policy = _mark("policy", 4 * parts)
        if kind == SUMS:
            sums = BlockSums(_mark("first", 8 * wide), _mark("second", 8 * wide), pairs)
    marked = Release(
        Identity(stream, _PARTITION, _KEY, _EPOCH, _BORN, _BLOCK, kind),
        0, _START, _STOP, _FIRST, _LAST, charge, sums=sums, policy=policy,
    )  # fmt: skip
    plain = _plainly(marked, lines=lines, ordinal=_ORDINAL)
    partition, epoch = ((b"%d" % mark, b"%d") for mark in (_PARTITION, _EPOCH))
    born, block, *read, ordinal = (
        (b"%d" % mark, b"%%d") for mark in (_BORN, _BLOCK, _FIRST, _LAST, _START, _STOP, _ORDINAL)
    )
    named = (partition, (b'"key":"%b"' % _KEY, b"%%b"), epoch, born, block, *read)
    of_arms = () if sums is None else tuple(map(_written, (sums.first, sums.second)))
    in_force = () if policy is None else (_written(policy),)
    drawn, _, _ = plain.recorded.partition(b'"value":')
    width = b'"value":%%%%-%dd}' % INTEGER_WIDTH
    assert plain.action is not None, "an estimate"
    ledger, action = _head(plain.ledger), _head(plain.action)
    return _Templates(
        place=_template(plain.place, (partition, epoch, born, block, (b'"%b"' % _KEY, b"%%b"))),
        drawn=_template(drawn, (*read[2:], *read[:2], ordinal)) + width,
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
    release = Release(identity, value, 1, 1, 0, 0, Fraction(0), in_force)
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
