"""Reads many recorded releases at once, the inverse of `recording`: a restart may find millions.

One entry of a kind is read by `state.decode_recorded`, and then becomes a pattern. Numbers, the key
and what was drawn are groups; all else must be equal, byte for byte, and a number that stands in
several lines must be the same in each. So an entry that fits has passed every check that the plain
reader made of the first. Whatever does not fit is read plainly, which raises what is wrong with it:
a carried opening, a key that JSON has to escape, a line of another version.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any

import msgspec
import numpy as np

from streamdp.core.arrays import Bools, Ints
from streamdp.core.errors import StateMismatch
from streamdp.core.events import BlockSums, Identity
from streamdp.core.kinds.recorded import NOT_RECORDED, NOTHING, ManyKept, Names, Rest, named
from streamdp.wire.entries import Entries, parse_entry, read_key
from streamdp.wire.state import Recorded, decode_recorded

_NATURAL = rb"(?:0|[1-9][0-9]{0,17})"  # longer numbers are read plainly
_POSITIVE = rb"[1-9][0-9]{0,17}"
_INTEGER = rb"(?:0|-?[1-9][0-9]{0,17})"
_TEXT = rb'[^"\\\x00-\x1f]'  # that JSON has no second way to write, where it is UTF-8
_NUMBER = rb"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"

_GROUPS = {
    b"key": b'"(?P<key>' + _TEXT + b'*)"',
    b"born": b"(?P<born>" + _NATURAL + b")",
    b"block": b"(?P<block>" + _NATURAL + b")",
    b"first_offset": b"(?P<first_offset>" + _NATURAL + b")",
    b"last_offset": b"(?P<last_offset>" + _NATURAL + b")",
    b"start": b"(?P<start>" + _POSITIVE + b")",
    b"stop": b"(?P<stop>" + _POSITIVE + b")",
    b"ordinal": b"(?P<ordinal>" + _POSITIVE + b")",
    b"in_force": b"(?P<in_force>" + _NATURAL + b")",
}
"""What stands in a line for these fields, where a pattern has not had them before."""

_FREE = {
    b"action": b'"' + _TEXT + b'+"',
    b"standard_error": _NUMBER,
    b"estimate": b"-?" + _NUMBER,
}
"""What follows from what was drawn, for whoever reads the line."""

_PAIRS = {BlockSums.names(pairs=pairs): pairs for pairs in (False, True)}
_ARMS = (b"policy", *(name.encode() for names in _PAIRS for name in names))
"""Base64, of a length that follows from K."""

_FIELD = re.compile(
    rb'(?<=[{,])"(' + b"|".join([*_GROUPS, *_FREE, *_ARMS, b"value", b"index", b"units"]) + rb')":'
    rb'("[^"\\]*"|[^,"\[{} ]+)'
)
_FILL = re.compile(rb" *(?=})")
_NO_PATTERN = re.compile(rb'[{,]"(?:carried|history)":')
_integers = msgspec.json.Decoder(list[int])  # in half of the time that `int` takes for each
_MOST_PATTERNS = 16  # of a kind: versions that wrote the state


@dataclass(frozen=True, slots=True, repr=False)
class Reread:
    """Recorded releases of one kind, as columns."""

    entries: Sequence[bytes]  # their keys in the state
    names: Names
    ordinal: Ints
    kept: ManyKept

    def only(self, some: Bools) -> tuple[Names, ManyKept]:
        """Some of them."""
        chosen, (kind, keys, born, block) = some.tolist(), self.names
        value, first, last, in_force = (of[some] for of in self.kept[:4])
        return (
            Names(kind, list(compress(keys, chosen)), born[some], block[some]),
            ManyKept(value, first, last, in_force, list(compress(self.kept.rest, chosen))),
        )

    def rows(self) -> list[tuple[Any, ...]]:
        """The same, one release at a time."""
        columns = (*self.names[1:], self.ordinal, *self.kept)
        return list(zip(self.entries, *map(list, columns), strict=True))


class Rereading:
    """Reads the recorded releases of one epoch of a partition."""

    def __init__(self, places: Entries, *, epoch: int, where: str) -> None:
        self._places, self._epoch, self._where = places, epoch, where
        self._entry = re.compile(
            re.escape(places.beginning("release", epoch=epoch))
            + b'(%b),(%b),"(%b+)","(%b*)"\\]' % (_NATURAL, _NATURAL, _TEXT, _TEXT)
        )
        self._patterns: list[_Pattern] = []

    def identity(self, entry: bytes) -> Identity:
        """The release that an entry's key names; `StateMismatch` if it names none."""
        plain, places = self._entry.fullmatch(entry), self._places
        if plain is not None and entry.isascii():
            born, block, kind, key = plain.groups()
            named = (key, self._epoch, int(born), int(block), kind.decode())
            return Identity(places.stream, places.partition, *named)
        _, epoch, (born, block, kind, written) = parse_entry(entry, places, where=self._where)
        key = read_key(written, where=self._where)
        return Identity(places.stream, places.partition, key, epoch, born, block, kind)

    def read(self, entries: Iterable[tuple[bytes, bytes]]) -> Iterator[Reread]:
        """Recorded releases as columns. Those that are wrong, or foreign, are left out."""
        fitting: defaultdict[_Pattern, list[tuple[bytes, ...]]] = defaultdict(list)
        plainly: defaultdict[str, list[tuple[bytes, Recorded]]] = defaultdict(list)
        for entry, value in entries:
            text = b"%b\n%b" % (entry, value)
            for pattern in self._patterns:
                match = pattern.text.fullmatch(text)
                if match is not None and (text.isascii() or _is_text(text)):
                    fitting[pattern].append((entry, *match.groups()))
                    break
            else:
                with suppress(StateMismatch):
                    recorded = decode_recorded(self.identity(entry), value)
                    plainly[recorded.release.kind].append((entry, recorded))
                    self._learn(entry, text, recorded)
        for pattern, groups in fitting.items():
            yield pattern.read(groups)
        for kind, some in plainly.items():
            yield _as_columns(kind, some)

    def _learn(self, entry: bytes, text: bytes, recorded: Recorded) -> None:
        """Make a pattern of an entry that was read plainly, if it can be one."""
        plain = self._entry.fullmatch(entry)
        if plain is None or len(self._patterns) == _MOST_PATTERNS or _NO_PATTERN.search(text):
            return
        pattern = _pattern(recorded.release.kind, plain, text)
        match = pattern.text.fullmatch(text)
        if match is not None:
            read, plainly = pattern.read([(entry, *match.groups())]), [(entry, recorded)]
            if read.rows() == _as_columns(recorded.release.kind, plainly).rows():
                self._patterns.append(pattern)


