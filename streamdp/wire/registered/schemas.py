"""Schemas of a subject, and from which position of a partition on each of them holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from streamdp.wire.decoded import Value
from streamdp.wire.state_version import MIN_READER, VERSION, Version, decoded

PREFIX = 5
"""Bytes: a zero, and the schema's id as a big-endian number of four bytes."""

MOST_SCHEMA_BYTES = 100_000
"""Bytes of a schema's text, as the state holds it: one entry, which must fit any transport."""

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


class Held(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schema in a partition's state: it holds for the records from `since` on."""

    version: Version = VERSION
    min_reader: Version = MIN_READER
    id: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    kind: str
    text: str
    since: Annotated[int, Meta(ge=0)]


@dataclass(slots=True)
class Fetched:
    """What a registry answered last; None before its first answer. A timer alone writes it."""

    schemas: tuple[Schema, ...] | None = None
    lost_at: float | None = None  # by `time.monotonic`: the first question without an answer since


@dataclass(frozen=True, slots=True)
class Source:
    """A subject of a registry, and how it is asked."""

    url: str
    subject: str
    refresh: float = 10.0  # seconds between two questions
    user: str | None = None
    password_file: Path | None = field(default=None, repr=False)
    ca_file: Path | None = None
    fetched: Fetched = field(default_factory=Fetched, repr=False, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class SchemaLog:
    """The schemas that hold in one partition, by the first five bytes of their records."""

    held: Mapping[bytes, Held] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, held: Iterable[Held]) -> SchemaLog:
        """The log of what a state holds."""
        return cls({prefix(schema.id): schema for schema in held})

    def extended(self, schemas: Sequence[Schema], *, since: int) -> tuple[SchemaLog, list[Held]]:
        """With those that are new, which hold from a position on; an id keeps its first schema."""
        new = [
            Held(id=schema.id, kind=schema.kind, text=schema.text, since=since)
            for schema in schemas
            if prefix(schema.id) not in self.held
        ][: max(0, MOST_SCHEMAS - len(self.held))]
        if not new:
            return self, new
        return SchemaLog({**self.held, **{prefix(schema.id): schema for schema in new}}), new

    def in_force(self, values: Sequence[Value], offsets: Sequence[int]) -> Sequence[Value]:
        """The values, without those whose schema does not hold yet at their offset."""
        since = {start: schema.since for start, schema in self.held.items()}
        if len(offsets) == 0 or max(since.values(), default=0) <= offsets[0]:
            return values
        return [
            None if value is None or offset < since.get(value[:PREFIX], offset) else value
            for value, offset in zip(values, offsets, strict=True)
        ]


EMPTY = SchemaLog()
"""No schema holds."""


def prefix(number: int) -> bytes:
    """What every record of this schema begins with."""
    return b"\0" + number.to_bytes(4, "big")


def encode_held(held: Held) -> bytes:
    """The value of a schema's entry in the state."""
    return msgspec.json.encode(held)


def decode_held(value: bytes, *, where: str) -> Held:
    """Read a schema's entry; raises `StateMismatch`."""
    return decoded(_held, value, where=where)


def fits(schema: Schema) -> bool:
    """Whether the state can hold it."""
    held = Held(id=schema.id, kind=schema.kind, text=schema.text, since=2**63 - 1)
    return len(encode_held(held)) <= MOST_SCHEMA_BYTES


_held = msgspec.json.Decoder(Held)
