"""What does a record's loss vector come to, in each format? And does each keep the rules?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import hypothesis
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig
from streamdp.testing.formats import check_format
from streamdp.wire import configure, formats, names, records
from streamdp.wire.decoded import Decoded, Headers, Setting, Value
from streamdp.wire.formats import Format
from streamdp.wire.json_format import JsonFormat, short_decimals
from streamdp.wire.nesting import MAX_NESTING, too_deep
from streamdp.wire.raw_format import RawFormat
from streamdp.wire.renewals import unchanged

EXAMPLES = 25 * int(os.environ.get("STREAMDP_SOAK", "1"))
"""For each rule; so many catch every mutant below."""

ACTIONS = ("a", "b", "c")
LIST = JsonFormat(actions=ACTIONS)
MAPPING = JsonFormat(actions=ACTIONS, layout="mapping")
FRAMES = RawFormat(actions=ACTIONS, scalar="float32", frames=True)

SHIPPED: list[Format] = [
    LIST,
    MAPPING,
    JsonFormat(actions=ACTIONS, prefix="confluent"),
    JsonFormat(actions=ACTIONS, padding="fixed"),
    JsonFormat(actions=ACTIONS, layout="mapping", padding="fixed"),
    JsonFormat(actions=('quo"te', "back\\slash", "ünïcode\n"), layout="mapping"),
    RawFormat(actions=ACTIONS, scalar="float32"),
    RawFormat(actions=ACTIONS, scalar="float32", prefix="confluent"),
    FRAMES,
    RawFormat(actions=ACTIONS, scalar="float32", frames=True, prefix="confluent"),
    RawFormat(actions=ACTIONS, scalar="float16"),
    RawFormat(actions=ACTIONS, scalar="float16", frames=True),
]


def losses(format_: Format, *values: Value) -> list[list[float]]:
    return [[float(loss) for loss in row] for row in format_.decode(values).content["losses"]]


def is_null(rows: Sequence[Sequence[float]]) -> list[bool]:
    return [not bool(np.isfinite(row).all()) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("format_", SHIPPED, ids=repr)
def test_every_shipped_format_keeps_the_rules(format_: Format) -> None:
    check_format(format_, examples=EXAMPLES)


# JSON: what a record's loss is


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b'{"losses":[0.25,0,1]}', [0.25, 0, 1]),
        (b' \n{"losses" : [ 2.5e-1 , 0 , 1 ] } \t\n ', [0.25, 0, 1]),
        (b'{"event_id":7,"ts":"noon","more":{"x":[1]},"losses":[0.25,0,1]}', [0.25, 0, 1]),
        (b'{"losses":[-3,1e300,7]}', [0, 1, 1]),
        (b'{"losses":[1e-400,-0.0,123456789012345678901234567890]}', [0, 0, 1]),
        (b'{"losses":[0,0,0],"losses":[0.25,0,1]}', [0.25, 0, 1]),
    ],
)
def test_a_usable_list(event: bytes, expected: list[float]) -> None:
    assert losses(LIST, event) == [expected]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b'{"losses":{"a":0.25,"b":0,"c":1}}', [0.25, 0, 1]),
        (b'{"losses":{"c":1,"a":0.25,"b":0}}', [0.25, 0, 1]),
        (b'{"losses":{"\\u0061":0.25,"c":1}}', [0.25, 0.5, 1]),
        (b'{"losses":{}}', [0.5, 0.5, 0.5]),
        (b'{"losses":{"a":0,"z":0.3,"y":"text","x":[1,{}],"w":1e999}}', [0, 0.5, 0.5]),
        (b'{"losses":{"a":0,"a":0.25}}', [0.25, 0.5, 0.5]),
        (b'{"losses":{"a":1e300,"b":-1}}', [1, 0, 0.5]),
    ],
)
@pytest.mark.parametrize("wide", [False, True])
def test_a_usable_mapping(event: bytes, expected: list[float], wide: bool) -> None:
    """The reader for very many actions and the one for few agree."""
    others = tuple(f"other-{at}" for at in range(300)) if wide else ()
    format_ = JsonFormat(actions=ACTIONS + others, layout="mapping")
    assert losses(format_, event) == [expected + [0.5] * len(others)]


@pytest.mark.parametrize(
    "content",
    [
        b"[0,1]",
        b"[0,1,0,1]",
        b"[]",
        b"[0,1,true]",
        b'[0,1,"0.5"]',
        b"[0,1,null]",
        b"[0,1,[0]]",
        b"[0,1,NaN]",
        b"[0,1,Infinity]",
        b"[0,1,1e400]",
        b"[0,1," + b"9" * 400 + b"]",
        b"[0,1,0x1]",
        b"[0,1,.5]",
        b"[0,1,]",
        b'{"a":0,"b":0,"c":true}',
        b'{"a":0,"b":0,"c":null}',
        b'{"a":0,"b":0,"c":"0"}',
        b'{"a":0,"b":0,"c":1e400}',
        b"null",
        b"0.5",
        b'"text"',
    ],
)
def test_unusable_content_is_null(content: bytes) -> None:
    event = b'{"losses":' + content + b"}"
    wide = JsonFormat(actions=ACTIONS + tuple(f"o{at}" for at in range(300)), layout="mapping")
    for format_ in (LIST, MAPPING, wide):
        assert is_null(losses(format_, event)) == [True]
        assert format_.explain(event)


@pytest.mark.parametrize(
    "event",
    [
        None,
        b"",
        b"[0,1,0]",
        b'{"Losses":[0,1,0]}',
        b'{"losses":[0,1,0]} x',
        b'{"losses":[0,1,0]}\0',
        b'{"losses":[0,1,0]}{"losses":[0,1,0]}',
        b'{"losses":[0,1,0]},{"losses":[0,1,0]}',
        b'\xef\xbb\xbf{"losses":[0,1,0]}',
        b"{'losses':[0,1,0]}",
        b'{"losses":[0,1,0],"losses":7}',
    ],
)
def test_what_is_no_event_is_null(event: Value) -> None:
    assert is_null(losses(LIST, event)) == [True]
    assert LIST.explain(event)


def test_list_and_mapping_are_never_sniffed() -> None:
    a_list, a_mapping = b'{"losses":[0,1,0]}', b'{"losses":{"a":0,"b":1,"c":0}}'
    assert is_null(losses(LIST, a_list, a_mapping)) == [False, True]
    assert is_null(losses(MAPPING, a_list, a_mapping)) == [True, False]


def test_halves_of_an_event_never_become_one() -> None:
    """Records that are one event, or three, when joined: each is judged alone."""
    first, second = b'{"losses":[0,1,0', b']},{"losses":[0,1,0]}'
    assert is_null(losses(LIST, first, second, first + second)) == [True, True, True]


# JSON: a record's loss is a function of the record, not of the decoder's caller


def nested(depth: int, event: bytes = b'{"losses":[0,1,0]}') -> bytes:
    """A good event with a deep field that nobody reads."""
    end = event.rindex(b"}")
    return event[:end] + b',"x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + event[end:]


def from_a_deep_stack(depth: int, event: bytes) -> list[list[float]]:
    return losses(LIST, event) if depth == 0 else from_a_deep_stack(depth - 1, event)


@pytest.mark.parametrize("depth", [2, 100, 128, 129, 300, 600, 900, 100_000])
def test_nesting_is_judged_alike_from_any_stack(depth: int) -> None:
    """A recursive decoder alone refuses 600 levels here and not from the top of the program."""
    event = nested(depth)
    expected = [depth > MAX_NESTING]
    assert is_null(losses(LIST, event)) == expected
    assert is_null(from_a_deep_stack(400, event)) == expected
    assert (LIST.explain(event) is not None) == expected[0]


def test_a_decoder_without_our_limit_depends_on_the_stack() -> None:
    """The mutant: this is why `nesting` exists."""
    event = nested(600)

    def decode(depth: int) -> object:
        return msgspec.json.decode(event) if depth == 0 else decode(depth - 1)

    assert decode(0)
    with pytest.raises(RecursionError):
        decode(400)


def test_brackets_in_strings_and_side_by_side_are_not_nesting() -> None:
    text = b'{"losses":[0,1,0],"x":"' + b'[{\\"' * 1000 + b'"}'
    wide = b'{"losses":[0,1,0],"x":[' + b"[]," * 1000 + b"[]]}"
    assert not too_deep(text)
    assert not too_deep(wide)
    assert is_null(losses(LIST, text, wide)) == [False, False]


# Raw rows


def raw(*numbers: float) -> bytes:
    return np.array(numbers, dtype="<f4").tobytes()


def test_raw_rows_come_back_as_they_are() -> None:
    format_ = RawFormat(actions=ACTIONS, scalar="float32")
    assert losses(format_, raw(0.25, 0, 1), raw(-1, 2, 1e30)) == [
        [0.25, 0, 1],
        np.array([-1, 2, 1e30], dtype=np.float32).tolist(),
    ]
    half = RawFormat(actions=ACTIONS, scalar="float16")
    assert losses(half, np.array([0.25, 0, 1], dtype="<f2").tobytes()) == [[0.25, 0, 1]]


def test_without_frames_every_record_is_one_slot() -> None:
    format_ = RawFormat(actions=ACTIONS, scalar="float32")
    values = [raw(0, 1, 0), raw(0, 1, 0, 0, 1, 0), raw(0, 1), b"", None, b"x" * 1000]
    decoded = format_.decode(values)
    assert decoded.slots.tolist() == [1] * 6
    assert is_null(decoded.content["losses"].tolist()) == [False, True, True, True, True, True]


@pytest.mark.parametrize(
    ("length", "slots", "usable"),
    [(0, 1, 0), (1, 1, 0), (11, 1, 0), (12, 1, 1), (13, 1, 0), (23, 1, 0), (24, 2, 2), (37, 3, 0)],
)
@pytest.mark.parametrize("prefix", ["none", "confluent"])
def test_a_frames_slots_follow_from_its_length(
    length: int, slots: int, usable: int, prefix: str
) -> None:
    """n = max(1, ⌊bytes / row bytes⌋), and no multiple: all of them null."""
    format_ = configure("float32", actions=ACTIONS, options={"frames": True, "prefix": prefix})
    skip = 5 if prefix == "confluent" else 0
    decoded = format_.decode([bytes(length + skip), bytes(12 + skip)])
    assert decoded.slots.tolist() == [slots, 1]
    assert is_null(decoded.content["losses"].tolist()) == [usable == 0] * slots + [False]


def test_a_bad_row_nulls_only_itself() -> None:
    frame = raw(0, 1, 0, np.nan, 0, 0, 1, 0, 1, 0, np.inf, 0)
    assert is_null(losses(FRAMES, frame)) == [False, True, False, True]
    assert FRAMES.explain(frame) == "2 rows with NaN or infinity, the first is 1"


def test_confluents_prefix_is_cut_off_and_never_judged() -> None:
    """Were it judged, five bytes could null every row of a frame."""
    format_ = RawFormat(actions=ACTIONS, scalar="float32", frames=True, prefix="confluent")
    for prefix in (b"\0\0\0\0\7", b"\1\2\3\4\5"):
        decoded = format_.decode([prefix + raw(0, 1, 0, 1, 0, 1), prefix + raw(0, 1, 0), prefix])
        assert decoded.slots.tolist() == [2, 1, 1]
        assert is_null(decoded.content["losses"].tolist()) == [False, False, False, True]
    json = JsonFormat(actions=ACTIONS, prefix="confluent")
    assert losses(json, b"\1\2\3\4\5" + b'{"losses":[0,1,0]}') == [[0, 1, 0]]


# Encoding


def test_records_carry_the_rows_in_order() -> None:
    rows = np.linspace(0, 1, 21, dtype=np.float32).reshape(7, 3)
    frames = list(records(FRAMES, rows, rows_per_record=3))
    assert [len(frame) for frame in frames] == [36, 36, 12]
    for format_, values in ((FRAMES, frames), (LIST, list(records(LIST, rows)))):
        assert np.array_equal(format_.decode(values).content["losses"], rows)


LONGEST = 1.746873204e-05
"""No float32 in [0, 1] has more characters: 0.000017468732039560564. If it were wider than the
width, it would halt an assembly."""


def test_fixed_padding_makes_all_lengths_equal() -> None:
    """Also for the numbers that take most characters."""
    awkward = np.array([0, 1, 0.1, 1e-45, 1.1754944e-38, LONGEST], dtype=np.float32)
    for layout in ("list", "mapping"):
        options = {"layout": layout, "padding": "fixed"}
        format_ = configure("json", actions=ACTIONS, options=options)
        rows = np.concatenate([awkward.reshape(2, 3), np.full((1, 3), LONGEST, np.float32)])
        lengths = {len(value) for value in records(format_, rows)}
        assert len(lengths) == 1
        assert np.array_equal(format_.decode(list(records(format_, rows))).content["losses"], rows)


def test_short_decimals_read_back_exactly() -> None:
    rng = np.random.default_rng(4)
    row = np.concatenate([rng.random(2000), rng.random(500) * 1e-6, np.arange(1001) / 1000])
    row = row.astype(np.float32)
    assert np.array_equal(short_decimals(row).astype(np.float32), row)
    assert short_decimals(row)[-1001:].tolist() == [round(at / 1000, 3) for at in range(1001)]


@pytest.mark.parametrize(
    "bad", [[[0, 1]], [[0, 1, np.nan]], [[0, 1, np.inf]], [[0, 1, 1.5]], [[0, -1, 0]], [0, 1, 0]]
)
@pytest.mark.parametrize("format_", [LIST, FRAMES], ids=repr)
def test_a_producers_mistake_is_refused(format_: Format, bad: list[list[float]]) -> None:
    with pytest.raises(InvalidConfig, match="losses"):
        format_.encode(np.array(bad, dtype=np.float32))


def test_very_many_actions() -> None:
    """Beyond 10,000 the list is read by another type, with the same meaning."""
    actions = tuple(f"action-{at}" for at in range(10_001))
    rows = np.linspace(0, 1, len(actions), dtype=np.float32)[None, :]
    for layout in ("list", "mapping"):
        format_ = configure("json", actions=actions, options={"layout": layout})
        short = b'{"losses":[0,1]}' if layout == "list" else b'{"losses":7}'
        decoded = format_.decode([format_.encode(rows), short, None])
        assert np.array_equal(decoded.content["losses"][:1], rows)
        assert np.isnan(decoded.content["losses"][1:]).all()


def test_a_record_has_at_least_one_row() -> None:
    with pytest.raises(InvalidConfig, match="rows_per_record: too few"):
        list(records(FRAMES, np.zeros((2, 3), dtype=np.float32), rows_per_record=0))


def test_nothing_shows_content() -> None:
    """Reprs end up in logs."""
    assert repr(LIST.decode([b'{"losses":[0.25,0,1]}'])) == "Decoded(1 slots of 1 records)"


def test_only_frames_carry_many_rows() -> None:
    two = np.zeros((2, 3), dtype=np.float32)
    assert FRAMES.decode([FRAMES.encode(two)]).slots.tolist() == [2]
    for format_ in (LIST, RawFormat(actions=ACTIONS, scalar="float32")):
        with pytest.raises(InvalidConfig, match="too many rows"):
            format_.encode(two)


# Configuration


def test_is_a_format_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up reads the metadata of every installed package; an unknown name is asked again."""
    asked: list[str] = []

    def entry_points(**of: str) -> list[EntryPoint]:
        asked.append(of.get("name", "every name"))
        return []

    configure("json", actions=["a", "b"])
    monkeypatch.setattr(formats, "entry_points", entry_points)
    configure("json", actions=["a", "b"])
    assert asked == []
    for _ in range(2):
        with pytest.raises(InvalidConfig, match="unknown format"):
            configure("later", actions=["a", "b"])
    assert asked == ["later", "every name"] * 2


