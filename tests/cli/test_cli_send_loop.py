"""Does `send --assembly` write what `client.Loop` writes, and refuse what it cannot, by line?"""

from __future__ import annotations

import asyncio
import io
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from streamdp.cli._loop_records import Line, loop_records
from streamdp.client import Answer, Chosen, Lists, Predictions, Request, Right, Truth, Why
from streamdp.client.requests import outcome_record, request_record
from streamdp.client.writing import Record
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.contexts import Contexts
from streamdp.service.config import Configuration
from streamdp.wire.feedback import Feedback
from tests.support.assembling_shop import configured
from tests.support.calling import Streamdp
from tests.support.loops import rows

ACTIONS = ("grid", "list")
R1 = Request(b"fr", "r1")


def read(text: str | dict[str, Any], mode: str = "feedback") -> list[Line]:
    """The records of lines."""
    source = io.BytesIO((text if isinstance(text, str) else json.dumps(text)).encode())
    return list(loop_records("f", source, mode=mode, actions=ACTIONS, key=b"any"))


def one(mode: str, **members: Any) -> Record:
    """The record of one line about the first request."""
    (line,) = read({"key": "fr", "request": "r1", **members}, mode)
    return line.record


def test_is_a_line_the_record_that_the_client_writes() -> None:
    """In every mode, a request and an outcome; members that are left out leave no header."""
    lists = {"grid": ["x", "y"], "list": ["z"]}
    guesses = {"grid": 3, "list": 2.5}
    grid = Answer("grid", Why.UNKNOWN_KEY, probability=0.25)
    shown = request_record(R1, choice=grid)
    assert one("feedback", action="grid", pscore=0.25) == shown
    key, value, headers = one(
        "feedback", action="grid", pscore=0.25, filter="4bf5122f344554c5", list=7
    )
    filtered = Answer("grid", Why.UNKNOWN_KEY, probability=0.25, filter="4bf5122f344554c5", list=7)
    drawn = request_record(R1, choice=filtered)
    assert (key, value, sorted(headers)) == (*drawn[:2], sorted(drawn[2]))
    assert one("feedback", reward=1) == outcome_record(R1, 1)
    assert one("rankers", items=lists) == request_record(R1, content=Lists(lists))
    assert one("rankers", item="x") == outcome_record(R1, Chosen("x"))
    assert one("categories", person="p1") == request_record(R1, person="p1")
    assert one("categories", categories=["list"]) == outcome_record(R1, Right(["list"]))
    assert one("errors", predictions=guesses) == request_record(R1, content=Predictions(guesses))
    assert one("errors", truth=2) == outcome_record(R1, Truth(2))
    source = io.BytesIO(b'{"key": "fr", "request": "r1", "reward": 250}')
    prices = Feedback(ACTIONS, content="reward", most=Fraction(200))
    given = {"mode": "feedback", "actions": ACTIONS, "key": None, "feedback": prices}
    (line,) = loop_records("f", source, **given)  # type: ignore[arg-type]
    assert line.record == outcome_record(R1, 250, most=200)  # the join clips it
    private = {**given, "feedback": Feedback(ACTIONS, played="value")}
    source = io.BytesIO(b'{"request": "r", "action": "grid", "filter": "4bf5122f344554c5"}')
    with pytest.raises(InvalidConfig, match="would publish what was excluded"):
        list(loop_records("f", source, **private))  # type: ignore[arg-type]
    (line,) = read('{"request": "r1", "reward": 0}\n\n')
    assert line == (True, outcome_record(Request(b"any", "r1"), 0))


def test_a_private_request_has_its_cell_and_action_in_a_stream_with_room() -> None:
    """Columns without a name lie between the actions of two cells."""
    contexts = Contexts.read('{"device": ["phone"]}')
    feedback = Feedback(ACTIONS, played="value", contexts=contexts, columns=len(ACTIONS) + 2)
    row = {"request": "r1", "action": "list", "context": {"device": "fridge"}}
    source = io.BytesIO(json.dumps(row).encode())
    (line,) = loop_records(
        "f", source, mode="feedback", actions=ACTIONS, key=None, feedback=feedback
    )
    content = json.loads(line.record[1] or b"")
    assert content == {"action": "list", "context": {"device": "other"}}


