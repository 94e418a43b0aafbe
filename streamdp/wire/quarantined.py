"""NOT PRIVATE: one entry of a quarantine, as bytes.

    {"partition": 0, "offset": 17, "reason": "…", "length": 34, "value": "<base64>"}

The entry's key is the record's. It keeps only the beginning of the value, and a few lines of the
reason, which may quote content.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from streamdp.core.errors import StateMismatch

MOST_VALUE = 16 << 10
"""Bytes of the value that are kept."""

MOST_REASON = 1000
"""Characters of the reason that are kept."""


class Quarantined(Struct, frozen=True):
    """One unusable record. NOT PRIVATE."""

    partition: int
    offset: int
    reason: str
    length: int | None  # of the whole value; None: there is no value
    value: bytes | None  # its beginning

    def __repr__(self) -> str:
        """Show the record's place, never its content."""
        return f"Quarantined({self.partition}@{self.offset})"


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Quarantined)


def quarantined(*, partition: int, offset: int, reason: str, value: bytes | None) -> bytes:
    """The entry of a record; its size is bounded, whatever the record's content.

    >>> quarantined(partition=0, offset=17, reason="no value", value=None)
    b'{"partition":0,"offset":17,"reason":"no value","length":null,"value":null}'
    """
    text = reason[:MOST_REASON].encode("utf-8", "replace").decode()
    length, beginning = (None, None) if value is None else (len(value), value[:MOST_VALUE])
    return _encode(Quarantined(partition, offset, text, length, beginning))


def read_quarantined(entry: bytes | None) -> Quarantined:
    """Read an entry that `quarantined` wrote."""
    try:
        return _decoder.decode(entry or b"")
    except (msgspec.MsgspecError, UnicodeError):
        raise StateMismatch(
            "quarantine",
            "foreign entry",
            expected="an entry that streamdp wrote",
            got=f"{len(entry or b'')} bytes of something else",
        ) from None
