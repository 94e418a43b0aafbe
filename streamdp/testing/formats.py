"""`check_format`: does this keep the rules of a wire format? For our formats and for yours.

The rules are those of `streamdp.wire.formats`, each a property that Hypothesis tries to break
with random, truncated, overwritten and hostile records. Needs the package `hypothesis`.

    def test_my_avro_is_a_format() -> None:
        check_format(AvroFormat.configure(actions=["a", "b", "c"], options={}))

A failure is an `AssertionError` that says which rule was broken; Hypothesis shows the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamdp.core.grid import NULL, UNIT
from streamdp.wire.decoded import Decoded, Value
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import Format

HOSTILE: tuple[Value, ...] = (
    None,
    b"",
    b"\0",
    b"\xff" * 4096,
    b"\0\0\xc0\x7f" * 64,  # NaN as float32
    b"\0\x7c" * 64,  # infinity as float16
    b"null",
    b"{}",
    b"[]",
    b'{"losses":null}',
    b'{"losses":[]}',
    b'{"losses":{}}',
    b'{"losses":[NaN,Infinity,-Infinity]}',
    b'{"losses":[1e400,-1e400,' + b"9" * 5000 + b"]}",
    b'{"losses":[true,"0.5",null]}',
    b'{"losses":[0.1,0.2,0.3]},{"losses":[0.1,0.2,0.3]}',
    b'{"losses":[0.1,0.2,0.3]}{"losses":[0.1,0.2,0.3]}',
    b'{"losses":[0.1,0.2',
    b'0.3]},{"losses":[0.1,0.2,0.3]}',
    b'{"losses":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"x":' * 50_000 + b"1" + b"}" * 50_000,
    b'{"losses":"' + b"x" * (1 << 20) + b'"}',
    b'{"losses":[' + b"0.5," * 100_000 + b"0.5]}",
    b'\xef\xbb\xbf{"losses":[0.1,0.2,0.3]}',
    b'{"losses":[0.1,0.2,0.3],"x":"\\ud800"}',
    b'{"losses":[0.1,0.2,0.3],"\xff":"\xfe"}',
    b'"' + b'\\"' * 100_000,  # a string that never ends
    b'{"loss":null}',
    b'{"loss":true}',
    b'{"loss":"0.5"}',
    b'{"loss":[0.5]}',
    b'{"loss":NaN}',
    b'{"loss":1e400}',
    b'{"loss":0.5}{"loss":0.5}',
    b'{"loss":0.5},{"loss":0.5}',
    b'{"reward":1,"loss":"x"}',
    b'{"action":1,"loss":0.5,"reward":0.5}',
    b'{"action":"no such action","loss":0.5,"reward":0.5}',
)
"""Records that have broken decoders: deep, huge, truncated, mistyped, glued together."""

_LARGE: tuple[Value, ...] = (
    b'{"reward":1e300,"action":"a"}',
    b'{"reward":-1e300,"action":"a"}',
    b"\xff\xff\x7f\x7f" * 64,  # the largest float32
)
"""Numbers far outside of what counts."""


Rows = NDArray[np.float32]


def check_format(format_: Format, *, examples: int = 100) -> None:
    """Raise `AssertionError` unless the format keeps every rule, on `examples` examples each."""
    if format_.feedback is not None and format_.feedback.played == "value":
        _check_named(format_, format_.feedback)
    _check_shapes(format_, [])
    _check_shapes(format_, [*HOSTILE, *_LARGE])
    for check in (_check_any_bytes, _check_round_trip, _check_bad_row):
        run = settings(
            max_examples=examples,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        check(format_, run)


def _check_any_bytes(format_: Format, run: settings) -> None:
    """Rules 1 to 4, for any bytes: slots, no exception, and each record alike alone and among
    others.
    """
    good = _encoded(format_, np.zeros((1, _width(format_)), dtype=np.float32))
    _must_be_as_alone(format_, [value for bad in HOSTILE for value in (good, bad)])

    @run
    @given(batches(format_), st.binary(min_size=1, max_size=8))
    def holds(values: list[Value], filler: bytes) -> None:
        _check_shapes(format_, values)
        _check_slots_by_length(format_, values, filler)
        _must_be_as_alone(format_, values)

    holds()


def _check_shapes(format_: Format, values: Sequence[Value]) -> None:
    read, numbers = _decoded(format_, values)
    slots, n = read.slots, int(read.slots.sum())
    _must(slots.dtype == np.int64, "slots are int64")
    _must(slots.shape == (len(values),), "slots have a place for each record")
    _must(bool((slots >= 1).all()), "every record takes a slot")
    _must(read.unusable.shape == (n,), "unusable has a place for each slot")
    types = {"losses": np.float32} if format_.feedback is None else _OF_FEEDBACK
    _must(read.content.keys() == types.keys(), f"the columns are {' and '.join(types)}")
    for name, column in read.content.items():
        _must(column.dtype == types[name], f"{name} is {np.dtype(types[name])}")
        _must(bool(column.flags.c_contiguous), f"{name} is C-contiguous")
    if format_.feedback is not None:
        largest = int(np.abs(read.content["gain"]).max(initial=0))
        _must(largest <= NULL, "no number moves a gain beyond a half")
    if format_.feedback is not None and format_.feedback.played == "header":
        _must(not read.content["played"].any(), "the header alone names the shown action")
    _must(numbers.shape == (n, _width(format_)), "there is a row for each slot")
    for value in values:
        _must(isinstance(format_.explain(value), str | None), "explain answers text or None")


_OF_FEEDBACK = {"played": np.int32, "gain": np.int64}


def _width(format_: Format) -> int:
    """How many numbers a row has: a loss for each action, or what came of the shown one."""
    return len(format_.actions) if format_.feedback is None else 1


def _decoded(format_: Format, values: Sequence[Value]) -> tuple[Decoded, Rows]:
    """Records with headers that name the first action, and the numbers that were read.

    The numbers of feedback are told by the gains (rewards with `most` as shares of it), and NaN
    where they are unusable.
    """
    feedback = format_.feedback
    if feedback is None:
        read = format_.decode(values)
        return read, read.content["losses"]
    lengths = np.array([len(value or b"") for value in values], dtype=np.int64)
    headers = [
        feedback.headers([0] * slots, frames=format_.frames)
        for slots in format_.slots(lengths).tolist()
    ]
    read = format_.decode(values, headers)
    gain = read.content["gain"] * (1 if feedback.content == "reward" else -1)
    numbers = np.where(read.unusable, np.nan, 0.5 + gain / UNIT)
    return read, numbers.astype(np.float32)[:, None]


def _encoded(format_: Format, rows: Rows) -> bytes:
    """One record with these rows, of the first action where it names one."""
    if format_.feedback is None:
        return format_.encode(rows)
    numbers = rows * np.float32(format_.feedback.largest)
    return format_.encode(numbers, played=[0] * len(rows))


def _check_named(format_: Format, feedback: Feedback) -> None:
    """Which action a payload names is a function of the payload, and what is written comes back."""
    arms = range(len(feedback.actions))
    half = np.full((1, 1), 0.5, dtype=np.float32)
    good = [format_.encode(half, played=[arm]) for arm in arms]
    values = [value for bad in HOSTILE for value in (*good, bad)]

    def named(of: Sequence[Value]) -> list[int]:
        arms: list[int] = format_.decode(of, [[]] * len(of)).content["played"].tolist()
        return arms

    alone = [arm for value in values for arm in named([value])]
    _must(named(values) == alone, "a named action does not depend on other records")
    _must(named(good) == list(arms), "a named action comes back")


def _check_slots_by_length(format_: Format, values: list[Value], filler: bytes) -> None:
    """Slots are a function of the encoded length alone, and `slots` says which."""
    lengths = np.array([len(value or b"") for value in values], dtype=np.int64)
    expected = format_.slots(lengths)
    for batch in (values, [_filled(value, filler) for value in values]):
        slots = _decoded(format_, batch)[0].slots
        _must(np.array_equal(slots, expected), "slots depend on the encoded length alone")


def _must_be_as_alone(format_: Format, values: Sequence[Value]) -> None:
    together, rows = _decoded(format_, values)
    alone = [_decoded(format_, [value])[1] for value in values]
    _must(together.slots.tolist() == list(map(len, alone)), "slots do not depend on other records")
    _must(_same(rows, np.concatenate([rows[:0], *alone])), "rows do not depend on other records")


def _check_round_trip(format_: Format, run: settings) -> None:
    """An encoded row comes back to the format's precision, and is unchanged from then on."""

    @run
    @given(rows(_width(format_)))
    def holds(row: Rows) -> None:
        once = _only_row(format_, _encoded(format_, row))
        twice = _only_row(format_, _encoded(format_, once))
        _must(bool(np.isfinite(once).all()), "an encoded row is usable")
        _must(bool((np.abs(once - row) <= 2.0**-9).all()), "an encoded row comes back")
        _must(_same(once, twice), "a row that came back comes back unchanged")
        _must(
            format_.explain(_encoded(format_, row)) is None, "explain finds nothing wrong with it"
        )

    holds()


