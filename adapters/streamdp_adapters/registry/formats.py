"""The formats `avro`, `protobuf` and `json_schema`: one field of each record, by its schema's id.

A format knows the schemas that hold in one partition (`renewals`). It is a value: a partition that
learns a schema goes on with another one (`renewed`). Without any, every record is unusable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import lru_cache
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from struct import Struct, error
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig, StateMismatch, TransportLost, refuse
from streamdp.wire.decoded import Decoded, Headers, Setting, Value, checked_option
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import (
    Holds,
    checked_actions,
    checked_names,
    checked_rows,
    record_lengths,
)
from streamdp.wire.json_format import (
    UNUSABLE,
    JsonRows,
    Layout,
    event_reader,
    list_rows,
    mapping_rows,
    number_rows,
    shallow,
    short_decimals,
)
from streamdp.wire.nesting import SHORT, too_deep
from streamdp.wire.renewals import Renewal
from streamdp_adapters.registry.asking import Subject
from streamdp_adapters.registry.fields import Reader, RecordField, UnreadableSchema
from streamdp_adapters.registry.schemas import (
    MOST_SCHEMAS,
    PREFIX,
    Registry,
    Schema,
    SchemaKind,
    fits,
    held,
    prefix,
    schema_of,
)

_NAMES: dict[SchemaKind, str] = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json_schema"}
_PACKAGES: dict[SchemaKind, str] = {"AVRO": "fastavro", "PROTOBUF": "google.protobuf"}
SOURCE = ("registry", "subject", "refresh", "user", "password_file", "ca_file")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reading:
    """Reads one field of the records of a subject, by the schemas that hold."""

    kind: SchemaKind
    registry: Registry
    field: RecordField
    actions: tuple[str, ...] = ()  # whose numbers are looked up by name
    renewals: tuple[Renewal, ...] = ()  # the schemas that hold
    seen: tuple[Schema, ...] | None = None  # of what was fetched, what is held already
    readers: Mapping[bytes, Reader] = dataclass_field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Make the reader of each schema, by the first five bytes of its records."""
        schemas = map(schema_of, self.renewals)
        try:
            readers = {prefix(of.id): _reader(of.kind, of.text, self) for of in schemas}
        except UnreadableSchema as error:
            expected, got = "schemas that this version reads", str(error)
            where = f"schemas of {self.registry.subject}"
            raise StateMismatch(
                where, "a saved schema is unreadable", expected=expected, got=got
            ) from None
        object.__setattr__(self, "readers", readers)

    def resumed(self, saved: Sequence[Renewal], /) -> Reading:
        """As a partition with these schemas goes on.

        If it holds none, the registry must have answered: without any, no record could ever be
        used.
        """
        if not saved and not self.registry.fetched.schemas:
            raise TransportLost(
                f"subject {self.registry.subject}",
                "no schema is known yet",
                expected="one in the state, or an answer of its registry that has one",
                got="neither",
            )
        return replace(self, renewals=tuple(saved), seen=None)

    def renewed(self, since: int, /) -> Reading:
        """With what was fetched since, from a position on; an id keeps its first schema.

        Of unreadable schemas, and of too many, no record is ever used.
        """
        fetched = self.registry.fetched.schemas
        if fetched is None or fetched is self.seen:
            return self
        new = [
            held(schema, since=since)
            for schema in fetched
            if prefix(schema.id) not in self.readers and self.fault(schema) is None
        ]
        room = max(0, MOST_SCHEMAS - len(self.renewals))
        return replace(self, renewals=(*self.renewals, *new[:room]), seen=fetched)

    @property
    def source(self) -> Subject:
        """What asks the registry."""
        return Subject(self.registry, self.fault)

    def fault(self, schema: Schema) -> str | None:
        """Why records of a schema cannot be read; None if they can. Public."""
        if not fits(schema):
            return "too long for the state"
        try:
            _reader(schema.kind, schema.text, self)
        except UnreadableSchema as error:
            return str(error)
        return None

    def content(self, value: Value) -> object:
        """The field's content in one record; None if it is unusable."""
        if value is None or (reader := self.readers.get(value[:PREFIX])) is None:
            return None
        return reader.read(value[PREFIX:])

    def numbers(self, values: Sequence[Value], *, most: float = 1.0) -> NDArray[np.float32]:
        """The field's numbers in each record, clipped to [0, `most`]; NaN if one is unusable.

        Where a schema's records have them in one place (`Plain`), they are taken from there. Of
        JSON all schemas are read alike.
        """
        if self.kind == "JSON":
            rows = _json_rows(self.field, self.actions)
            assert rows is not None  # only such fields have numbers in a row
            return rows.clipped(self._texts(values), most=most)
        count = self.field.count
        table = np.full((len(values), count), np.nan)
        others = self._taken(values, table)
        read = {start: reader.read for start, reader in self.readers.items()}
        pack, row = Struct(f"<{count}d").pack, self._row
        places: list[int] = []
        packed: list[bytes] = []
        for at in others:
            value = values[at]
            if value is None or (reader := read.get(value[:PREFIX])) is None:
                continue
            content = reader(value[PREFIX:])
            if content is not None:
                try:
                    numbers: Any = content if row is None else row(content)
                    packed.append(pack(*numbers))
                    places.append(at)
                except error:  # another number of them
                    continue
        table[places] = np.frombuffer(b"".join(packed), dtype="<f8").reshape(-1, count)
        table[~np.isfinite(table)] = np.nan
        return np.clip(table, 0.0, most, out=table).astype(np.float32)

    def _texts(self, values: Sequence[Value]) -> Sequence[Value]:
        """The JSON of each record; None where its schema is unknown or the text is too deep.

        Mostly all records name one schema: then their first five bytes are cut at once.
        `removeprefix` leaves a record that begins otherwise as it is, which the lengths show.
        """
        try:
            start = values[0][:PREFIX]  # type: ignore[index]  # a null value is a TypeError
            if start in self.readers:
                cut = list(map(bytes.removeprefix, values, repeat(start)))  # type: ignore[arg-type]
                lengths = list(map(len, cut))
                if sum(map(len, values)) == sum(lengths) + PREFIX * len(cut):  # type: ignore[arg-type]
                    return cut if max(lengths) <= SHORT else shallow(cut)
        except (IndexError, TypeError):  # no record, or one without a value
            pass
        known = self.readers
        return shallow(
            [None if v is None or v[:PREFIX] not in known else v[PREFIX:] for v in values]
        )

    def _taken(self, values: Sequence[Value], table: Floats) -> Sequence[int]:
        """Fill in the rows of records whose numbers stand where they mostly do; return the others.

        All at once: numpy compares what stands around the numbers.
        """
        plain = {start: of.plain for start, of in self.readers.items() if of.plain is not None}
        present = {value[:PREFIX] for value in values if value is not None} if plain else set()
        lengths, left = record_lengths(values), np.arange(len(values))
        for start in sorted(present & plain.keys()):
            of = plain[start]
            head = np.frombuffer(start + of.head, dtype=np.uint8)
            stop = len(head) + of.width
            size = stop + len(of.tail)
            fits = lengths[left] == size if of.ends else lengths[left] >= size
            places = left if fits.all() else left[fits]
            chosen = values if len(places) == len(values) else [values[at] for at in places]
            if not (lengths[places] == size).all():
                chosen = [value[:size] for value in chosen if value is not None]
            cells = np.frombuffer(b"".join(chosen), dtype=np.uint8)  # type: ignore[arg-type]
            cells = cells.reshape(-1, size)
            around = (cells[:, : len(head)] == head).all(axis=1)
            around &= (cells[:, stop:] == np.frombuffer(of.tail, dtype=np.uint8)).all(axis=1)
            numbers = np.ascontiguousarray(cells[:, len(head) : stop]).view(f"<f{of.each}")
            with np.errstate(invalid="ignore"):  # a signalling NaN: numpy would warn, of content
                numbers = numbers.astype("<f8")
            if around.all():
                table[places] = numbers
                left = left[~fits]
            else:
                table[places[around]] = numbers[around]
                left = np.setdiff1d(left, places[around], assume_unique=True)
        others: list[int] = left.tolist()
        return others

    @property
    def _row(self) -> Callable[[Any], Sequence[float]] | None:
        """Makes a row of a record's content; None if it is one."""
        if self.field.content == "number":
            return lambda number: (number,)
        if self.field.content == "numbers":
            return None
        actions = self.actions

        def row(named: Any) -> Sequence[float]:
            if not isinstance(named, dict):
                return cast("Sequence[float]", named)
            return [named.get(action, 0.5) for action in actions]

        return row

    def write(self, content: object) -> bytes:
        """A record with the newest schema that holds."""
        if not self.readers:
            raise InvalidConfig(
                f"subject {self.registry.subject}",
                "no schema to write with",
                expected="one that was fetched from the registry",
                got="none",
            )
        newest = max(self.readers)
        return newest + self.readers[newest].write(content)

    def as_json(self, values: Sequence[Value]) -> list[Value]:
        """Records as the JSON that says the same of the field; None where they are unusable."""
        if self.kind == "JSON":
            known = self.readers
            return [None if v is None or v[:PREFIX] not in known else v[PREFIX:] for v in values]
        contents = map(self.content, values)
        return [
            None if of is None else msgspec.json.encode({self.field.name: of}) for of in contents
        ]

    def from_json(self, content: bytes) -> bytes:
        """The record that says of the field what a JSON text says, by the newest schema."""
        return self.write(msgspec.json.decode(content)[self.field.name])

    def explain(self, value: Value) -> str | None:
        """Why a record is unusable. NOT PRIVATE: for operators only."""
        reading = self.renewed(0)
        if value is None:
            return "no value"
        if len(value) < PREFIX or value[0] != 0:
            return "no schema's id in front: a zero and four bytes"
        if value[:PREFIX] not in reading.readers:
            known = ", ".join(str(int.from_bytes(start[1:], "big")) for start in reading.readers)
            return f"schema {int.from_bytes(value[1:PREFIX], 'big')}, not one of {known or 'none'}"
        usable = reading.content(value) is not None
        if self.actions or self.field.content == "number":
            usable = not np.isnan(reading.numbers([value])).any()
        return None if usable else f"not read as {reading.field.name} by its schema"

    def settings(self) -> dict[str, Setting]:
        """What decides how a record is read, beside what the state holds."""
        return {"name": _NAMES[self.kind], "subject": self.registry.subject}


