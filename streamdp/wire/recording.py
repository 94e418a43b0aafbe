"""Many releases at once to the bytes that a commit makes durable and the next one publishes.

The same bytes as `state.record` and `state.encode_recorded` make of each release, a test says so,
at a third of the cost. Most of a line is equal for all releases of a kind, so the plain encoder
is asked once, with marks for the numbers and the key, and its answer becomes a template. What was
drawn comes last in each line; the ends for each action are asked of the plain encoder too, once for
many commits. Estimates and the releases of feedback streams, whose ends are all different, go the
plain way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from streamdp.core.events import ACTION, OPENING, Identity, Key, Release, Releases
from streamdp.wire.entries import release_entry, written_key
from streamdp.wire.published import INTEGER_WIDTH, Lines, Mode, key_field
from streamdp.wire.state import encode_recorded, record


class Entry(NamedTuple):
    """One release, ready for a commit."""

    key: Key  # of the published records
    place: bytes  # the state entry's key
    recorded: bytes  # the state entry's value
    ledger: bytes
    action: bytes | None

    def __repr__(self) -> str:
        """Say where it goes, never what was drawn: it is not public yet, or never."""
        return f"Entry({self.place!r})"


def record_all(releases: Releases, *, lines: Lines, mode: Mode, ordinal: int) -> list[Entry]:
    """Every release with its final bytes, in order; the first ledger line has this ordinal."""
    kinds: dict[int, _Kind] = {}
    columns = (
        releases.kind,
        releases.value,
        releases.born,
        releases.block,
        releases.first_offset,
        releases.last_offset,
        releases.start,
        releases.stop,
    )
    standing = releases.value if releases.in_force is None else releases.in_force
    lists = (column.tolist() for column in (standing, *columns))
    rows = zip(releases.keys, *lists, strict=True)
    entries = []
    for at, (key, in_force, code, value, *numbers) in enumerate(rows):
        place = ordinal + at
        if lines.observes == "feedback" or releases.kinds[code] not in (OPENING, ACTION):
            entries.append(_plainly(releases[at], lines=lines, mode=mode, ordinal=place))
            continue
        if code not in kinds:
            kinds[code] = _Kind(releases, code, lines=lines, mode=mode)
        entries.append(kinds[code].entry(key, value, in_force, (*numbers, place)))
    return entries


def _plainly(release: Release, *, lines: Lines, mode: Mode, ordinal: int) -> Entry:
    """One release by the plain encoder."""
    recorded = record(release, lines=lines, mode=mode, ordinal=ordinal)
    place = release_entry(release.identity)
    return Entry(release.key, place, encode_recorded(recorded), recorded.ledger, recorded.action)


_KEY = b"8b1d0c5e-a-mark-for-the-key"
_BORN, _BLOCK, _FIRST, _LAST, _START, _STOP, _ORDINAL = (
    7_905_316_482_000_000_000 + at for at in range(7)
)


@dataclass(slots=True)
class _Kind:
    """The templates of one kind of release within one commit."""

    releases: Releases
    code: int
    lines: Lines = field(kw_only=True)
    mode: Mode = field(kw_only=True)
    _ends: dict[tuple[int, int], tuple[bytes, bytes | None]] = field(
        init=False, default_factory=dict
    )
    _place: bytes = field(init=False)
    _drawn: bytes = field(init=False)
    _ledger: bytes = field(init=False)
    _action: bytes = field(init=False)

    def __post_init__(self) -> None:
        """Ask the plain encoder once and put places where the marks are."""
        plain = self._marked()
        drawn, _, _ = plain.recorded.split(b"\n")
        named = (b'"key":"%b"' % _KEY, b"%b"), (b"%d" % _BORN, b"%d"), (b"%d" % _BLOCK, b"%d")
        read = tuple((b"%d" % mark, b"%d") for mark in (_FIRST, _LAST, _START, _STOP))
        self._place = _template(plain.place, (*named[1:], (b'"%b"' % _KEY, b"%b")))
        width = b'"value":%%-%dd}' % INTEGER_WIDTH
        head, _, _ = drawn.partition(b'"value":')
        ordinal = (b"%d" % _ORDINAL, b"%d")
        self._drawn = _template(head, (*read[2:], *read[:2], ordinal)) + width
        self._ledger = _template(_head(plain.ledger), (*named, *read, ordinal))
        self._action = _template(
            _head(plain.action or b""), (*named, *read) if plain.action else ()
        )

    def entry(self, key: Key, value: int, in_force: int, numbers: Sequence[int]) -> Entry:
        """One release of this kind; the numbers: born, block, offsets, slots, ordinal."""
        ends = self._ends.get((value, in_force))
        if ends is None:
            ends = _ends(self.lines, self.mode, self._kind, value, in_force)
            self._ends[value, in_force] = ends
        born, block, first, last, start, stop, ordinal = numbers
        named = (key_field(key), born, block, first, last, start, stop)
        ledger = self._ledger % (*named, ordinal) + ends[0]
        action = None if ends[1] is None else self._action % named + ends[1]
        drawn = self._drawn % (start, stop, first, last, ordinal, value)
        recorded = b"\n".join((drawn, ledger, action or b""))
        place = self._place % (born, block, written_key(key))
        return Entry(key, place, recorded, ledger, action)

    @property
    def _kind(self) -> str:
        return self.releases.kinds[self.code]

    def _marked(self) -> Entry:
        """A release as the plain encoder writes it, with marks."""
        of, epsilon = self.releases, Fraction(self.releases.charges[self.code])
        identity = Identity(of.stream, of.partition, _KEY, of.epoch, _BORN, _BLOCK, self._kind)
        release = Release(identity, 0, _START, _STOP, _FIRST, _LAST, epsilon)
        return _plainly(release, lines=self.lines, mode=self.mode, ordinal=_ORDINAL)


@lru_cache(maxsize=4096)
def _ends(
    lines: Lines, mode: Mode, kind: str, value: int, in_force: int
) -> tuple[bytes, bytes | None]:
    """What follows the head of a ledger line and of an action of this value."""
    identity = Identity(lines.stream, 0, _KEY, 0, 0, 0, kind)
    release = Release(identity, value, 1, 1, 0, 0, Fraction(0), in_force)
    ledger = lines.ledger(release, mode=mode, ordinal=1)
    action = lines.action(release, mode=mode)
    return ledger[len(_head(ledger)) :], None if action is None else action[len(_head(action)) :]


def _head(line: bytes) -> bytes:
    """What comes before the thing drawn."""
    return line[: line.rindex(b'"index":')] if b'"index":' in line else line


def _template(text: bytes, places: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The text with places for the marks, each of which is there once and in this order."""
    pattern = text.replace(b"%", b"%%")
    parts = []
    for mark, place in places:
        if pattern.count(mark) != 1:
            raise ValueError("a name in the configuration looks like a mark of the templates")
        before, _, pattern = pattern.partition(mark)
        parts += [before, place]
    return b"".join((*parts, pattern))
