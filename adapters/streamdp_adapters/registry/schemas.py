"""Schemas of a subject, and how the state of a partition holds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from streamdp.core.errors import StateMismatch
from streamdp.wire.renewals import MOST_RENEWAL_BYTES, Renewal, encode_renewal

PREFIX = 5
"""Bytes: a zero, and the schema's id as a big-endian number of four bytes."""

SCHEMA = "schema"

MOST_SCHEMAS = 1000
"""Versions of a subject that are held; what comes beyond is like an id that nobody registered."""

SchemaKind = Literal["AVRO", "PROTOBUF", "JSON"]
"""A schema's type, as registries name it."""


@dataclass(frozen=True, slots=True)
class Schema:
    """One registered version of a subject."""

    id: int
    kind: str
    text: str = field(repr=False)


@dataclass(slots=True)
class FetchedSchemas:
    """What a registry answered last; None before its first answer. A timer alone writes it."""

    schemas: tuple[Schema, ...] | None = None
    lost_at: float | None = None  # by `time.monotonic`: the first question without an answer since


@dataclass(frozen=True, slots=True)
class Registry:
    """A subject of a registry, and how it is asked."""

    url: str
    subject: str
    refresh: float = 10.0  # seconds between two questions
    user: str | None = None
    password_file: Path | None = field(default=None, repr=False)
    ca_file: Path | None = None
    fetched: FetchedSchemas = field(
        default_factory=FetchedSchemas, repr=False, compare=False, kw_only=True
    )


def prefix(number: int) -> bytes:
    """What every record of this schema begins with."""
    return b"\0" + number.to_bytes(4, "big")


def held(schema: Schema, *, since: int) -> Renewal:
    """A schema that holds from a position on."""
    content = {"kind": schema.kind, "text": schema.text}
    return Renewal(what=SCHEMA, number=schema.id, since=since, content=content)


def schema_of(renewal: Renewal) -> Schema:
    """The schema that a state holds."""
    content = renewal.content
    if renewal.what != SCHEMA or content.keys() != {"kind", "text"} or renewal.number >= 2**32:
        where, what = f"{renewal.what} {renewal.number}", "a saved schema is unreadable"
        expected, got = "a schema's kind and text", sorted(content)
        raise StateMismatch(where, what, expected=expected, got=got)
    return Schema(renewal.number, content["kind"], content["text"])


def fits(schema: Schema) -> bool:
    """Whether the state can hold it."""
    return len(encode_renewal(held(schema, since=2**63 - 1))) <= MOST_RENEWAL_BYTES