def _reader(kind: str, text: str, reading: Reading) -> Reader:
    if kind != reading.kind:
        raise UnreadableSchema(f"of type {kind}, not {reading.kind}")
    return _compiled(reading.kind, text, reading.field, reading.actions)


@lru_cache(maxsize=1024)  # each partition has the same ones
def _compiled(kind: SchemaKind, text: str, field: RecordField, actions: tuple[str, ...]) -> Reader:
    if kind == "AVRO":
        from streamdp_adapters.registry import avro

        return avro.reader_of(text, field)
    if kind == "PROTOBUF":
        from streamdp_adapters.registry import protobuf

        return protobuf.reader_of(text, field)
    return _json_reader(field, actions)


_JSON_TYPES: dict[str, Any] = {
    "number": float,
    "numbers": list[float],
    "numbers by name": dict[str, float],
    "text": str,
    "texts": list[str],
    "texts by name": dict[str, list[str]],
}


@lru_cache
def _json_rows(field: RecordField, actions: tuple[str, ...]) -> JsonRows | None:
    """Reads a field of numbers for each action, or of one; None for another content."""
    if field.content == "number":
        return number_rows(field.name)
    if field.content == "numbers":
        return list_rows(actions)
    return mapping_rows(actions) if field.content == "numbers by name" and actions else None


