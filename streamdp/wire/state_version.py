"""Which version of the state's layout an entry was written by, and who may read it.

Every entry of a state says the version that wrote it (`version`) and the oldest that may read it
(`min_reader`). A stream without a crowd is written as version 2, so that the release before may go
on with it; what a crowd needs is in entries of version 3 and later only, which that release
refuses by name.
"""

from __future__ import annotations

from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from streamdp.core.errors import StateMismatch, complaint

VERSION = 2
"""The layout that this library writes, and who may read it, where no crowd is."""

MIN_READER = 2
"""The oldest layout version whose code may read what this library writes."""

CROWD_VERSION = 3
"""The layout of the entries of a crowd; whose code is older cannot go on with them."""

POOL_VERSION = 4
"""The layout of a checkpoint whose keys donate: their pool is saved with it."""

ADOPTION_VERSION = 5
"""The layout of a crowd across partitions: what was adopted of others stands beside the priors."""

NEWEST = ADOPTION_VERSION
"""The newest layout that this library reads."""

Version = Annotated[int, Meta(ge=1)]


class Versioned(Protocol):
    """What every entry's value says beside its content."""

    @property
    def min_reader(self) -> int:
        """The oldest version that may read it."""
        ...


class _Readers(Struct):
    """What every versioned value says, whatever else it says."""

    version: Version
    min_reader: Version


_readers_decoder = msgspec.json.Decoder(_Readers)

Read = TypeVar("Read", bound=Versioned)


def decoded(decoder: msgspec.json.Decoder[Read], value: bytes, *, where: str) -> Read:
    """The value, or `StateMismatch`; what a decoder quotes is not passed on, this is trusted."""
    try:
        entry = decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        refuse_newer(value, where=where)
        expected = f"layout version {NEWEST}"
        raise StateMismatch(
            complaint(where, "damaged", expected=expected, got=f"{len(value)} bytes of another")
        ) from None
    if entry.min_reader > NEWEST:
        refuse_newer(value, where=where)
    return entry


def written_by(value: bytes) -> int | None:
    """The layout version that a value says; None if it says none."""
    try:
        return _readers_decoder.decode(value).version
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def refuse_newer(value: bytes, *, where: str) -> None:
    """Say that a newer streamdp wrote this, if that is why it cannot be read."""
    try:
        readers = _readers_decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    if readers.min_reader > NEWEST:
        raise StateMismatch(
            complaint(
                where,
                "written by a newer streamdp, use that or a newer one",
                expected=f"a layout that version {NEWEST} can read",
                got=f"version {readers.version}, for {readers.min_reader} and later",
            )
        )
