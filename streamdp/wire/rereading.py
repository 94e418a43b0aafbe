"""Reads many recorded releases at once, the inverse of `recording`: a restart may find millions.

Heads are read by one call, and the lines of what ends a block are sliced where their heads say. A
carried opening is read plainly, from its line. Whatever is damaged is left out: whoever reads it
alone says what is wrong with it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import msgspec
import numpy as np

from streamdp.core.arrays import Bools, Ints
from streamdp.core.errors import StateMismatch
from streamdp.core.events import Identity, Key
from streamdp.core.kinds.recorded import NOTHING, ManyKept, Names, Rest
from streamdp.wire.entries import Entries, parse_entry, read_key
from streamdp.wire.recorded import CARRIED, heads_of, numbers_of
from streamdp.wire.state import decode_recorded

_integers = msgspec.json.Decoder(list[int])  # in half of the time that `int` takes for each
_NATURAL = rb"(?:0|[1-9][0-9]{0,17})"  # longer numbers are read plainly
_TEXT = rb'[^"\\\x00-\x1f]'  # that JSON has no second way to write, where it is UTF-8


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


class Rereading:
    """Reads the recorded releases of one epoch of a partition."""

    def __init__(self, places: Entries, *, epoch: int, where: str) -> None:
        self._places, self._epoch, self._where = places, epoch, where
        self._entry = re.compile(
            re.escape(places.beginning("release", epoch=epoch))
            + b'(%b),(%b),"(%b+)","(%b*)"\\]' % (_NATURAL, _NATURAL, _TEXT, _TEXT)
        )

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
        places, values, borns, blocks = (list[bytes]() for _ in range(4))
        names, keys = list[str](), list[Key]()
        for place, value in entries:
            plain, key = self._entry.fullmatch(place), None
            if plain is not None and place.isascii():
                born, block, kind, key = plain.groups()
                name = kind.decode()
            else:
                try:
                    of = self.identity(place)
                except StateMismatch:
                    continue
                born, block, name, key = b"%d" % of.born, b"%d" % of.block, of.kind, of.key
            places.append(place)
            values.append(value)
            borns.append(born)
            blocks.append(block)
            names.append(name)
            keys.append(key)
        heads, whole = heads_of(places, values)
        since, block_of = (
            np.array(_integers.decode(b"[%b]" % b",".join(texts)), dtype=np.int64)
            for texts in (borns, blocks)
        )
        whole &= (heads["born"] == since) & (heads["block"] == block_of)
        kinds: defaultdict[str, list[int]] = defaultdict(list)
        for at in np.flatnonzero(whole).tolist():
            kinds[names[at]].append(at)
        for kind, some in kinds.items():
            its = heads[some]
            rest: list[Rest] = [NOTHING] * len(some)
            sums, policies = numbers_of(its, [values[at] for at in some])
            if its["policy"].any():
                rest = list(map(Rest, sums, policies))
            for at in np.flatnonzero(its["kind"] == CARRIED).tolist():
                identity = self.identity(places[some[at]])
                release = decode_recorded(identity, values[some[at]]).release
                rest[at] = Rest(release.sums, release.policy, release.carried)
            drawn, first, last, in_force, ordinal = (
                its[name].astype(np.int64)
                for name in ("value", "first_offset", "last_offset", "in_force", "ordinal")
            )
            yield Reread(
                [places[at] for at in some],
                Names(kind, [keys[at] for at in some], since[some], block_of[some]),
                ordinal,
                ManyKept(drawn, first, last, in_force, rest),
            )
