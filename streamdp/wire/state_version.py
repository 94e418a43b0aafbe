"""The version of the state's layout that wrote an entry, and the versions that may read it.

Every entry holds the version that wrote it (`version`) and the oldest that may read it
(`min_reader`).
"""

from __future__ import annotations

from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from streamdp.core.errors import StateMismatch

VERSION = 1
"""The layout that this library writes, and the newest that it reads."""

MIN_READER = 1
"""The oldest layout version whose code may read these entries."""

Version = Annotated[int, Meta(ge=1)]


class Versioned(Protocol):
    """What every entry's value has beside its content."""

    @property
    def min_reader(self) -> int:
        """The oldest version that may read it."""
        ...


class _Readers(Struct):
    """The two fields that every versioned value has."""

    version: Version
    min_reader: Version


_readers_decoder = msgspec.json.Decoder(_Readers)

Read = TypeVar("Read", bound=Versioned)


def decode_entry(decoder: msgspec.json.Decoder[Read], value: bytes, *, where: str) -> Read:
    """Decode a value, or raise `StateMismatch` without quoting it: the state is trusted."""
    try:
        entry = decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        refuse_newer(value, where=where)
        expected = f"layout version {VERSION}"
        raise StateMismatch(
            where, "damaged", expected=expected, got=f"{len(value)} bytes of another"
        ) from None
    if entry.min_reader > VERSION:
        refuse_newer(value, where=where)
    return entry


def refuse_newer(value: bytes, *, where: str) -> None:
    """Raise an error that says so, if a newer streamdp wrote this value."""
    try:
        readers = _readers_decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    refuse_readers(readers.version, readers.min_reader, where=where)


def refuse_readers(version: int, min_reader: int, *, where: str) -> None:
    """Raise an error if only a newer streamdp may read this."""
    if min_reader > VERSION:
        raise StateMismatch(
            where,
            "written by a newer streamdp, use that or a newer one",
            expected=f"a layout that version {VERSION} can read",
            got=f"version {version}, for {min_reader} and later",
        )