BAD: list[tuple[str, str, str]] = [
    ("feedback", "nonsense", "line 1: is not JSON"),
    ("feedback", "[" * 5000, "line 1: is not JSON"),
    ("feedback", "[1]", "is not an event; expected an object with request and action, got a list"),
    ("feedback", "7", "is not an event; expected an object with request and action, got a number"),
    ("feedback", '{"action": "grid"}', "needs request; expected the id"),
    ("feedback", '{"request": 7, "action": "grid"}', "request: is not usable"),
    ("feedback", '{"request": "", "action": "grid"}', "f line 1: request id"),
    ("feedback", '{"request": "r"}', "expected action (a request) or reward (an outcome)"),
    ("feedback", '{"request": "r", "action": "gird"}', "unknown action; expected grid, list"),
    ("feedback", '{"request": "r", "action": 1}', "action: is not usable"),
    ("feedback", '{"request": "r", "reward": 1.5}', "f line 1: an outcome's reward"),
    ("feedback", '{"request": "r", "reward": 1, "action": "grid"}', "unknown member"),
    ("feedback", '{"request": "r", "item": "x"}', "unknown member"),
    (
        "feedback",
        '{"request": "r", "action": "grid", "pscore": 0}',
        "pscore: is not usable; expected a num",
    ),
    (
        "feedback",
        '{"request": "r", "action": "grid", "filter": "4BF5122F344554C5"}',
        "filter: is not usable; expected 16 digits of 0-9 and a-f",
    ),
    ("feedback", '{"request": "r", "action": "grid", "list": 0}', "list: is not usable"),
    ("feedback", '{"request": "r", "action": "grid", "person": 3}', "person: is not usable"),
    ("rankers", '{"request": "r", "items": {"gird": []}}', "unknown action; expected grid, list"),
    ("rankers", '{"request": "r", "items": []}', "f line 1: a request's lists"),
    ("errors", '{"request": "r", "truth": "1"}', "f line 1: an outcome's truth"),
]


@pytest.mark.parametrize(("mode", "line", "phrase"), BAD)
def test_is_a_line_that_cannot_be_sent_refused(mode: str, line: str, phrase: str) -> None:
    """With file and line, and never with what an outcome said."""
    with pytest.raises(InvalidConfig) as refused:
        read(line, mode)
    message = str(refused.value)
    assert phrase in message
    assert message.startswith("f line 1")
    assert "1.5" not in message


def test_does_a_trial_need_no_code(streamdp: Streamdp, tmp_path: Path) -> None:
    """Requests and outcomes of one file, each in its topic, where one partitioner sends them."""
    transport = f'kind = "sqlite"\npath = "{tmp_path}/shop.db"\npartitions = 2'
    path = configured(tmp_path, app="shop", transport=transport)
    config = ("--config", str(path))
    assert streamdp("topics", "create", *config).code == 0
    lines = (
        b'{"key": "fr", "request": "r1", "action": "grid", "person": "p1"}\n'
        b'{"key": "fr", "request": "r1", "reward": 1}\n'
        b'{"key": "fr", "request": "r2", "action": "list", "person": "p1"}\n'
    )
    result = streamdp("send", "--assembly", "join", *config, stdin=lines)
    assert result.out == "2 requests sent to shop.requests, 1 outcome to shop.outcomes\n"
    more = streamdp("send", "--assembly", "join", "--json", *config, stdin=lines[:0])
    assert more.json == {"requests": 0, "outcomes": 0}
    technology = Configuration.load(path, {}).technology()
    requests = asyncio.run(rows(technology, "shop.requests"))
    assert [(key, dict(headers)["streamdp-request"]) for _, _, key, headers, _ in requests] == [
        (b"fr", b"r1"), (b"fr", b"r2")
    ]  # fmt: skip
    (outcome,) = asyncio.run(rows(technology, "shop.outcomes"))
    assert outcome[4] == b'{"reward":1.0}'
    wrong = lines.splitlines(keepends=True)[0] + b"nonsense"
    assert "line 2: is not JSON" in streamdp("send", "--assembly", "join", *config, stdin=wrong).err
    for option in (["--rows", "2"], ["--as-it-is"], ["--stream", "clicks"]):
        both = streamdp("send", "--assembly", "join", *option, *config, stdin=lines)
        assert "goes alone" in both.err
    unknown = streamdp("send", "--assembly", "views", *config, stdin=lines)
    assert "--assembly: unknown; expected join, got views" in unknown.err
