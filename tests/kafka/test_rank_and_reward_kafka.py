"""Is everything in the log that was answered for, by `serve` or a client, and nothing else?"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from signal import SIGKILL
from threading import Event, Thread
from typing import Any

import pytest

from streamdp.client import Loop, LoopTopics
from streamdp.ports import StreamTopics
from streamdp.testing.broker import Borrowed, Broker
from streamdp_adapters.kafka import KafkaTechnology
from tests.support.asking import free_port
from tests.support.loops import Draws, rows
from tests.support.processes import Process, until
from tests.support.shop_files import joined_shop

pytestmark = pytest.mark.kafka


class Visitors:
    """Ask and reward, one call after the other, and remember what was promised."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.written: dict[str, set[str]] = {"rank": set(), "reward": set()}
        self.taken_back: dict[str, set[str]] = {"rank": set(), "reward": set()}
        self.enough = Event()
        self._threads = [Thread(target=self._visit, args=(of,)) for of in range(4)]

    def __enter__(self) -> Visitors:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.enough.set()
        for thread in self._threads:
            thread.join()

    def _visit(self, of: int) -> None:
        for number in count():
            if self.enough.is_set():
                return
            request = f"{of}/{number}"
            for call in ("rank", "reward"):
                self._call(call, request)

    def _call(self, call: str, request: str) -> None:
        body = {"key": "fr", "request": request} | ({"reward": 1} if call == "reward" else {})
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", f"/v1/streams/clicks/{call}", json.dumps(body))
            answer = connection.getresponse()
            said = json.loads(answer.read())
        except (OSError, HTTPException, ValueError):
            return  # killed in the middle: nothing was promised
        finally:
            connection.close()
        if answer.status in (200, 202):
            assert said["durable"]
            self.written[call].add(request)
        else:
            assert answer.status == 503, said
            if "nothing was written" in said["title"]:
                self.taken_back[call].add(request)

    def answered(self, more: int) -> Callable[[], bool]:
        """Whether so many more requests and rewards have been answered for."""
        goal = {call: len(done) + more for call, done in self.written.items()}
        return lambda: all(len(self.written[call]) >= goal[call] for call in goal)


def loop_on(
    broker: Broker | Borrowed,
    folder: Path,
    app: str,
    port: int,
    *,
    http: str,
    learner: str = "",
    of_stream: str = "",
    actions: str = '["grid", "list"]',
    partitions: int = 1,
) -> tuple[Path, KafkaTechnology]:
    """The topics of a shop on a broker, and the configuration of its `serve`."""
    path = folder / "streamdp.toml"
    text = joined_shop(
        app=app,
        transport=f'kind = "kafka"\nbootstrap = "{broker.bootstrap}"\nsingle_broker = true',
        of_stream=f'fallback_action = "grid"\n{of_stream}',
        actions=actions,
        feedback='content = "loss"',
        tables=f'{learner}\n[http]\nlisten = "127.0.0.1:{port}"\nrank_and_reward = true\n{http}',
    )
    path.write_text(text)
    table = {"bootstrap": broker.bootstrap, "single_broker": True}
    technology = KafkaTechnology.from_settings(table, app=app)
    pair = StreamTopics(
        app, "join", f"{app}.requests", headers=True,
        second_input=f"{app}.outcomes", output=f"{app}.events",
    )  # fmt: skip
    stream = StreamTopics(app, "clicks", f"{app}.events")
    create = technology.administrator().create([pair, stream], partitions=partitions)
    asyncio.run(create)
    return path, technology


