"""Can a program with the right token pause an action, and nobody else?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp.core.events import SPARE
from streamdp.core.learners.feedback import feedback_learner_of
from streamdp.ports import Administrator, StreamTopics
from streamdp.serve.about import About
from streamdp.serve.access import Bucket, Gate
from streamdp.serve.app import PublicApp, description
from streamdp.serve.catalogue import CatalogueCalls
from streamdp.serve.credentials import Credentials, Files
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.wire.published import decode_list
from tests.support.asking import NO_FILES, Answer, Observer, asked
from tests.support.publishing import Topic
from tests.support.showing import CLICKS

TOKEN, OWN = b"a token of the shop's", b"a token for pauses"
CATALOGUE = "/v1/streams/home/catalogue"
DESCRIPTION = json.loads(description())
FIRST, SECOND, *_ = CLICKS.learner.actions
ROOMY = replace(
    CLICKS,
    room=1,
    learner=feedback_learner_of(
        {"epsilon": "1", "room": "1"}, actions=[*CLICKS.learner.actions, SPARE]
    ),
)


class Shop:
    """The application over a log, with a token for look-ups and one for lists."""

    def __init__(
        self,
        log: MemoryLog,
        *,
        tools: Callable[[], Administrator] | None = None,
        own: bytes | None = OWN,
        off: bool = False,
        about: About = CLICKS,
    ) -> None:
        observer = Observer(Topic([]), Topic([]), about=about)
        made = MemoryTechnology(log).administrator
        calls = CatalogueCalls(observer.knowledge, tools or made, seconds=1)
        public = PublicApp(
            observer.knowledge, NO_FILES, body_seconds=1, catalogue=None if off else calls
        )
        self.gate = Gate(
            public.answer,
            token=lambda: TOKEN,
            bucket=Bucket(1e9, lambda: 0.0),
            traffic=observer.knowledge.traffic,
            catalogue=lambda: own,
        )

    def ask(
        self, body: object, *, token: bytes = OWN, target: str = CATALOGUE, method: str = "POST"
    ) -> Answer:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        bearer = f"Bearer {token.decode()}"
        call = asked(self.gate, target, method=method, body=sent, authorization=bearer)
        return asyncio.run(call)


def newest(log: MemoryLog) -> Any:
    return decode_list([*log.published(CLICKS.topics.catalogue, 0, start=0)][-1].value)


def test_an_action_is_paused_and_resumed() -> None:
    """The answer is the list that was written, in the described form; others' pauses stay."""
    log = MemoryLog()
    shop = Shop(log)
    told = shop.ask({"pause": [FIRST]})
    said = {"stream": "home", "list": 1, "paused": [FIRST], "removed": []}
    assert (told.status, told.json) == (200, {**said, "actions": list(CLICKS.learner.actions)})
    assert shop.ask({"pause": [SECOND]}).json["paused"] == [FIRST, SECOND]
    assert shop.ask({"resume": [FIRST], "pause": [SECOND]}).json["paused"] == [SECOND]
    assert (newest(log).paused, newest(log).ordinal, newest(log).mode) == ([SECOND], 3, "live")
    assert set(told.json) == set(DESCRIPTION["components"]["schemas"]["ListTold"]["properties"])
    assert told.headers["cache-control"] == "no-store"


def test_an_action_is_added_and_removed() -> None:
    """While there is room; asking again changes nothing but the ordinal."""
    log = MemoryLog()
    shop = Shop(log, about=ROOMY)
    names = list(CLICKS.learner.actions)
    assert shop.ask({"add": ["new"]}).json["actions"] == [*names, "new"]
    told = shop.ask({"add": ["new"], "remove": [FIRST], "pause": [SECOND]}).json
    assert told["actions"] == [*names, "new"]
    assert (told["paused"], told["removed"]) == ([SECOND], [FIRST])
    assert newest(log).epoch == ROOMY.epoch
    full = shop.ask({"add": ["newer"]})
    assert full.status == 400
    assert "a new epoch" in full.body.decode()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"add": ["new"]}, "has no room"),
        ({"remove": ["nobody"]}, "unknown names"),
        ({"pause": ["nobody"]}, "unknown names"),
        ({"resume": ["nobody"]}, "unknown names"),
        ({"pause": list(CLICKS.learner.actions)}, "all would be paused"),
        ({}, "names nothing"),
        ({"pause": "a"}, "unreadable"),
        ({"stop": []}, "unreadable"),
        (b"\xff", "unreadable"),
    ],
)
def test_what_makes_no_list_is_refused_and_changes_nothing(body: object, said: str) -> None:
    log = MemoryLog()
    answer = Shop(log).ask(body)
    assert answer.status == 400
    assert said in answer.body.decode()
    assert [*log.published(CLICKS.topics.catalogue, 0, start=0)] == []


def test_each_token_opens_what_it_is_for() -> None:
    log = MemoryLog()
    shop = Shop(log)
    assert shop.ask({"pause": [FIRST]}, token=TOKEN).status == 401
    assert shop.ask({"pause": [FIRST]}, token=b"a guess").status == 401
    assert shop.ask(b"", target="/v1/status", method="GET").status == 401
    assert shop.ask(b"", target="/v1/status", method="GET", token=TOKEN).status == 200
    assert shop.ask({"pause": [FIRST]}).status == 200


def test_what_is_not_there_is_said() -> None:
    log = MemoryLog()
    assert Shop(log).ask({}, target="/v1/streams/away/catalogue").status == 404
    assert Shop(log).ask(b"", method="GET").headers["allow"] == "POST"
    off = Shop(log, own=None, off=True)
    assert off.ask({"pause": [FIRST]}, token=OWN).status == 401
    answer = off.ask({"pause": [FIRST]}, token=TOKEN)
    assert answer.status == 404
    assert "http.catalogue_token_file" in answer.body.decode()


class Away:
    """A log that does not answer."""

    async def revise(self, stream: StreamTopics, change: Callable[[bytes | None], bytes]) -> bytes:
        raise TransportLost("log", "away", expected="an answer", got="none")

    async def close(self) -> None:
        """Nothing."""


def test_a_log_that_is_away_is_said_and_to_ask_again() -> None:
    tools: Any = Away
    answer = Shop(MemoryLog(), tools=tools).ask({"pause": [FIRST]})
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "may still be written" in answer.body.decode()


def test_a_secret_for_two_purposes_is_refused(tmp_path: Path) -> None:
    token, own = tmp_path / "token", tmp_path / "own"
    token.write_bytes(TOKEN)
    own.write_bytes(OWN)
    assert Credentials(Files("http", token=token, catalogue=own)).catalogue == OWN
    own.write_bytes(TOKEN)
    with pytest.raises(InvalidConfig, match="two secrets of the listener are the same"):
        Credentials(Files("http", token=token, catalogue=own))