def test_formats_are_found_by_name() -> None:
    assert {"json", "float32", "float16"} <= set(names())
    format_ = configure("float16", actions=["a", "b"], options={"frames": True})
    assert format_ == RawFormat(actions=("a", "b"), scalar="float16", frames=True)
    assert format_.settings() == {"name": "float16", "frames": True, "prefix": "none"}


@pytest.mark.parametrize(
    ("name", "actions", "options", "message"),
    [
        (
            "xml",
            ACTIONS,
            {},
            "format.name: unknown format; expected avro or float16 or float32 or j",
        ),
        ("json", ACTIONS, {"frames": True}, "format: unknown option; expected layout"),
        ("json", ACTIONS, {"layout": "table"}, "format.layout: not allowed"),
        ("float32", ACTIONS, {"frames": 1}, "format.frames: not allowed"),
        ("float32", ACTIONS, {"prefix": "avro"}, "format.prefix: not allowed"),
        ("json", ["a"], {}, "actions: not a list of actions; .* got 1 names"),
        ("json", ["a", "a"], {}, "got 2 names, 1 different ones"),
        ("float32", ["a", ""], {}, "actions: not a list"),
    ],
)
def test_a_wrong_configuration_is_refused(
    name: str, actions: Sequence[str], options: Mapping[str, object], message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        configure(name, actions=actions, options=options)


# Does the kit catch what it is there to catch? Each mutant breaks one rule.


@dataclass(frozen=True)
class Mutant:
    """A format that decodes as it is told and does everything else as a good one."""

    good: RawFormat | JsonFormat
    name: str

    feedback = None
    renewals, source = (), None
    renewed = resumed = unchanged

    @property
    def actions(self) -> tuple[str, ...]:
        return self.good.actions

    @property
    def frames(self) -> bool:
        return self.good.frames

    def settings(self) -> Mapping[str, Setting]:
        return self.good.settings()

    def slots(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.good.slots(lengths)

    def encode(self, rows: NDArray[np.float32], *, played: Sequence[int] = ()) -> bytes:
        return self.good.encode(rows)

    def explain(self, value: Value) -> str | None:
        return self.good.explain(value)

    def decode(self, values: Sequence[Value], headers: Sequence[Headers] = ()) -> Decoded:
        decoded: Decoded = getattr(self, f"_{self.name}")(values)
        return decoded

    def _drops_bad_records(self, values: Sequence[Value]) -> Decoded:
        return self.good.decode([value for value in values if self.explain(value) is None])

    def _raises(self, values: Sequence[Value]) -> Decoded:
        if any(self.explain(value) for value in values):
            raise ValueError("bad")
        return self.good.decode(values)

    def _nulls_the_frame(self, values: Sequence[Value]) -> Decoded:
        decoded = self.good.decode(values)
        owner = np.repeat(np.arange(len(values)), decoded.slots)
        bad = np.unique(owner[~np.isfinite(decoded.content["losses"]).all(axis=1)])
        rows = decoded.content["losses"].copy()
        rows[np.isin(owner, bad)] = np.nan
        return Decoded.of_losses(rows, decoded.slots)

    def _bad_frame_is_one_slot(self, values: Sequence[Value]) -> Decoded:
        parts = [self.good.decode([value]) for value in values]
        null = np.full((1, len(self.actions)), np.nan, dtype=np.float32)
        rows = [
            null if np.isnan(part.content["losses"]).any() else part.content["losses"]
            for part in parts
        ]
        slots = np.array([len(part_rows) for part_rows in rows], dtype=np.int64)
        return Decoded.of_losses(np.concatenate([null[:0], *rows]), slots)

    def _nulls_the_batch(self, values: Sequence[Value]) -> Decoded:
        decoded = self.good.decode(values)
        bad = not np.isfinite(decoded.content["losses"]).all()
        return Decoded.of_losses(
            decoded.content["losses"] * np.float32(np.nan if bad else 1), decoded.slots
        )

    def _imputes(self, values: Sequence[Value]) -> Decoded:
        decoded = self.good.decode(values)
        rows = decoded.content["losses"].copy()
        for at in range(1, len(rows)):
            if np.isnan(rows[at]).any():
                rows[at] = rows[at - 1]
        return Decoded.of_losses(rows, decoded.slots)

    def _joins(self, values: Sequence[Value]) -> Decoded:
        text = b"[" + b",".join(value or b"null" for value in values) + b"]"
        try:
            events = msgspec.json.decode(text, type=list[dict[str, list[float]]])
            rows = np.array([event["losses"] for event in events], dtype=np.float32)
            return Decoded.of_losses(rows.reshape(-1, 3), np.ones(len(rows), dtype=np.int64))
        except (msgspec.MsgspecError, KeyError, ValueError):
            return self.good.decode(values)


@pytest.fixture
def one_example_tells() -> Iterator[None]:
    """Where a failure is what is asked for, no simpler one is searched."""
    only = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("one example", hypothesis.settings(), phases=only)
    hypothesis.settings.load_profile("one example")
    yield
    hypothesis.settings.load_profile("suite")


@pytest.mark.slow
@pytest.mark.usefixtures("one_example_tells")
@pytest.mark.parametrize(
    ("good", "name", "rule"),
    [
        (LIST, "drops_bad_records", "a place for each record"),
        (LIST, "raises", "bad"),
        (LIST, "nulls_the_batch", "rows do not depend on other"),
        (LIST, "imputes", "rows do not depend on other"),
        (LIST, "joins", "depend on the|depend on other|a place for each"),
        (FRAMES, "nulls_the_frame", "a bad row nulls only itself"),
        (FRAMES, "bad_frame_is_one_slot", "encoded length alone"),
    ],
)
def test_the_kit_catches(good: RawFormat | JsonFormat, name: str, rule: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=rule):
        check_format(Mutant(good, name), examples=EXAMPLES)
