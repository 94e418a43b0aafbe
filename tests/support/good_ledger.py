"""A ledger that verifies, line by line."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from streamdp.core.events import ACTION, OPENING, Key
from streamdp.core.releases import Identity, Release
from streamdp.ports import Published, StreamTopics
from tests.support.streams import spec

HOME = StreamTopics("shop", "home", "home-losses")

LINES = replace(spec().lines, seeded=False)


def line(
    block: int,
    start: int,
    stop: int,
    *,
    kind: str = ACTION,
    key: Key = b"fr",
    first: int | None = None,
    last: int | None = None,
    epsilon: str = "1/2",
    ordinal: int = 1,
    epoch: int = 1,
    partition: int = 0,
    born: int = 0,
) -> Published:
    """A charge: slot n reads record n − 1 unless it says otherwise."""
    release = Release(
        Identity("home", partition, key, epoch, born, block, kind),
        numbers=(0,),
        start=start,
        stop=stop,
        first_offset=start - 1 if first is None else first,
        last_offset=stop - 2 if last is None else last,
        epsilon=Fraction(epsilon),
    )
    lines = replace(LINES, estimates=()) if kind in (ACTION, OPENING) else LINES
    value = lines.ledger(release, ordinal=ordinal)
    return Published(partition, 0, key, value)


def opening(key: Key = b"fr", *, at: int = 0, **fields: int) -> Published:
    """A learner begins."""
    return line(0, 1, 1, kind=OPENING, key=key, first=at, last=at, born=at, epsilon="0", **fields)


def numbered(*records: Published, first: int = 1) -> tuple[Published, ...]:
    """The same lines with the ordinals that they have one after the other."""
    return tuple(
        replace(
            record,
            value=re.sub(rb'"ordinal":[0-9]+', b'"ordinal":%d' % (first + at), record.value),
        )
        for at, record in enumerate(records)
    )


LINES_OF_BEFORE = (opening(), line(0, 1, 2), line(1, 2, 4))

GOOD = numbered(*LINES_OF_BEFORE, line(2, 4, 8))
