"""The one field that is read of a record, and how one schema's records hold it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from streamdp.wire.formats import Holds


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field of a record."""

    name: str
    content: Holds
    count: int = 1  # of the numbers


class UnreadableSchema(Exception):
    """No record of this schema can be read, and why. A public fact: it is about no record."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Where nearly all records of a schema hold their numbers, as little-endian floats.

    A record that begins with `head` and goes on with `tail` after the numbers says the same by this
    and by `Reader.read`; any other record must be read.
    """

    head: bytes  # after the five bytes
    each: int  # bytes of a number: 4 or 8
    width: int  # of all numbers together
    tail: bytes
    ends: bool  # whether the record must end there


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads and writes the field in records of one schema, without their first five bytes."""

    read: Callable[[bytes], object] = field(repr=False)
    """The field's content; None if the record is unusable, whatever its bytes. Never raises."""

    write: Callable[[object], bytes] = field(repr=False)
    """A record with this field alone; `InvalidConfig` if the schema needs more."""

    plain: Plain | None = None


def varint(number: int) -> bytes:
    """A number in groups of seven bits, the lowest first.

    >>> varint(20), varint(200)
    (b'\\x14', b'\\xc8\\x01')
    """
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes((*groups, number))
