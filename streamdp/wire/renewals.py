"""What a format reads records by that changes from a position on: schemas of a registry.

A format reads all records alike, but for what it learns from outside the log. Each such thing is a
*renewal*. It holds from a position of the partition on, is saved with that position in the commit
that first has a record from there, and is never changed afterwards. So a rebuild reads every record
as it was read the first time. `renewals` are those that a format holds; `renewed(since)` is the
format with what its source knows by now, which holds from the next record on; `resumed(saved)` is
the format with what a state holds, and no more. A format without a source returns itself.

When a format is renewed follows from when records are fetched, never from what they hold: nothing
may be asked or learned because of content. Records are cut where a renewal begins
(`service.renewed_formats`), so that `decode` knows no offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol, Self, TypeVar

import msgspec
from msgspec import Meta, Struct

from streamdp.wire.state_version import MIN_READER, VERSION, Version, decode_entry

MOST_RENEWAL_BYTES = 100_000
"""Bytes of a renewal, as the state holds it: one entry, which must fit any transport."""

F = TypeVar("F")


class Renewal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of them, as the state holds it."""

    version: Version = VERSION
    min_reader: Version = MIN_READER
    what: str  # `schema`
    number: Annotated[int, Meta(ge=0)]  # its own, within `what`
    since: Annotated[int, Meta(ge=0)]  # the first position that it holds for
    content: dict[str, str]  # the format's

    def __repr__(self) -> str:
        """Show its name."""
        return f"Renewal({self.what} {self.number} from {self.since} on)"


class NoticeLog(Protocol):
    """Structured logging: an event's name and its fields, none of them from content."""

    def info(self, event: str, **fields: object) -> object:
        """Log normal operation."""

    def warning(self, event: str, **fields: object) -> object:
        """Log trouble that passes by itself."""


class RenewalSource(Protocol):
    """Where renewals come from, asked by the clock alone."""

    @property
    def subject(self) -> str:
        """Its name on pages and in logs."""

    @property
    def refresh(self) -> float:
        """Seconds between two questions."""

    @property
    def lost_at(self) -> float | None:
        """By `time.monotonic`: the first question that had no answer; None while it answers."""

    async def fetch(self) -> None:
        """Ask once; `TransportLost` without an answer."""

    async def turn(self, log: NoticeLog, /) -> None:
        """Ask once and log what is new, or that there was no answer."""

    def faults(self) -> Mapping[int, str | None]:
        """The numbers that it answered last, and why one cannot be used; None if it can. Public."""


class Renewing(Protocol):
    """What may be another one from a position on: a value."""

    @property
    def renewals(self) -> Sequence[Renewal]:
        """Those that it holds, the newest last."""

    @property
    def source(self) -> RenewalSource | None:
        """Where they come from; None for what never changes."""

    def renewed(self, since: int, /) -> Self:
        """With what is known by now, which holds from this position on; itself if that is all."""

    def resumed(self, saved: Sequence[Renewal], /) -> Self:
        """With these alone, as a partition goes on; `TransportLost` if it has to wait for some."""


def unchanged(format_: F, _: object, /) -> F:
    """`renewed` and `resumed` of a format that reads all records alike."""
    return format_


def encode_renewal(renewal: Renewal) -> bytes:
    """The value of a renewal's entry in the state."""
    return msgspec.json.encode(renewal)


def decode_renewal(value: bytes, *, where: str) -> Renewal:
    """Read a renewal's entry; raises `StateMismatch`."""
    return decode_entry(_decoder, value, where=where)


_decoder = msgspec.json.Decoder(Renewal)