@pytest.mark.parametrize("undurable", [False, True])
def test_a_frozen_broker_lets_no_rank_hang(
    undurable: bool, mortal: Broker, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    """Each ends after two seconds, look-ups and probes go on, and `/readyz` says what is silent."""
    app, port = fresh_app(), free_port()
    http = f"rank_undurable = {str(undurable).lower()}"

    def ask(method: str, path: str, body: object = None) -> tuple[int, Any, float]:
        connection = HTTPConnection("127.0.0.1", port, timeout=120)
        begun = time.monotonic()
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            said, took = json.loads(answer.read()), time.monotonic() - begun
        finally:
            connection.close()
        return answer.status, said, took

    def rank(request: str) -> tuple[int, Any, float]:
        return ask("POST", "/v1/streams/clicks/rank", {"key": "fr", "request": request})

    path, technology = loop_on(mortal, tmp_path, app, port, http=http)
    serve = Process.start("serve", "--config", str(path))
    serve.hear("http_listening")
    until(lambda: ask("GET", "/readyz")[0] == 200)
    assert rank("before")[1]["durable"]
    mortal.freeze()
    try:
        status, said, took = rank("frozen")
        assert 2 <= took < 60  # two, on a machine with nothing else to do
        if undurable:
            assert (status, said["durable"]) == (200, False)
        else:
            assert (status, "may still be written" in said["title"]) == (503, True)
        status, said, _ = ask("GET", "/readyz")
        assert (status, len(said["away"])) == (200 if undurable else 503, 1)
        assert ask("GET", "/v1/streams/clicks/keys/fr/choice?request=r")[0] == 200
        if undurable:
            assert rank("later")[2] < took
    finally:
        mortal.thaw()
    until(lambda: ask("GET", "/readyz")[1]["away"] == [])
    assert rank("after")[1]["durable"]
    assert serve.end() == 0
    ids = [
        (dict(headers)["streamdp-request"] or b"").decode()
        for _, _, _, headers, _ in asyncio.run(rows(technology, f"{app}.requests"))
    ]
    assert ids == ["before", "frozen", *["later"] * undurable, "after"]


def test_does_what_a_client_wrote_before_the_broker_came_arrive(
    mortal: Broker, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    """No broker answers at the start: records wait, and none is lost or written twice."""
    app, keys = fresh_app(), [b"k%d" % number for number in range(8)]
    topics = LoopTopics(f"{app}.requests", f"{app}.outcomes")
    _, technology = loop_on(mortal, tmp_path, app, free_port(), http="", partitions=3)
    mortal.kill()
    with Loop(technology.producer, Draws(), stream="banners", topics=topics) as loop:
        for key in keys:
            loop.outcome(loop.choose(key), 1)
        until(lambda: bool(loop.condition.requests.trouble))
        assert loop.condition.requests.waiting == len(keys)
        mortal.start()
        assert loop.flush()
        condition = loop.condition
        assert condition.requests.lost == condition.outcomes.lost == 0
    for topic in topics:
        assert len(asyncio.run(rows(technology, topic))) == len(keys)


@pytest.mark.long
def test_what_was_answered_survives_a_killed_serve_and_a_broker_that_is_away(
    mortal: Broker, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    app, port = fresh_app(), free_port()
    path, technology = loop_on(mortal, tmp_path, app, port, http="write_seconds = 3.0")
    serve = Process.start("serve", "--config", str(path))
    serve.hear("http_listening")
    with Visitors(port) as visitors:
        until(visitors.answered(50))
        serve.popen.send_signal(SIGKILL)
        serve.ended()
        serve = Process.start("serve", "--config", str(path))
        until(visitors.answered(50))
        mortal.kill()
        until(lambda: all(visitors.taken_back.values()))
        mortal.start()
        until(visitors.answered(50))
    assert serve.end() == 0
    for call, topic in (("rank", f"{app}.requests"), ("reward", f"{app}.outcomes")):
        ids = [
            (dict(headers)["streamdp-request"] or b"").decode()
            for _, _, _, headers, _ in asyncio.run(rows(technology, topic))
        ]
        assert visitors.written[call] <= set(ids)
        assert not visitors.taken_back[call] & set(ids)
        assert len(ids) == len(set(ids))
    assert not [line for line in serve.other if "outcomes" in line]