def _check_bad_row(format_: Format, run: settings) -> None:
    """Rule 3, within a frame: the bytes of one row do not change the other rows.

    A frame's slots follow from its length, so its rows have one width. They are taken to be the
    last bytes of the frame.
    """
    K = _width(format_)
    width = _row_width(format_)
    if width is None:
        return

    @run
    @given(rows(K, count=4), st.integers(0, 3), st.binary(min_size=width, max_size=width))
    def holds(block: Rows, at: int, junk: bytes) -> None:
        frame = _encoded(format_, block)
        end = len(frame) - (3 - at) * width
        good = _decoded(format_, [frame])[1]
        bad = _decoded(format_, [frame[: end - width] + junk + frame[end:]])[1]
        others = [row for row in range(4) if row != at]
        _must(_same(good[others], bad[others]), "a bad row nulls only itself")

    for junk in (b"\xff" * width, b"\0" * width):
        holds.hypothesis.inner_test(np.zeros((4, K), dtype=np.float32), 1, junk)  # type: ignore[attr-defined]
    holds()


def _row_width(format_: Format) -> int | None:
    """Bytes of a row in a frame, or None if the format has no frames."""
    K = _width(format_)
    one, two = (np.zeros((count, K), dtype=np.float32) for count in (1, 2))
    try:
        frame = _encoded(format_, two)
    except ValueError:
        return None
    _must(_decoded(format_, [frame])[0].slots.tolist() == [2], "a frame takes a slot for each row")
    return len(frame) - len(_encoded(format_, one))