def _json_reader(field: RecordField, actions: tuple[str, ...]) -> Reader:
    """JSON, as without a registry: of the schema only the id counts."""
    rows, event = _json_rows(field, actions), event_reader(field.name, _JSON_TYPES[field.content])
    decode: Callable[[bytes], object] = (lambda text: event(text).of) if rows is None else rows.row

    def read(record: bytes) -> object:
        try:
            return None if too_deep(record) else decode(record)
        except UNUSABLE:
            return None

    def write(content: object) -> bytes:
        return msgspec.json.encode({field.name: content})

    return Reader(read, write)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SchemaFormat:
    """All losses, or the loss or reward of the action that a header names; one slot a record."""

    actions: tuple[str, ...]
    reading: Reading
    layout: Layout = "list"
    feedback: Feedback | None = None

    frames = False  # a record is one slot

    @property
    def renewals(self) -> Sequence[Renewal]:
        """The schemas that hold."""
        return self.reading.renewals

    @property
    def source(self) -> Subject:
        """What asks the registry."""
        return self.reading.source

    def renewed(self, since: int, /) -> SchemaFormat:
        """With what was fetched since, which holds from a position on."""
        reading = self.reading.renewed(since)
        return self if reading is self.reading else replace(self, reading=reading)

    def resumed(self, saved: Sequence[Renewal], /) -> SchemaFormat:
        """As a partition with these schemas goes on."""
        return replace(self, reading=self.reading.resumed(saved))

    def settings(self) -> Mapping[str, Setting]:
        """Everything that decides how a record is read, beside what the state holds."""
        more = {"layout": self.layout} if self.feedback is None else self.feedback.settings()
        return {**self.reading.settings(), **more}

    def slots(self, lengths: Ints) -> Ints:
        """One for each record. Public."""
        return np.ones(len(lengths), dtype=np.int64)

    def decode(self, values: Sequence[Value], headers: Sequence[Headers] = ()) -> Decoded:
        """The slots of a batch of records. Never raises because of content."""
        feedback, slots = self.feedback, np.ones(len(values), dtype=np.int64)
        if feedback is None:
            return Decoded.of_losses(self.reading.numbers(values), slots)
        rows = self.reading.numbers(values, most=feedback.largest)
        return feedback.observed(rows[:, 0], slots, headers, frames=False)

    def encode(self, rows: NDArray[np.float32], *, played: Sequence[int] = ()) -> bytes:
        """One record with this row, by the newest schema."""
        numbers = short_decimals(checked_rows(self, rows)[0]).tolist()
        if self.feedback is not None:
            return self.reading.write(numbers[0])
        named = self.layout == "mapping"
        return self.reading.write(
            dict(zip(self.actions, numbers, strict=True)) if named else numbers
        )

    def explain(self, value: Value) -> str | None:
        """Why a record is unusable. NOT PRIVATE: for operators only."""
        return self.reading.explain(value)

    def __repr__(self) -> str:
        """Show the format, the subject and the number of actions."""
        registry, name = self.reading.registry, _NAMES[self.reading.kind]
        what = self.layout if self.feedback is None else self.feedback.content
        return f"SchemaFormat({name}, {registry.subject}, {what}, K={len(self.actions)})"


