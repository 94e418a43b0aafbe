"""What does a record of a registry's schema come to, and which schemas are refused?"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from fractions import Fraction

import fastavro
import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig
from streamdp.core.grid import UNIT
from streamdp.ports import Partition, Records
from streamdp.service.batches import decoded_records, joined
from streamdp.service.renewed_formats import RenewedFormats
from streamdp.testing.formats import check_format
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import configure, factory_of
from streamdp.wire.renewals import MOST_RENEWAL_BYTES, Renewal
from streamdp_adapters.registry.fields import RecordField
from streamdp_adapters.registry.formats import (
    SchemaFactory,
    SchemaFormat,
)
from streamdp_adapters.registry.schemas import Schema, held
from tests.wire.test_formats import nested

ACTIONS = ["a", "b", "c"]
NULL = [float("nan")] * 3
SOURCE = {"registry": "http://localhost", "subject": "feedback-value"}


def avro(*fields: tuple[str, object]) -> str:
    table = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Event", "fields": table})


def array(items: object) -> object:
    return {"type": "array", "items": items}


def record_type(name: str, *types: object) -> object:
    table = [{"name": f"of_{at}", "type": kind} for at, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": table}


DOUBLES = avro(("losses", array("double")))
FLOATS = avro(("losses", array("float")))
LATER = avro(("who", ["null", "string"]), ("losses", array("double")), ("note", "string"))
PROTO = """
    // the shop's events
    syntax = "proto3"; package shop; import "other.proto";
    option java_package = "x";
    message Event { reserved 7; repeated double losses = 1 [packed = true]; string who = 2;
      oneof what { double reward = 3; string other = 4; }
      message Inner { repeated float losses = 5; } enum Kind { A = 0; } }
    message Named { map<string, double> losses = 1; other.Thing thing = 9; }
