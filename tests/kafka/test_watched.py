"""Does anybody who watches the faces through crashes ever see two releases of one block?"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from streamdp.service.config import Configuration
from streamdp.testing.broker import Borrowed
from tests.support.asking import free_port
from tests.support.forking import Forked, parent
from tests.support.processes import MAIN

pytestmark = pytest.mark.kafka

LIVES = 3 if (TIMES := int(os.environ.get("STREAMDP_SOAK", "1"))) == 1 else TIMES
"""How many services are killed one after the other; `make soak` says how many more."""

MOST = 20_000  # events that a life is fed
CONFIGURATION = """
app = "{app}"
[transport]
kind = "kafka"
bootstrap = "{bootstrap}"
single_broker = true
session_timeout_ms = 1500
[topics.{app}-feedback]
budget = "1"
[streams.home]
input = "{app}-feedback"
start = "earliest"
actions = [{actions}]
learner = {{ recipe = "noisy_leader", noise = "exponential", epsilon = "0.01", schedule = "capped 1" }}
estimates = [{{ name = "block_regret", epsilon = "0.25", min_length = 1 }}]
[service]
commit_seconds = 0.002
[http]
listen = "127.0.0.1:{port}"
"""  # noqa: E501


@dataclass
class Watcher:
    """Asks two faces again and again: one that is killed with its service, one that stays."""

    ports: tuple[int, int]
    actions: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    estimates: defaultdict[int, set[float]] = field(default_factory=lambda: defaultdict(set))
    metrics: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self, port: int) -> None:
        """Note what every identity is shown with; by its ETag, and by its block."""
        while not self._stop.is_set():
            try:
                answer, tag = _get(port, "/v1/streams/home/keys/k/action")
                look_up = json.loads(answer)
                if look_up["source"] == "published":
                    self.actions[tag].add(look_up["action"])
                status = json.loads(_get(port, "/v1/status")[0])
                for point in status["streams"][0]["estimates"][0]["curve"]:
                    self.estimates[point["block"]].add(point["value"])
                self.metrics += b"streamdp_private_regret" in _get(port, "/metrics")[0]
            except OSError:
                pass
            self._stop.wait(0.01)  # the faces and the service share the machine with who looks

    def enough(self, lives: int) -> bool:
        """Whether so many lives were watched: many estimates, and actions one at a time."""
        return len(self.estimates) >= 60 * lives and len(self.actions) > 5 * lives

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In threads of their own."""
        threads = [threading.Thread(target=self.watch, args=(port,)) for port in self.ports]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()


def _get(port: int, path: str) -> tuple[bytes, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return answer.read(), answer.headers.get("ETag", "")


def test_is_every_face_of_one_mind_through_kills(broker: Borrowed, tmp_path: Path) -> None:
    """SIGKILL under load, with look-ups, status page and metrics watched throughout.

    Sixteen actions with equal sums and system randomness: a redraw would show another action with
    probability 15/16, and another estimate almost surely.
    """
    app = f"watched{free_port()}"
    files = [tmp_path / "run.toml", tmp_path / "serve.toml"]
    ports = (free_port(), free_port())
    names = ", ".join(f'"{number}"' for number in range(16))
    for file, port in zip(files, ports, strict=True):
        text = CONFIGURATION.format(app=app, bootstrap=broker.bootstrap, actions=names, port=port)
        file.write_text(text)
    assert _command("topics", "create", "--partitions", "1", files[0]).wait() == 0
    watcher = Watcher(ports)
    serve = _command("serve", files[1])
    try:
        with watcher.watching():
            for kill in range(LIVES):
                run = _command("run", files[0])
                for lives, least in ((kill + 1, 0), (0, 100)):
                    seen = partial(watcher.enough, lives)
                    asyncio.run(_feed(files[0], f"{app}-feedback", seen, run, least=least))
                run.kill()
                run.wait()
                _wait_until_closed(ports[0])
    finally:
        serve.kill()
        serve.wait()
    assert watcher.enough(LIVES)
    assert watcher.metrics > 10
    assert {tag: seen for tag, seen in watcher.actions.items() if len(seen) > 1} == {}
    assert {block: seen for block, seen in watcher.estimates.items() if len(seen) > 1} == {}


def _wait_until_closed(port: int) -> None:
    """The process that answers HTTP ends a moment after the killed one; then the port is free."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"port {port} is still answered a minute after the kill")


def _command(*words: str | Path) -> Forked:
    *command, file = map(str, words)
    return parent().start(MAIN, [*command, "--config", file], stderr=subprocess.DEVNULL)


async def _feed(
    file: Path,
    topic: str,
    seen: Callable[[], bool],
    run: Forked,
    *,
    least: int,
) -> None:
    """Events a few at a time, so that blocks can be seen one by one, until enough were seen."""
    producer = Configuration.load(file, {}).technology().producer()
    value = json.dumps({"losses": [0.5] * 16}).encode()
    for sent in range(0, MOST, 2):
        if sent >= least and seen():
            break
        assert run.poll() is None, f"the service has ended with code {run.returncode}"
        await producer.send(topic, [(b"k", value)] * 2)
        await asyncio.sleep(0.02)  # a steady trickle: nothing waits for this
    else:
        pytest.fail(f"not seen after {MOST} events")
    await producer.close()
