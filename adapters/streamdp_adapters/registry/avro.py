"""Reads one field of Avro records, by the schema that wrote them (fastavro).

The field is looked up by its name, at the top of the record. What comes after it is not read, so
put it first: then nearly all records are read without a look at their structure (`Plain`).

A schema is unreadable if the field has another type than float, double, string, or the array or map
of these that is wanted (an int's length would show its size, a union's whether it is null), or if
records could take a reader beyond any bound: a type that contains itself, which a deep record turns
into a deep stack, or a value without bytes outside a union. A few bytes name any number of these,
as items of an array, or as records of two records of two records.
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
from fastavro.schema import parse_schema

from streamdp.core.errors import InvalidConfig
from streamdp_adapters.registry.fields import Plain, Reader, RecordField, UnreadableSchema, varint

_WIDTHS = {"float": 4, "double": 8}
_DEEPEST = 64  # types within types, far below any stack's depth


def reader_of(text: str, field: RecordField) -> Reader:
    """The reader of a schema's records; raises `UnreadableSchema`."""
    try:
        schema = _without_logical_types(json.loads(text))
        fields = schema["fields"] if schema["type"] == "record" else []
        place = next((at for at, of in enumerate(fields) if of["name"] == field.name), None)
        if place is None:
            raise UnreadableSchema(f"no record with a field {field.name}")
        whole = parse_schema(schema)
        start: Any = parse_schema({**schema, "fields": fields[: place + 1]})
        _bounded(start, {})
        kind = start["fields"][place]["type"]
    except UnreadableSchema:
        raise
    except Exception as error:  # fastavro's own, and whatever else a text that is no schema causes
        raise UnreadableSchema(f"not an Avro schema ({type(error).__name__})") from None
    numbers = _fitting(kind, field)

    def read(record: bytes) -> object:
        try:
            return fastavro.schemaless_reader(BytesIO(record), start, None)[field.name]  # type: ignore[index, call-overload]
        except MemoryError:
            raise  # not content: a null loss would be wrong
        except Exception:
            return None

    def write(content: object) -> bytes:
        record = BytesIO()
        try:
            fastavro.schemaless_writer(record, whole, {field.name: content})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            expected = f"{field.name}, and defaults for all other fields"
            got = type(error).__name__
            raise InvalidConfig(
                "schema", "its records need more", expected=expected, got=got
            ) from None
        return record.getvalue()

    return Reader(read, write, _plain(field, numbers) if place == 0 else None)


def _plain(field: RecordField, numbers: str) -> Plain | None:
    each = _WIDTHS.get(numbers, 0)
    if field.content == "number":
        return Plain(b"", each, each, b"", ends=False)
    if field.content == "numbers":  # one block: its number of items, these, and no further block
        return Plain(varint(2 * field.count), each, field.count * each, b"\0", ends=False)
    return None


def _fitting(kind: Any, field: RecordField) -> str:
    """The type of the field's numbers or texts; raises if it is not what is wanted."""
    inner = kind
    for layer in _LAYERS[field.content]:
        items = {"array": "items", "map": "values"}[layer]
        if not isinstance(inner, dict) or inner.get("type") != layer:
            raise _unfit(field)
        inner = inner[items]
    name = inner["type"] if isinstance(inner, dict) else inner
    known = ("string",) if field.content.startswith("text") else ("float", "double")
    if not isinstance(name, str) or name not in known:
        raise _unfit(field)
    return name


_LAYERS: dict[str, tuple[str, ...]] = {
    "number": (),
    "numbers": ("array",),
    "numbers by name": ("map",),
    "text": (),
    "texts": ("array",),
    "texts by name": ("map", "array"),
}


def _unfit(field: RecordField) -> UnreadableSchema:
    single = "string" if field.content.startswith("text") else "float or double"
    wanted = "".join(f"{layer} of " for layer in _LAYERS[field.content]) + single
    return UnreadableSchema(f"{field.name} is not {wanted}")


def _bounded(kind: Any, depths: dict[str, int | None]) -> int:
    """How deep values of a type are; raises if a few bytes may be deep, or many values.

    `depths`: the same of named types; None while a type is being looked at.
    """
    if isinstance(kind, list):  # a union: which of them it is takes bytes, so one may be null
        return max((_bounded(of, depths) for of in kind if of != "null"), default=1)
    if isinstance(kind, str):
        depth = depths.get(kind, 1)
        if depth is None:
            raise UnreadableSchema("a type that contains itself")
        if kind == "null":
            raise UnreadableSchema("a value without bytes")
        return depth
    match kind["type"]:
        case "record" | "error":  # a protocol's errors are records
            parts, takes = [of["type"] for of in kind["fields"]], len(kind["fields"])
        case "array":
            parts, takes = [kind["items"]], 1
        case "map":
            parts, takes = [kind["values"]], 1
        case "fixed":
            parts, takes = [], kind["size"]
        case "enum":
            parts, takes = [], 1
        case other:
            return _bounded(other, depths)
    name = kind.get("name", "")
    depths[name] = None
    depth = 1 + max((_bounded(of, depths) for of in parts), default=0)
    if takes < 1:
        raise UnreadableSchema("a value without bytes")
    if depth > _DEEPEST:
        raise UnreadableSchema(f"types within more than {_DEEPEST} others")
    depths[name] = depth
    return depth


def _without_logical_types(schema: Any) -> Any:
    """A schema whose values are read as they are written: a decimal as its bytes, a date as int."""
    if isinstance(schema, dict):
        return {k: _without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    if isinstance(schema, list):
        return [_without_logical_types(part) for part in schema]
    return schema
