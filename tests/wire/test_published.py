"""Are published lines what their schema says, of one length whatever was drawn, and for good?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import Key
from streamdp.wire import schema
from streamdp.wire.lines import Charge, EpochMark, key_bytes
from streamdp.wire.published import decode_action, decode_ledger, decode_list
from streamdp.wire.schemas import NAMES
from tests.golden_wire import ACTIONS, LINES, REMEMBERING, SHOWN, release, texts
from tests.support.publishing import list_record

KEYS = st.one_of(st.none(), st.binary(max_size=12), st.text(max_size=6).map(str.encode))


@pytest.mark.parametrize("path", list(texts()), ids=lambda path: path.name)
def test_golden_files(path: Path) -> None:
    """Bytes on the wire are as they were; otherwise see `tests/golden_wire.py`."""
    assert path.read_text() == texts()[path]


# Length and bytes


@pytest.mark.parametrize("kind", ["opening", "action"])
def test_a_lines_length_is_independent_of_the_action(kind: str) -> None:
    drawn = [release(kind, value) for value in range(len(ACTIONS))]
    assert len({len(LINES.ledger(one, ordinal=9)) for one in drawn}) == 1
    assert len({len(LINES.action(one) or b"") for one in drawn}) == 1


def test_a_lines_length_is_independent_of_the_vote_and_of_what_is_in_force() -> None:
    """Also with eleven actions, whose numbers differ in width."""
    many = replace(REMEMBERING, actions=tuple("abcdefghijk"))
    for lines in (REMEMBERING, many):
        places = range(len(lines.actions))
        drawn = [replace(release(value=a), in_force=b) for a in places for b in places]
        assert len({len(lines.ledger(one, ordinal=9)) for one in drawn}) == 1
        assert len({len(lines.action(one) or b"") for one in drawn}) == 1


def test_with_a_memory_the_action_is_what_is_in_force_and_the_ledger_says_both() -> None:
    shown = replace(release(value=1), in_force=3)
    action = decode_action(REMEMBERING.action(shown) or b"")
    charge = decode_ledger(REMEMBERING.ledger(shown, ordinal=9))
    assert isinstance(charge, Charge)
    assert (action.index, action.action) == (3, ACTIONS[3])
    assert (charge.index, charge.action, charge.in_force) == (1, ACTIONS[1], 3)
    assert charge.memory == "twice in a row"


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=9))
def test_a_lines_length_is_independent_of_the_estimate(values: list[int]) -> None:
    for kind in ("block_regret", "mean_loss"):
        drawn = [release(kind, value) for value in (0, -(2**63), 3 * 10**15 + 1, *values)]
        assert len({len(LINES.ledger(one, ordinal=9)) for one in drawn}) == 1


def test_a_line_without_filling_shows_the_action_by_its_length() -> None:
    """The mutant: this is why lines are filled."""
    lengths = set()
    for value in range(len(ACTIONS)):
        line = LINES.action(release(value=value))
        assert line is not None
        lengths.add(len(line.replace(b" ", b"")))
    assert len(lengths) > 1


def test_the_same_release_is_the_same_bytes() -> None:
    """No timestamp, no counter: publishing again is byte-equal."""
    for shown in SHOWN.values():
        assert LINES.action(shown) == LINES.action(shown)
        first, again = (LINES.ledger(shown, ordinal=9) for _ in range(2))
        assert first == again


# Lists


def test_a_list_names_its_time_and_an_unknown_mode_is_not_live() -> None:
    for mode, live in (("live", True), ("fallback", False), ("of a later version", False)):
        line = decode_list(list_record(1, mode).value)
        assert (line.live, line.mode) == (live, mode)
    assert json.loads(list_record(3, "fallback", actions="ab", paused="b").value) == {
        "type": "list",
        "schema": 1,
        "stream": "home",
        "ordinal": 3,
        "at": "2026-01-02T03:04:05Z",
        "mode": "fallback",
        "actions": ["a", "b"],
        "paused": ["b"],
    }


# Reading


@pytest.mark.slow
@given(KEYS, st.integers(0, 3), st.sampled_from(["opening", "action"]))
def test_what_is_written_is_read(key: Key, value: int, kind: str) -> None:
    shown = release(kind, value, key=key)
    charge = decode_ledger(LINES.ledger(shown, ordinal=9))
    assert isinstance(charge, Charge)
    assert charge.identity == shown.identity
    assert (charge.start, charge.stop, charge.charge) == (shown.start, shown.stop, shown.epsilon)
    assert (charge.first_offset, charge.last_offset, charge.ordinal) == (100, 200, 9)
    value_bytes = LINES.action(shown)
    if value_bytes is not None:
        action = decode_action(value_bytes)
        assert (action.identity, key_bytes(action)) == (shown.identity, key)
        assert (action.index, action.action) == (value, ACTIONS[value])


def test_an_epochs_mark_is_read() -> None:
    mark = LINES.epoch(partition=0, epoch=3, previous=2, next_offset=201, ordinal=10)
    line = decode_ledger(mark)
    assert isinstance(line, EpochMark)
    assert (line.epoch, line.previous, line.next_offset, line.input) == (3, 2, 201, "feedback")


def test_an_estimate_carries_its_error() -> None:
    """Per slot for a mean: both the reading and the noise are divided by the public length."""
    line = decode_ledger(LINES.ledger(SHOWN["mean loss"], ordinal=9))
    assert isinstance(line, Charge)
    assert line.estimate == 0.25
    assert line.standard_error == pytest.approx(2**0.5 * 8 / 4, rel=1e-4)


def test_a_reader_ignores_what_it_does_not_know() -> None:
    line = (LINES.action(release()) or b"")[:-1] + b',"new":[1,{}]}'
    assert decode_action(line).action == "bb"


ACTION_LINE = LINES.action(release()) or b""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (ACTION_LINE.replace(b'"schema":1', b'"schema":2'), "newer streamdp; .* got 2"),
        (b'{"type":"action","schema":7}', "newer streamdp; expected schema 1 or lower, got 7"),
        (ACTION_LINE.replace(b'"key":"fr",', b""), "no key"),
        (ACTION_LINE.replace(b'"key":', b'"key_base64":"/w==","key":'), "no key"),
        (ACTION_LINE.replace(b'"key":"fr"', b'"key_base64":"?"'), "no key"),
        (ACTION_LINE.replace(b'"index":1', b'"index":true'), "unreadable"),
        (ACTION_LINE.replace(b'"type":"action"', b'"type":"charge"'), "unreadable"),
        (b"", "unreadable"),
        (b"\xff", "unreadable"),
    ],
)
def test_a_line_that_is_none_is_refused(line: bytes, message: str) -> None:
    with pytest.raises(StateMismatch, match=message):
        decode_action(line)


# Schemas


def test_lines_keep_their_schema() -> None:
    action, ledger = (
        jsonschema.Draft202012Validator(schema(name)) for name in ("action", "ledger")
    )
    for shown in SHOWN.values():
        ledger.validate(json.loads(LINES.ledger(shown, ordinal=9)))
        line = LINES.action(shown)
        if line is not None:
            action.validate(json.loads(line))
    mark = LINES.epoch(partition=0, epoch=3, previous=None, next_offset=0, ordinal=1)
    ledger.validate(json.loads(mark))
    assert not action.is_valid({**json.loads(ACTION_LINE), "index": -1})
    assert not ledger.is_valid(json.loads(ACTION_LINE))


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_schemas(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


def test_events_keep_their_schema() -> None:
    a_list, a_mapping = (
        jsonschema.Draft202012Validator(schema(f"event-{layout}")) for layout in ("list", "mapping")
    )
    for valid in ({"losses": [0, 0.5]}, {"losses": [0, 1], "ts": "noon", "event_id": 7, "x": None}):
        a_list.validate(valid)
        assert not a_mapping.is_valid(valid)
    a_mapping.validate({"losses": {"a": 0.5}})
    for invalid in ({}, {"losses": ["0", True]}, {"losses": [0]}, [0, 1]):
        assert not a_list.is_valid(invalid)


def test_an_unknown_schema_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="schema: unknown"):
        schema("avro")
