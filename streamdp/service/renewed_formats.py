"""By which format a partition's records are read, and from which position on by another.

Live, what a timer has fetched holds from the next records on (`renew`). A rebuild is given
what the state holds and goes through the same formats at the same positions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from streamdp.ports import Records
from streamdp.wire.renewals import Renewal, Renewing

R = TypeVar("R", bound=Renewing)


class RenewedFormats(Generic[R]):
    """The formats of one partition, each from a position on."""

    def __init__(self, configured: R, saved: Sequence[Renewal]) -> None:
        """`configured` holds nothing; records before the first renewal are read by it."""
        newest = configured.resumed(saved)
        self._since = sorted({0, *(of.since for of in saved)})
        self._formats = [
            newest if since == self._since[-1] else _at(configured, saved, since)
            for since in self._since
        ]
        self._unsaved: list[Renewal] = []
        self._known = list(saved)  # what the state holds, or will

    def renew(self, since: int) -> None:
        """Let what is known by now hold from the next record on, which has this offset.

        Never before what the state holds: that may begin further on, with records that were read
        before a restart and were not applied.
        """
        since, before = max(since, self._since[-1]), self._formats[-1]
        now = before.renewed(since)
        if now is not before:
            new = [of for of in now.renewals if of not in before.renewals]
            self._unsaved += new
            self._known += new
            self._since.append(since)
            self._formats.append(now)

    def cut(self, records: Records) -> Iterator[tuple[R, Records]]:
        """The records in parts, each with what it is read by."""
        start, stop = records.start, max(records.start, records.next_offset - 1)
        first, last = (max(0, bisect_right(self._since, at) - 1) for at in (start, stop))
        for at in range(first, last):
            before, records = _split(records, self._since[at + 1])
            yield self._formats[at], before
        yield self._formats[last], records

    def outlived(self, low_water: int) -> list[Renewal]:
        """What was replaced before this position, from which a rebuild reads; it is forgotten."""
        at = max(0, bisect_right(self._since, low_water) - 1)
        self._since, self._formats = self._since[at:], self._formats[at:]
        kept = {(of.what, of.number) for format_ in self._formats for of in format_.renewals}
        gone = [of for of in self._known if (of.what, of.number) not in kept]
        self._known = [of for of in self._known if (of.what, of.number) in kept]
        return gone

    def unsaved(self) -> list[Renewal]:
        """What the next commit has to save."""
        unsaved, self._unsaved = self._unsaved, []
        return unsaved


def _at(configured: R, saved: Sequence[Renewal], since: int) -> R:
    """The format at a position; before the first renewal the configured one."""
    then = [of for of in saved if of.since <= since]
    return configured.resumed(then) if then else configured


def _split(records: Records, position: int) -> tuple[Records, Records]:
    """The records before a position, and those from it on."""
    at = bisect_left(records.offsets, position)
    columns = ("offsets", "keys", "values", "headers", "timestamps")
    before, after = (
        {name: getattr(records, name)[some] for name in columns}
        for some in (slice(0, at), slice(at, len(records)))
    )
    return (
        replace(records, next_offset=position, **before),
        replace(records, start=position, **after),
    )