def rows(K: int, *, count: int = 1) -> st.SearchStrategy[Rows]:
    """Rows of losses in [0, 1], with the awkward numbers that float32 has."""
    numbers = st.floats(0, 1, width=32, allow_subnormal=True)
    flat = st.lists(numbers, min_size=count * K, max_size=count * K)
    return flat.map(lambda losses: np.array(losses, dtype=np.float32).reshape(count, K))


def batches(format_: Format) -> st.SearchStrategy[list[Value]]:
    """Batches of all sorts of records; and batches of good records and glued ones alone.

    A decoder that joins a batch's texts must not take one record for two.
    """
    small = [value for value in HOSTILE if value is None or len(value) < 10_000]
    good = rows(_width(format_)).map(partial(_encoded, format_))
    glued = st.tuples(good, st.sampled_from([b"", b",", b"\n"]), good).map(b"".join)
    record = st.one_of(good, good.flatmap(_damaged), st.binary(max_size=64), st.sampled_from(small))
    return st.one_of(st.lists(record, max_size=12), st.lists(st.one_of(good, glued), max_size=3))


def _damaged(record: bytes) -> st.SearchStrategy[bytes]:
    """The record truncated, extended, or with some bytes overwritten."""
    place = st.integers(0, max(0, len(record) - 1))
    junk = st.binary(max_size=8)
    return st.one_of(
        place.map(lambda at: record[:at]),
        junk.map(lambda more: record + more),
        st.tuples(place, junk).map(
            lambda change: record[: change[0]] + change[1] + record[change[0] + len(change[1]) :]
        ),
    )


def _filled(value: Value, filler: bytes) -> Value:
    """Other content of the same encoded length."""
    return None if value is None else (filler * (len(value) // len(filler) + 1))[: len(value)]


def _only_row(format_: Format, record: bytes) -> Rows:
    read, row = _decoded(format_, [record])
    _must(read.slots.tolist() == [1], "a record of one row takes one slot")
    return row


def _same(one: Rows, other: Rows) -> bool:
    """Equal, and NaN in the same places."""
    return bool(np.array_equal(one, other, equal_nan=True))


def _must(holds: bool, rule: str) -> None:
    """Fail with the rule that was broken."""
    if not holds:
        raise AssertionError(f"not a wire format: {rule}")
