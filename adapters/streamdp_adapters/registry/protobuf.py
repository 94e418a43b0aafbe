"""Reads one field of Protobuf records, by the text of the schema that wrote them.

After the five bytes a record names its message type by the places of the types in the file, then
the message comes. Of the schema only that is used: which types there are, in what order, and the
number and type of the wanted field in each. The message that is decoded has this field alone; all
others are unknown to it and skipped. So imports and options are never needed.

A number must be float or double, and a single one must be written also if it is 0: `optional` in
proto3. Without that a record with 0 is shorter, and its length, which is public, shows the number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from streamdp.core.errors import InvalidConfig
from streamdp_adapters.registry.fields import Plain, Reader, RecordField, UnreadableSchema, varint

_WIDTHS = {"float": 4, "double": 8}
_DEEPEST = 32  # places that name a message type
_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\s+|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\.?\w[\w.]*|.)""", re.DOTALL
)
_BLOCKS = ("enum", "extend", "service")
_FileField = descriptor_pb2.FieldDescriptorProto


@dataclass(slots=True)
class _Message:
    """A message type of the schema."""

    name: str
    fields: dict[str, _Declared] = field(default_factory=dict)
    nested: list[_Message] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Declared:
    """A field of the schema."""

    number: int
    type: str
    label: str  # repeated, map, explicit (its absence is seen) or implicit


def reader_of(text: str, wanted: RecordField) -> Reader:
    """The reader of a schema's records; raises `UnreadableSchema`."""
    try:
        types = list(_all_of(_parsed(text)))
        why, readable = "", {}
        for place, message in types:
            try:
                readable[place] = _class_of(message, wanted, [of for _, of in types])
            except UnreadableSchema as error:
                why = why or str(error)
    except (StopIteration, ValueError, TypeError, RecursionError) as error:
        got = type(error).__name__
        raise UnreadableSchema(f"not a Protobuf schema ({got})") from None
    if not readable:
        raise UnreadableSchema(why or "no message")

    def read(record: bytes) -> object:
        try:
            place, start = _place(record)
            made, declared = readable[place]
            message = made.FromString(record[start:])
        except (LookupError, DecodeError):
            return None
        return _content(message, wanted, declared)

    first = min(readable)

    def write(content: object) -> bytes:
        made, _ = readable[first]
        head = b"\0" if first == (0,) else b"".join(map(_zigzag, (len(first), *first)))
        try:
            if wanted.content == "texts by name":
                named: Any = content
                content = {name: {"of": texts} for name, texts in named.items()}
            return head + bytes(made(of=content).SerializeToString(deterministic=True))
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidConfig(
                "record", "not written", expected=wanted.content, got=type(error).__name__
            ) from None

    return Reader(read, write, _plain(readable[(0,)][1], wanted) if (0,) in readable else None)


def _content(message: Any, wanted: RecordField, declared: _Declared) -> object:
    match wanted.content:
        case "numbers" | "texts":
            return list(message.of)
        case "numbers by name":
            return dict(message.of)
        case "texts by name":
            return {name: list(of.of) for name, of in message.of.items()}
        case _:
            return message.of if message.HasField("of") else None


def _plain(declared: _Declared, wanted: RecordField) -> Plain | None:
    """Most producers write the first message, and the only block of numbers."""
    each = _WIDTHS.get(declared.type, 0)
    if wanted.content == "number":
        tag = varint(declared.number << 3 | (1 if each == 8 else 5))
        return Plain(b"\0" + tag, each, each, b"", ends=True)
    if wanted.content == "numbers":
        width = each * wanted.count
        head = b"\0" + varint(declared.number << 3 | 2) + varint(width)
        return Plain(head, each, width, b"", ends=True)
    return None


# -- what a record says of itself ------------------------------------------------------------------


