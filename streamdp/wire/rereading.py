"""Reads many recorded releases at once, the inverse of `recording`: a restart may find millions.

Heads are read by one call, and the lines of what ends a block are sliced where their heads say. A
carried opening is read plainly, from its line. Whatever is damaged is left out: whoever reads it
alone says what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from streamdp.core.errors import StateMismatch
from streamdp.core.events import Carried, Key
from streamdp.core.releases import SPAN, Identity, Releases
from streamdp.wire.entries import Entries, parse_entry, read_key
from streamdp.wire.recorded import CARRIED, heads_of, numbers_of, policies_of
from streamdp.wire.state import decode_recorded

_integers = msgspec.json.Decoder(list[int])  # in half of the time that `int` takes for each
_NATURAL = rb"(?:0|[1-9][0-9]{0,17})"  # longer numbers are read plainly
_TEXT = rb'[^"\\\x00-\x1f]'  # that JSON has no second way to write, where it is UTF-8


class Rereading:
    """Reads the recorded releases of one epoch of a partition."""

    def __init__(self, entries: Entries, nothing: Releases, *, where: str) -> None:
        """`nothing`: an empty table of what is released in this epoch."""
        epoch = nothing.epoch
        self._entries, self._nothing, self._epoch, self._where = entries, nothing, epoch, where
        self._plain = re.compile(
            re.escape(entries.beginning("release", epoch=epoch))
            + b'(%b),(%b),"(%b+)","(%b*)"\\]' % (_NATURAL, _NATURAL, _TEXT, _TEXT)
        )

    def identity(self, place: bytes) -> Identity:
        """The release that an entry's key names; `StateMismatch` if it names none."""
        plain, entries = self._plain.fullmatch(place), self._entries
        if plain is not None and place.isascii():
            born, block, kind, key = plain.groups()
            named = (key, self._epoch, int(born), int(block), kind.decode())
            return Identity(entries.stream, entries.partition, *named)
        _, epoch, (born, block, kind, written) = parse_entry(place, entries, where=self._where)
        key = read_key(written, where=self._where)
        return Identity(entries.stream, entries.partition, key, epoch, born, block, kind)

    def read(self, entries: Iterable[tuple[bytes, bytes]]) -> tuple[list[bytes], Releases]:
        """Recorded releases as a table, and their entries' keys. Those that are wrong, foreign or
        of a kind that is not released here are left out.
        """
        places, values, borns, blocks = (list[bytes]() for _ in range(4))
        names, keys = list[str](), list[Key]()
        for place, value in entries:
            plain, key = self._plain.fullmatch(place), None
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
        heads, fits = heads_of(places, values)
        since, block_of = (
            np.array(_integers.decode(b"[%b]" % b",".join(texts)), dtype=np.int64)
            for texts in (borns, blocks)
        )
        fits &= (heads["born"] == since) & (heads["block"] == block_of)
        codes = {name: code for code, name in enumerate(self._nothing.kinds)}
        kinds = np.array([codes.get(name, len(codes)) for name in names], dtype=np.int64)
        some = np.flatnonzero(fits & (kinds < len(codes)))
        its, kinds = heads[some], kinds[some]
        whole = [values[at] for at in some.tolist()]
        numbers, fits = numbers_of(its, whole, width=self._nothing.numbers.shape[1])
        in_force, carried = self._nothing.in_force, dict[tuple[Key, int], Carried]()
        if in_force is not None and self._nothing.has_policies:
            fits &= (its["numbers"] > 0) | (kinds == 0)
            in_force, said = policies_of(its, whole, arms=in_force.shape[1])
            fits &= said
        elif in_force is not None:
            in_force = its["in_force"].astype(np.int64)
        for at in some[fits & (its["kind"] == CARRIED)].tolist():
            release = decode_recorded(self.identity(places[at]), values[at]).release
            if release.carried is not None:
                carried[keys[at], release.identity.born] = release.carried
        columns: dict[str, Any] = {name: its[name].astype(np.int64) for name in (*SPAN, "ordinal")}
        table = replace(
            self._nothing, keys=[keys[at] for at in some.tolist()],
            kind=kinds.astype(np.uint8), numbers=numbers, in_force=in_force,
            carried=carried or None, **columns,
        )  # fmt: skip
        return [places[at] for at in some[fits].tolist()], table.at(np.flatnonzero(fits))