@dataclass(frozen=True, eq=False)
class _Pattern:
    """The text of all entries of one kind, with groups for what differs."""

    kind: str
    text: re.Pattern[bytes]

    def read(self, found: Sequence[tuple[bytes, ...]]) -> Reread:
        """Columns from each entry's key and groups."""
        columns, groups = list(zip(*found, strict=True)), self.text.groupindex
        count = len(found)

        def numbers(name: str, otherwise: int) -> Ints:
            if name not in groups:
                return np.full(count, otherwise, dtype=np.int64)
            text = b"[%b]" % b",".join(columns[groups[name]])
            return np.array(_integers.decode(text), dtype=np.int64)

        sums: Iterable[BlockSums | None] = repeat(None)
        policies: Iterable[bytes | None] = repeat(None, count)
        for (one, other), pairs in _PAIRS.items():
            if one in groups and other in groups:
                first, second = (map(a2b_base64, columns[groups[name]]) for name in (one, other))
                sums = map(BlockSums, first, second, repeat(pairs))
        if "policy" in groups:
            policies = map(a2b_base64, columns[groups["policy"]])
        plain = isinstance(sums, repeat) and isinstance(policies, repeat)
        rest = [NOTHING] * count if plain else list(map(Rest, sums, policies))
        kept = ManyKept(
            numbers("value", 0),
            numbers("first_offset", 0),
            numbers("last_offset", 0),
            numbers("in_force", NOT_RECORDED),
            rest,
        )
        names = Names(self.kind, columns[groups["key"]], numbers("born", 0), numbers("block", 0))
        return Reread(columns[0], names, numbers("ordinal", 0), kept)


def _pattern(kind: str, entry: re.Match[bytes], text: bytes) -> _Pattern:
    """What all entries like this one look like."""
    parts = [
        re.escape(text[: entry.start(1)]), _GROUPS[b"born"], b",", _GROUPS[b"block"],
        re.escape(text[entry.end(2) : entry.start(4) - 1]), _GROUPS[b"key"],
    ]  # fmt: skip
    at, had = entry.end(4) + 1, {b"born", b"block", b"key"}
    chooses = b'"index":' in text.split(b"\n")[2]  # the ledger's line says what was drawn
    for match in _FIELD.finditer(text, at):
        field, said = match.groups()
        value = _NATURAL if chooses else _INTEGER
        if field == b"index":
            in_actions = text.count(b"\n", 0, match.start()) == 3
            field = b"in_force" if in_actions and b"in_force" in had else b"value"
        elif field == b"units":
            field = b"value"
        if field in had:
            group = b'"(?P=key)"' if field == b"key" else b"(?P=%b)" % field
        elif field in _FREE:
            group = _FREE[field]
        elif field == b"value":
            group = b"(?P<value>" + value + b")"
        elif field in _ARMS:
            pad = said.count(b"=")
            group = b'"(?P<%b>[A-Za-z0-9+/]{%d}={%d})"' % (field, len(said) - 2 - pad, pad)
        else:
            group = _GROUPS[field]
        had |= {field} - _FREE.keys()
        parts += [re.escape(text[at : match.start(2)]), group]
        at = match.end(2)
        fill = _FILL.match(text, at)
        if fill is not None:
            parts.append(b" *")
            at = fill.end()
    return _Pattern(kind, re.compile(b"".join((*parts, re.escape(text[at:])))))


def _as_columns(kind: str, some: Sequence[tuple[bytes, Recorded]]) -> Reread:
    """What the plain reader has read."""
    releases = [recorded.release for _, recorded in some]
    born = np.array([of.identity.born for of in releases], dtype=np.int64)
    block = np.array([of.identity.block for of in releases], dtype=np.int64)
    names = Names(kind, [of.key for of in releases], born, block)
    ordinal = np.array([recorded.ordinal for _, recorded in some], dtype=np.int64)
    kept = ManyKept.of([named(of)[1] for of in releases])
    return Reread([entry for entry, _ in some], names, ordinal, kept)


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