def _place(record: bytes) -> tuple[tuple[int, ...], int]:
    """The places that name the message's type, and where the message begins; or `LookupError`."""
    count, at = _number(record, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _DEEPEST:
        raise LookupError
    places = []
    for _ in range(count):
        place, at = _number(record, at)
        places.append(place)
    return tuple(places), at


def _number(record: bytes, at: int) -> tuple[int, int]:
    """A signed number in groups of seven bits, and where it ends."""
    number = shift = 0
    while shift < 35:
        byte = record[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise LookupError


def _zigzag(number: int) -> bytes:
    return varint(2 * number)


# -- a class for the one field ---------------------------------------------------------------------


def _class_of(
    message: _Message, wanted: RecordField, known: list[_Message]
) -> tuple[Any, _Declared]:
    """A message class with the wanted field alone, which is called `of`."""
    declared = message.fields.get(wanted.name)
    if declared is None:
        raise UnreadableSchema(f"no message with a field {wanted.name}")
    # An edition, in which text that is not UTF-8 makes a record unreadable: in proto2, whose fields
    # also tell 0 from nothing, such text is bytes, and such a key of a map raises when it is read.
    file = descriptor_pb2.FileDescriptorProto(
        name="event.proto", syntax="editions", edition=descriptor_pb2.EDITION_2023
    )
    event = file.message_type.add(name="Event")
    if wanted.content.endswith("by name"):
        if declared.label != "map":
            raise _unfit(wanted)
        event.field.add(
            name="of", number=declared.number, label=_FileField.LABEL_REPEATED,
            type=_FileField.TYPE_MESSAGE, type_name=".Event.OfEntry",
        )  # fmt: skip
        entry = event.nested_type.add(name="OfEntry")
        entry.options.map_entry = True
        entry.field.add(
            name="key", number=1, label=_FileField.LABEL_OPTIONAL, type=_FileField.TYPE_STRING
        )
        value = entry.field.add(name="value", number=2, label=_FileField.LABEL_OPTIONAL)
        if wanted.content == "texts by name":
            inner = _wrapper(declared.type, wanted, known)
            value.type, value.type_name = _FileField.TYPE_MESSAGE, ".Texts"
            file.message_type.add(name="Texts").field.add(
                name="of", number=inner, label=_FileField.LABEL_REPEATED,
                type=_FileField.TYPE_STRING,
            )  # fmt: skip
        else:
            value.type = _scalar(declared.type, wanted)
    else:
        several = wanted.content in ("numbers", "texts")
        if (declared.label == "repeated") != several or declared.label == "map":
            raise _unfit(wanted)
        if declared.label == "implicit":
            raise UnreadableSchema(
                f"{wanted.name} is not optional: 0 is not written, so a record's length shows it"
            )
        event.field.add(
            name="of", number=declared.number, type=_scalar(declared.type, wanted),
            label=_FileField.LABEL_REPEATED if several else _FileField.LABEL_OPTIONAL,
        )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Event")), declared


def _scalar(name: str, wanted: RecordField) -> Any:
    kinds = {"float": _FileField.TYPE_FLOAT, "double": _FileField.TYPE_DOUBLE}
    if wanted.content.startswith("text"):
        kinds = {"string": _FileField.TYPE_STRING}
    if name not in kinds:
        raise _unfit(wanted)
    return kinds[name]


def _wrapper(name: str, wanted: RecordField, known: list[_Message]) -> int:
    """The number of the only field, repeated strings, of the message that holds a map's list."""
    found = [message for message in known if message.name == name.rpartition(".")[2]]
    fields = list(found[0].fields.values()) if len(found) == 1 else []
    if len(fields) != 1 or (fields[0].label, fields[0].type) != ("repeated", "string"):
        raise _unfit(wanted)
    return fields[0].number


def _unfit(wanted: RecordField) -> UnreadableSchema:
    expected = {
        "number": "float or double",
        "numbers": "repeated float or double",
        "numbers by name": "map<string, double> or <string, float>",
        "text": "string",
        "texts": "repeated string",
        "texts by name": "map<string, a message of one repeated string>",
    }[wanted.content]
    return UnreadableSchema(f"{wanted.name} is not {expected}")


# -- the schema's text -----------------------------------------------------------------------------


def _all_of(
    messages: list[_Message], above: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], _Message]]:
    """Every message type with the places that name it."""
    for place, message in enumerate(messages):
        yield (*above, place), message
        yield from _all_of(message.nested, (*above, place))


def _parsed(text: str) -> list[_Message]:
    """The message types of a .proto file."""
    words = iter([match[1] for match in _TOKEN.finditer(text) if match[1] is not None])
    messages, syntax = [], "proto2"
    for word in words:
        match word:
            case "message":
                messages.append(_message(words, syntax))
            case "syntax":
                next(words)
                syntax = next(words).strip("\"'")
                if syntax not in ("proto2", "proto3"):
                    raise UnreadableSchema(f"syntax {syntax}, not proto2 or proto3")
            case "edition":
                raise UnreadableSchema("an edition, not proto2 or proto3")
            case ";":
                continue
            case _:
                _skip(word, words)
    return messages


def _message(words: Iterator[str], syntax: str) -> _Message:
    message = _Message(next(words))
    if next(words) != "{":
        raise ValueError
    _body(message, words, syntax, label="implicit" if syntax == "proto3" else "explicit")
    return message


def _body(message: _Message, words: Iterator[str], syntax: str, *, label: str) -> None:
    """The declarations up to the closing bracket; those of a `oneof` belong to the message."""
    for word in words:
        match word:
            case "}":
                return
            case ";":
                continue
            case "message":
                message.nested.append(_message(words, syntax))
            case "oneof":
                next(words), next(words)
                _body(message, words, syntax, label="explicit")
            case "option" | "reserved" | "extensions" | "enum" | "extend":
                _skip(word, words)
            case "map":
                _, key, _, value, _ = (next(words) for _ in range(5))
                _field(message, words, value, "map" if key == "string" else "map by number")
            case "optional" | "required":
                _field(message, words, next(words), "explicit")
            case "repeated":
                _field(message, words, next(words), "repeated")
            case _:
                _field(message, words, word, label)
    raise ValueError  # no closing bracket


def _field(message: _Message, words: Iterator[str], type_: str, label: str) -> None:
    if type_ == "group":
        raise UnreadableSchema("a group, which proto3 has no more")
    name, equals, number = next(words), next(words), next(words)
    if equals != "=":
        raise ValueError
    message.fields[name] = _Declared(int(number, 0), type_, label)
    _skip("", words)


def _skip(word: str, words: Iterator[str]) -> None:
    """Pass over a statement: up to its semicolon, or to the end of its block."""
    depth = 0
    for part in words:
        depth += (part in "{[") - (part in "}]")
        if depth == 0 and (part == ";" or (part == "}" and word in _BLOCKS)):
            return
    raise ValueError