"""
TEXTS = {"avro": DOUBLES, "protobuf": PROTO, "json_schema": "{}"}
KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}


def holds(text: str, kind: str, *, number: int = 1, since: int = 0) -> Renewal:
    return held(Schema(number, kind, text), since=since)


def losses(name: str, *texts: str, layout: str = "list") -> SchemaFormat:
    made = configure(name, actions=ACTIONS, options={**SOURCE, "layout": layout})
    assert isinstance(made, SchemaFormat)
    schemas = [holds(text, KINDS[name], number=at + 1) for at, text in enumerate(texts)]
    return made.resumed(schemas) if texts else made


def feedback(name: str, *texts: str, most: Fraction | None = None) -> SchemaFormat:
    of = Feedback(tuple(ACTIONS), content="reward", most=most)
    made = configure(name, feedback=of, options=SOURCE)
    assert isinstance(made, SchemaFormat)
    schemas = [holds(text, KINDS[name], number=at + 1) for at, text in enumerate(texts)]
    return made.resumed(schemas) if texts else made


def told(format_: SchemaFormat, values: list[bytes | None]) -> NDArray[np.float64]:
    """The rewards of records of the first action; NaN where one is unusable."""
    read = format_.decode(values, [[("streamdp-action", b"a")]] * len(values))
    return np.where(read.unusable, np.nan, 0.5 + read.content["gain"] / UNIT)


def record(schema: str, content: object, *, number: int = 1) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), content)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def rows(format_: SchemaFormat, *values: bytes | None) -> list[list[float]]:
    """The losses; a row with a number that is none is null as a whole."""
    table = format_.decode(values).content["losses"]
    return [[round(float(x), 6) for x in row] if np.isfinite(row).all() else NULL for row in table]


MAPS = avro(("losses", {"type": "map", "values": "double"}))
FORMATS = [
    losses("avro", DOUBLES),
    losses("avro", FLOATS),
    losses("avro", avro(("losses", array("double")), ("n", {"type": "int", "logicalType": "date"}))
           .replace('"n"', '"n", "default": 1')),
    losses("avro", MAPS, layout="mapping"),
    losses("protobuf", PROTO),
    losses("protobuf", PROTO, layout="mapping"),
    losses("json_schema", "{}"),
    losses("json_schema", "{}", layout="mapping"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("format_", FORMATS, ids=repr)
def test_every_format_keeps_the_rules(format_: SchemaFormat) -> None:
    check_format(format_, examples=15)


@pytest.mark.slow
@pytest.mark.parametrize(
    "format_",
    [
        feedback("avro", avro(("reward", "double"))),
        feedback("protobuf", PROTO),
        feedback("json_schema", "{}"),
        feedback("avro", avro(("reward", "double")), most=Fraction(200)),
        feedback("json_schema", "{}", most=Fraction(200)),
    ],
    ids=repr,
)
def test_every_feedback_format_keeps_the_rules(format_: SchemaFormat) -> None:
    check_format(format_, examples=15)


def test_each_record_is_read_by_the_schema_that_it_names() -> None:
    format_ = losses("avro", DOUBLES, FLOATS, LATER)
    later = {"who": "x", "losses": [1, 0.5, 0], "note": "y"}
    values = [
        record(FLOATS, {"losses": [0.25, 0.5, 0.75]}, number=2),
        record(DOUBLES, {"losses": [0.1, 2.0, -1.0]}),
        record(LATER, later, number=3),
        record(DOUBLES, {"losses": [0.1, 0.2]}),
        record(DOUBLES, {"losses": [0.1, float("inf"), 0.3]}),
        record(DOUBLES, {"losses": [0.1, 0.2, 0.3]}, number=9),
        None,
    ]
    assert np.array_equal(
        np.array(rows(format_, *values)),
        [[0.25, 0.5, 0.75], [0.1, 1, 0], [1, 0.5, 0], *[NULL] * 4],
        equal_nan=True,
    )


def test_what_comes_after_the_field_is_not_read() -> None:
    """So a record means the same whether its numbers are taken by their place or read."""
    format_ = losses("avro", avro(("losses", array("double")), ("note", "string")))
    whole = record(LATER, {"who": None, "losses": [0, 0.5, 1], "note": "n"})[:5]
    numbers = struct.pack("<3d", 0, 0.5, 1)
    for tail in (b"", b"\x02n", b"\xff" * 9):
        assert rows(format_, whole + b"\x06" + numbers + b"\0" + tail) == [[0, 0.5, 1]]
    two_blocks = b"\x02" + numbers[:8] + b"\x03\x20" + numbers[8:] + b"\0"  # one with its size
    assert rows(format_, whole + two_blocks) == [[0, 0.5, 1]]


@given(st.binary(max_size=40), st.integers(0, 30), st.sampled_from(["avro", "protobuf"]))
@settings(max_examples=150, deadline=None, database=None, derandomize=True)
def test_taking_numbers_by_their_place_reads_what_reading_reads(
    junk: bytes, at: int, name: str
) -> None:
    format_ = losses(name, TEXTS[name])
    good = format_.encode(np.array([[0.1, 0.5, 0.9]], dtype=np.float32))
    for value in (good, good[:at] + junk, good[:at] + junk + good[at + len(junk) :], good + junk):
        content = format_.reading.content(value)
        fits = isinstance(content, list) and len(content) == 3 and np.isfinite(content).all()
        read = np.clip(np.array(content if fits else NULL), 0, 1)
        assert np.allclose(rows(format_, value)[0], read, atol=2e-6, equal_nan=True)


GOOD = b'{"losses": [0.25, 0.5, 1]}'
IN_JSON = [
    b"\0\0\0\0\x01" + GOOD,
    b"\0\0\0\0\x02" + GOOD,
    b"\0\0\0\0\x01{}",
    b"\0\0\0\0\x01" * 2 + GOOD,  # the prefix twice
    b"\0\0\0\0\x07" + GOOD,  # a schema that does not hold
    b"\0\0\0\0\x01" + nested(200, GOOD),
    GOOD,  # no prefix
    b"     " + GOOD,  # white space in its place
    b"",
    None,
]


@example([IN_JSON[5]], 2)  # all of one schema, which are cut at once
@example([IN_JSON[5], IN_JSON[1]], 0)
@given(st.lists(st.sampled_from(IN_JSON), max_size=6), st.integers(0, 3))
@settings(max_examples=300, deadline=None, database=None, derandomize=True)
def test_a_batch_in_json_reads_what_its_records_read(
    values: list[bytes | None], ordinary: int
) -> None:
    """Whatever stands beside it: a record is what plain JSON says of it without its five bytes."""
    format_, plain = losses("json_schema", "{}", "{}"), configure("json", actions=ACTIONS)
    values += [IN_JSON[0]] * ordinary
    known = {b"\0\0\0\0\x01", b"\0\0\0\0\x02"}
    texts = [value[5:] if value is not None and value[:5] in known else None for value in values]
    expected = plain.decode(texts).content["losses"]
    assert np.array_equal(format_.decode(values).content["losses"], expected, equal_nan=True)
    assert [value is not None and value[5:] == GOOD and value[:5] in known for value in values] == (
        np.isfinite(expected).all(axis=1).tolist()
    )


@pytest.mark.parametrize("format_", [*FORMATS[-2:], feedback("json_schema", "{}")], ids=repr)
def test_json_that_is_nested_too_deeply_is_unusable(format_: SchemaFormat) -> None:
    """Whether its losses are read or an operator asks: a decoder's own limit is its stack's."""
    good = b"\0\0\0\0\x01" + (
        b'{"reward":1}' if format_.feedback is not None
        else b'{"losses":{"a":1}}' if format_.layout == "mapping" else GOOD
    )  # fmt: skip
    values = [nested(depth, good) for depth in (2, 128, 129, 600)]
    decoded = format_.decode(values, [[]] * len(values))
    assert decoded.unusable.tolist() == [False, False, True, True]
    assert [format_.explain(value) is None for value in values] == [True, True, False, False]


def test_protobuf_records_name_their_message() -> None:
    format_ = losses("protobuf", PROTO)
    numbers = struct.pack("<3f", 0, 0.5, 1)
    head, packed = b"\0\0\0\0\1", b"\x2a\x0c" + numbers
    assert rows(format_, head + b"\x04\x00\x00" + packed) == [[0, 0.5, 1]]  # Event.Inner
    assert rows(format_, head + b"\x02\x00" + b"\x0a\x18" + struct.pack("<3d", 0, 0.5, 1)) == [
        [0, 0.5, 1]
    ]
    for place in (b"\x02\x02", b"\x02\x0a", b"\xff" * 9, b"\x04\x00", b""):
        assert np.isnan(rows(format_, head + place + packed)).all()


def test_a_reward_of_nothing_is_a_reward() -> None:
    by_proto, by_avro = feedback("protobuf", PROTO), feedback("avro", avro(("reward", "float")))
    for format_ in (by_proto, by_avro):
        lengths = set()
        for number in (0.0, 1.0, 0.5):
            value = format_.encode(np.array([number], dtype=np.float32), played=[0])
            assert told(format_, [value]).tolist() == [number]
            lengths.add(len(value))
        assert len(lengths) == 1  # a length is public
    assert np.isnan(told(by_proto, [b"\0\0\0\0\1\0"])).all()


REFUSED = {
    "a union, which shows by its length whether it is null": (
        "avro", avro(("losses", array(["null", "double"]))), "losses is not array of float"),
    "integers, which show their size": ("avro", avro(("losses", array("long"))), "not array of"),
    "another type": ("avro", avro(("losses", "double")), "not array of"),
    "no such field": ("avro", avro(("loss", array("double"))), "no record with a field losses"),
    "no schema": ("avro", "{", "not an Avro schema"),
    "a type that contains itself": (
        "avro",
        json.dumps({"type": "record", "name": "Event", "fields": [
            {"name": "next", "type": ["null", "Event"]},
            {"name": "losses", "type": array("double")}]}),
        "a type that contains itself"),
    "items without bytes": (
        "avro", avro(("free", array("null")), ("losses", array("double"))), "without bytes"),
    "empty records": (
        "avro", avro(("free", array({"type": "record", "name": "E", "fields": []})),
                     ("losses", array("double"))), "without bytes"),
    "an error that contains itself": (
        "avro", avro(("free", {"type": "error", "name": "E", "fields": [
            {"name": "cause", "type": ["null", "E"]}]}), ("losses", array("double"))),
        "a type that contains itself"),
    "empty errors": (
        "avro", avro(("free", array({"type": "error", "name": "E", "fields": []})),
                     ("losses", array("double"))), "without bytes"),
    "records of two records of two": (
        "avro", avro(("a", record_type("A", "null")), ("b", record_type("B", "A", "A")),
                     ("c", ["int", record_type("C", "B", "B")]), ("losses", array("double"))),
        "without bytes"),
    "nothing": ("avro", avro(("free", "null"), ("losses", array("double"))), "without bytes"),
    "fixed bytes, none of them": (
        "avro", avro(("free", {"type": "fixed", "name": "F", "size": 0}),
                     ("losses", array("double"))), "without bytes"),
    "deep types": (
        "avro", avro(*[(f"a{at}", record_type(f"A{at}", f"A{at - 1}" if at else "int"))
                       for at in range(64)], ("losses", array("double"))), "more than 64 others"),
    "proto: no such field": ("protobuf", "message A { optional int32 b = 1; }", "no message"),
    "proto: integers": ("protobuf", "message A { repeated int32 losses = 1; }", "not repeated"),
    "proto: no schema": ("protobuf", "message A { repeated", "not a Protobuf schema"),
    "proto: an edition": ("protobuf", 'edition = "2023";', "an edition"),
    "another kind": ("json_schema", "AVRO", "of type AVRO, not JSON"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_schema_that_cannot_be_read_safely_is_refused(name: str, text: str, said: str) -> None:
    kind = "AVRO" if text == "AVRO" else KINDS[name]
    fault = losses(name).reading.fault(Schema(1, kind, text))
    assert fault is not None
    assert said in fault


def test_a_number_that_vanishes_when_it_is_nothing_is_refused() -> None:
    text = 'syntax = "proto3"; message A { double reward = 1; }'
    fault = feedback("protobuf").reading.fault(Schema(1, "PROTOBUF", text))
    assert fault is not None
    assert "0 is not written" in fault
    optional = text.replace("double", "optional double")
    assert feedback("protobuf").reading.fault(Schema(1, "PROTOBUF", optional)) is None


def test_a_schema_too_long_for_the_state_is_refused() -> None:
    text = DOUBLES[:-1] + " " * MOST_RENEWAL_BYTES + "}"
    assert losses("avro").reading.fault(Schema(1, "AVRO", text)) == "too long for the state"


def test_hostile_lengths_in_avro_are_null_and_quick() -> None:
    format_ = losses("avro", DOUBLES, LATER)
    huge = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2⁶³ − 1
    for start in (b"\0\0\0\0\1", b"\0\0\0\0\2\2", b"\0\0\0\0\2"):
        for tail in (huge, huge + huge, b"\x01" + huge, b"\xff" * 12, b""):
            assert np.isnan(rows(format_, start + tail)).all()


@pytest.mark.parametrize("before", [FLOATS, avro(("who", "string"), ("losses", array("float")))])
def test_numbers_that_signal_are_null_without_a_word(before: str) -> None:
    """A warning that depends on content would be a line of the log."""
    signalling = bytes.fromhex("0100807f")
    start = b"" if before == FLOATS else b"\0"
    value = b"\0\0\0\0\1" + start + b"\6" + signalling * 3 + b"\0"
    assert np.isnan(rows(losses("avro", before), value)).all()


@pytest.mark.parametrize("field", ["losses", "items", "item", "categories"])
def test_protobuf_text_that_is_not_utf8_is_null(field: str) -> None:
    """It is content, so it must neither raise nor become another text."""
    text = """message A { map<string, double> losses = 1; map<string, Texts> items = 2;
        optional string item = 3; repeated string categories = 4; }
        message Texts { repeated string of = 1; }"""
    number, content, inside = {
        "losses": (1, "numbers by name", b"\x0a\x01%b\x11" + bytes(8)),
        "items": (2, "texts by name", b"\x0a\x01%b\x12\x03\x0a\x01%b"),
        "item": (3, "text", b"%b"),
        "categories": (4, "texts", b"%b"),
    }[field]
    factory = factory_of("protobuf")
    assert isinstance(factory, SchemaFactory)
    reading = factory.reading(RecordField(field, content), SOURCE)  # type: ignore[arg-type]
    reading = reading.resumed([holds(text, "PROTOBUF")])

    def told(*parts: bytes) -> bytes | None:
        said = inside % parts
        head = b"\0\0\0\0\1\0" + bytes([number << 3 | 2, len(said)])
        return reading.as_json([head + said])[0]

    places = inside.count(b"%b")
    assert told(*[b"a"] * places) is not None
    for bad in range(places):
        assert told(*(b"\xff" if at == bad else b"a" for at in range(places))) is None
    if field == "losses":
        value = b"\0\0\0\0\1\0\x0a\x0c\x0a\x01\xff\x11" + bytes(8)
        assert np.isnan(rows(losses("protobuf", text, layout="mapping"), value)).all()


@pytest.mark.parametrize("start", [5, 6, 7])
def test_a_schema_holds_from_its_position_on_and_never_before(start: int) -> None:
    value = record(DOUBLES, {"losses": [0, 0, 0]}, number=2)
    other = record(DOUBLES, {"losses": [1, 1, 1]})
    saved = [holds(DOUBLES, "AVRO"), holds(DOUBLES, "AVRO", number=2, since=7)]
    formats = RenewedFormats(losses("avro"), saved)
    offsets = range(start, start + 4)
    records = Records(
        Partition("home", 0), start, offsets, [b"k"] * 4, [value, other, value, value], start + 4
    )
    parts = list(formats.cut(records))
    read = [row for format_, part in parts for row in rows(format_, *part.values)]
    assert read == [NULL if at < 7 else [0, 0, 0] for at in offsets[:1]] + [[1, 1, 1]] + [
        NULL if at < 7 else [0, 0, 0] for at in offsets[2:]
    ]
    assert [part.start for _, part in parts] == sorted({start, 7})
    assert [part.next_offset for _, part in parts][-1] == start + 4


def test_what_is_learned_before_a_saved_renewal_holds_is_read_again_the_same() -> None:
    """A renewal is saved with records that were read ahead; a restart begins before them."""
    saved = [holds(DOUBLES, "AVRO"), holds(DOUBLES, "AVRO", number=2, since=7)]
    values = [record(DOUBLES, {"losses": [1, 0, 1]}, number=3 - at % 3) for at in range(6)]
    records = Records(Partition("home", 0), 5, range(5, 11), [b"k"] * 6, values, 11)

    def read(formats: RenewedFormats[SchemaFormat]) -> list[list[float]]:
        return [
            row for format_, part in formats.cut(records) for row in rows(format_, *part.values)
        ]

    made = losses("avro")
    live = RenewedFormats(made, saved)
    made.reading.registry.fetched.schemas = (Schema(3, "AVRO", DOUBLES),)
    live.renew(5)
    (new,) = live.unsaved()
    assert read(live) == read(RenewedFormats(made, [*saved, new]))
    assert NULL not in read(live)[2:]


@pytest.mark.parametrize("of", ["losses", "a reward"])
def test_no_batch_reads_a_record_by_a_schema_that_did_not_hold_yet(of: str) -> None:
    """It takes its slot as a null one, as it comes and again."""
    text = DOUBLES if of == "losses" else avro(("reward", "double"))
    made = losses("avro") if of == "losses" else feedback("avro")
    formats = RenewedFormats(made, [holds(text, "AVRO", since=7)])
    value = record(text, {"losses": [0, 0, 0], "reward": 1})
    records = Records(
        Partition("home", 0), 5, range(5, 10), [b"k"] * 5, [value] * 5, 10,
        headers=[[("streamdp-action", b"a")]] * 5, timestamps=[0] * 5,
    )  # fmt: skip
    batch, _ = joined(
        [decoded_records(*part) for part in formats.cut(records)], most_key_bytes=None
    )
    assert batch.unusable is not None
    assert batch.unusable.tolist() == [True, True, False, False, False]


def test_an_id_keeps_its_first_schema() -> None:
    reading = losses("avro", DOUBLES).reading
    reading.registry.fetched.schemas = (Schema(1, "AVRO", FLOATS), Schema(2, "AVRO", FLOATS))
    renewed = reading.renewed(12)
    assert [(of.number, of.content["text"], of.since) for of in renewed.renewals] == [
        (1, DOUBLES, 0), (2, FLOATS, 12),
    ]  # fmt: skip
    assert renewed.renewed(30) is renewed


CONTENTS: dict[str, tuple[str, str, str, object]] = {
    "an item": ("item", "text", avro(("item", "string")), "x"),
    "categories": ("categories", "texts", avro(("categories", array("string"))), ["a", "b"]),
    "lists": ("items", "texts by name", avro(("items", {"type": "map", "values": array("string")})),
              {"a": ["x", "y"], "b": []}),
    "predictions": ("predictions", "numbers by name",
                    avro(("predictions", {"type": "map", "values": "double"})), {"a": 0.5}),
    "a truth": ("truth", "number", avro(("truth", "double")), 2.5),
}  # fmt: skip
PROTOS = {
    "an item": "message A { optional string item = 1; }",
    "categories": "message A { repeated string categories = 3; }",
    "lists": "message A { map<string, B.List> items = 1; } message B { message List "
    "{ repeated string of_them = 4; } }",
    "predictions": 'syntax = "proto3"; message A { map<string, double> predictions = 1; }',
    "a truth": "message A { required double truth = 1; }",
}


@pytest.mark.parametrize("case", CONTENTS)
@pytest.mark.parametrize("name", ["avro", "protobuf", "json_schema"])
def test_contents_of_requests_and_outcomes_become_their_json(case: str, name: str) -> None:
    field, content, text, said = CONTENTS[case]
    text = {"avro": text, "protobuf": PROTOS[case], "json_schema": "{}"}[name]
    factory = factory_of(name)
    assert isinstance(factory, SchemaFactory)
    reading = factory.reading(RecordField(field, content), SOURCE)  # type: ignore[arg-type]
    reading = reading.resumed([holds(text, KINDS[name], since=3)])
    value = reading.write(said)
    assert reading.explain(value) is None
    unknown, good, none = reading.as_json([b"\0\0\0\0\7" + value[5:], value, None])
    assert unknown is none is None
    assert good is not None
    assert msgspec.json.decode(good) == {field: said}


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "no registry": ({"registry": None}, "format.registry: missing"),
    "a password in the address": ({"registry": "http://a:b@c"}, "without a password"),
    "another scheme": ({"registry": "ftp://c"}, "format.registry: not an address"),
    "a port that is none": ({"registry": "http://c:99999"}, "format.registry: not an address"),
    "too often": ({"refresh": 0}, "format.refresh: not usable"),
    "a user without a password": ({"user": "u"}, "both or neither"),
    "an unknown option": ({"prefix": "none"}, "unknown option"),
}


@pytest.mark.parametrize(("options", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_options_are_refused(options: dict[str, object], said: str) -> None:
    given = {name: value for name, value in {**SOURCE, **options}.items() if value is not None}
    with pytest.raises(InvalidConfig, match=said):
        configure("avro", actions=ACTIONS, options=given)


def test_an_action_in_the_record_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="would show by its length"):
        configure("avro", feedback=Feedback(tuple(ACTIONS), played="value"), options=SOURCE)


def test_a_record_that_a_schema_needs_more_for_is_not_written() -> None:
    with pytest.raises(InvalidConfig, match="its records need more"):
        losses("avro", LATER).encode(np.zeros((1, 3), dtype=np.float32))
    with pytest.raises(InvalidConfig, match="no schema to write with"):
        losses("avro").encode(np.zeros((1, 3), dtype=np.float32))


EXPLAINED: dict[str, tuple[Callable[[bytes], bytes | None], str]] = {
    "no value": (lambda good: None, "no value"),
    "no prefix": (lambda good: b"{}", "no schema's id in front"),
    "an unknown id": (lambda good: b"\0\0\0\0\x07" + good[5:], "schema 7, not one of 1"),
    "cut off": (lambda good: good[:-9], "not read as losses by its schema"),
}


@pytest.mark.parametrize(("spoil", "said"), EXPLAINED.values(), ids=EXPLAINED.keys())
def test_an_operator_is_told_why_a_record_is_unusable(
    spoil: Callable[[bytes], bytes | None], said: str
) -> None:
    format_ = losses("avro", DOUBLES)
    good = format_.encode(np.zeros((1, 3), dtype=np.float32))
    assert format_.explain(good) is None
    assert said in (format_.explain(spoil(good)) or "")