@dataclass(frozen=True, slots=True)
class SchemaFactory:
    """Makes the formats of one type of schema, from a stream's configuration."""

    kind: SchemaKind

    def configure(
        self,
        *,
        actions: Sequence[str],
        options: Mapping[str, object],
        feedback: Feedback | None = None,
    ) -> SchemaFormat:
        """The format of a stream; of feedback its actions stand in headers."""
        known = (*SOURCE, "layout") if feedback is None else SOURCE
        checked_names(options, where="format", known=known)
        names = checked_actions(actions)
        if feedback is not None:
            if feedback.played != "header":
                raise InvalidConfig(
                    "format.name",
                    "a name in the record would show by its length which action it is",
                    expected="played = header, or json with padding = fixed",
                    got=f"{_NAMES[self.kind]} with played = {feedback.played}",
                )
            reading = self.reading(RecordField(feedback.content, "number"), options)
            return SchemaFormat(actions=names, reading=reading, feedback=feedback)
        layout = options.get("layout", "list")
        checked_option(layout, where="format.layout", allowed=("list", "mapping"))
        content = RecordField(
            "losses", "numbers" if layout == "list" else "numbers by name", len(names)
        )
        reading = self.reading(content, options, actions=names)
        return SchemaFormat(actions=names, reading=reading, layout=layout)  # type: ignore[arg-type]

    def contents(self, *, field: str, holds: Holds, options: Mapping[str, object]) -> Reading:
        """What reads a field of requests or outcomes."""
        checked_names(options, where="format", known=SOURCE)
        return self.reading(RecordField(field, holds), options)

    def reading(
        self, field: RecordField, options: Mapping[str, object], *, actions: tuple[str, ...] = ()
    ) -> Reading:
        """What reads a field, from a table's options; refuses an extra that is not installed."""
        package = _PACKAGES.get(self.kind)
        if package is not None and find_spec(package.partition(".")[0]) is None:
            where, expected = f"format {_NAMES[self.kind]}", 'pip install "streamdp[registry]"'
            raise InvalidConfig(where, "is an extra", expected=expected, got=f"no {package}")
        return Reading(kind=self.kind, registry=_registry(options), field=field, actions=actions)


AVRO = SchemaFactory("AVRO")
PROTOBUF = SchemaFactory("PROTOBUF")
JSON_SCHEMA = SchemaFactory("JSON")


def _registry(options: Mapping[str, object]) -> Registry:
    """Where schemas come from."""
    texts: dict[str, str | None] = {}
    for name in ("registry", "subject", "user", "password_file", "ca_file"):
        value = options.get(name)
        needed = name in ("registry", "subject")
        if not (isinstance(value, str) and value) and (needed or value is not None):
            problem = "missing" if value is None else "not usable"
            refuse(f"format.{name}", problem, "a text", repr(value))
        texts[name] = value if isinstance(value, str) else None
    url, user = str(texts["registry"]), texts["user"]
    parts = urlsplit(url)
    if not _reachable(parts):
        raise InvalidConfig(
            "format.registry",
            "not an address",
            expected="http(s)://host[:port][/path], without a password",
            got="another text",
        )
    if parts.query or parts.fragment:
        refuse("format.registry", "has a query", "an address without one", "one with")
    refresh = options.get("refresh", 10)
    if isinstance(refresh, bool) or not isinstance(refresh, int | float) or not 1 <= refresh <= 1e6:
        refuse("format.refresh", "not usable", "seconds, at least 1", repr(refresh))
    if (user is None) != (texts["password_file"] is None):
        refuse("format.password_file", "goes together with user", "both or neither", "one of them")
    files = [
        None if texts[n] is None else Path(str(texts[n])) for n in ("password_file", "ca_file")
    ]
    subject = str(texts["subject"])
    return Registry(url.rstrip("/"), subject, float(refresh), user, files[0], files[1])


def _reachable(parts: SplitResult) -> bool:
    """Whether an address names a host and a port, and no password."""
    try:
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
