"""How soon all readers obey a pause, at 300 requests a second, while processes are killed.

    python -m tests.bench.bench_pauses [--json FILE] [--turns 8]

Three readers ask for one key on one broker of Kafka: programs that rank over HTTP (150 a second)
and reward every other request a third of a second later, an `ActionsCache` (100), and a Node
program behind `streamdp watch --json` (50). Two processes `run`, one has the partition. An action
is paused and resumed over and over. In turn nothing is killed, both owners, `serve`, or the
command itself, at another moment each time; what was killed is started again.

A row is what one sort of turn saw, of each reader: `obeyed`, the seconds from the command's end to
the last request that was answered with what is paused (the worst turn; below 0: before that end),
and requests a second. Then whether each answered rank is an event, once; how many accepted rewards
are in no event (`late`), and rewards in events that nobody was told of (`beside`: a process was
killed); and what `ledger verify` says. Whoever shares the machine is in the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPException
from itertools import count, cycle
from pathlib import Path
from signal import SIGKILL
from threading import Event, Thread
from typing import Any

from streamdp.client import ActionsCache, Names, Source
from streamdp.ports import StreamTopics
from streamdp.testing.broker import borrow_broker
from tests.kafka.test_catalogue_kafka import node_reader
from tests.kafka.test_rank_and_reward_kafka import loop_on
from tests.support.asking import free_port
from tests.support.loops import rows
from tests.support.processes import Process, ended_at_once, until

PROGRAMS, HTTP_RATE, CACHE_RATE = 5, 150.0, 100.0  # the Node program asks every 20 ms
REWARD_AFTER = 0.3  # seconds; the join waits for one
KILLED = ("nothing", "run", "serve", "command")
QUIET = 4.0  # seconds after a pause, and after a resume


class Load:
    """The readers, and what they were told: when they asked, when it was answered, what."""

    def __init__(self, port: int, cache: ActionsCache, node: Any) -> None:
        self.told: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
        self.ranked: dict[str, bool] = {}  # by request: whether its reward was accepted
        self.unanswered = Counter[str]()  # by why
        self._port, self._cache, self._node, self._enough = port, cache, node, Event()
        visits = [Thread(target=self._visit, args=(of,)) for of in range(PROGRAMS)]
        self._threads = [*visits, Thread(target=self._python), Thread(target=self._javascript)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def _paced(self, rate: float) -> Iterator[int]:
        """Numbers, so many a second; what is late is asked at once."""
        begun = time.time()
        for number in count():
            if self._enough.wait(max(0.0, begun + number / rate - time.time())):
                return
            yield number

    def _visit(self, of: int) -> None:
        due: list[tuple[float, str]] = []
        for number in self._paced(HTTP_RATE / PROGRAMS):
            try:
                with closing(HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
                    begun, request = time.time(), f"{of}-{number}"
                    said = self._said(connection, "rank", {"key": "fr", "request": request})
                    if said is not None:
                        self.told["http"].append((begun, time.time(), said["action"]))
                        self.ranked[request] = False
                        due += [(begun + REWARD_AFTER, request)] * (number % 2)
                    while due and due[0][0] < time.time():
                        body = {"key": "fr", "request": due[0][1], "reward": 1}
                        if self._said(connection, "reward", body) is None:
                            break
                        self.ranked[due.pop(0)[1]] = True
            except (OSError, HTTPException) as error:
                self.unanswered[type(error).__name__] += 1

    def _said(self, connection: HTTPConnection, call: str, body: object) -> Any:
        connection.request("POST", f"/v1/streams/clicks/{call}", json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            self.unanswered[f"{call} {answer.status}"] += 1
            return None
        return json.loads(text or b"{}")

    def _python(self) -> None:
        for number in self._paced(CACHE_RATE):
            begun = time.time()
            action = self._cache.choose("clicks", b"fr", f"p-{number}").action
            self.told["cache"].append((begun, time.time(), action))

    def _javascript(self) -> None:
        for line in self._node.stdout:
            told = json.loads(line)
            self.told["node"].append((told["at"], told["at"], told["action"]))
            if self._enough.is_set():
                return

    def between(self, reader: str, begin: float, end: float) -> list[tuple[float, float, str]]:
        return [told for told in list(self.told[reader]) if begin < told[0] < end]


def turned(
    load: Load, killed: str, moment: float, started: dict[str, list[Process]], config: Sequence[str]
) -> dict[str, Any]:
    """One pause and one resume."""

    def command(word: str) -> None:
        done = ended_at_once("actions", "clicks", word, "list", *config)
        assert done.returncode == 0, done.stderr

    begun = time.time()
    if killed == "command":
        with Process.start("actions", "clicks", "pause", "list", *config) as dying:
            time.sleep(moment)
            dying.signal(SIGKILL)
    command("pause")
    paused = time.time()
    if killed in started:
        time.sleep(moment)
        for process in started[killed]:
            process.signal(SIGKILL)
        started[killed] = [Process.start(killed, *config) for _ in started[killed]]
    time.sleep(QUIET)
    resumed = time.time()
    command("resume")
    time.sleep(QUIET)
    row: dict[str, Any] = {"killed": killed}
    for reader in ("http", "cache", "node"):
        wrong = [at for at, _, name in load.between(reader, 0, resumed) if name == "list"]
        row[f"{reader} obeyed"] = round(max(wrong) - paused, 2)
        asked = load.between(reader, begun, time.time())
        row[f"{reader} a second"] = round(len(asked) / (time.time() - begun))
    return row


def measured(turns: int, folder: Path) -> list[dict[str, Any]]:
    """Everything, with a broker."""
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as running:
        broker = running.enter_context(borrow_broker())
        app, port = f"pauses-{os.getpid()}", free_port()
        path, technology = loop_on(broker, folder, app, port, http="")
        config = "--config", str(path)
        topics = StreamTopics(app, "clicks", f"{app}.events")
        source = Source(topics, "grid", Names(("grid", "list")))
        several = {"run": 2, "assemble": 1, "serve": 1}
        started = {of: [Process.start(of, *config) for _ in range(n)] for of, n in several.items()}
        running.callback(lambda: [of.end() for some in started.values() for of in some])
        started["serve"][0].hear("http_listening")
        node = running.enter_context(node_reader(folder, config))
        cache = running.enter_context(ActionsCache(technology.publications, [source]))
        with Load(port, cache, node) as load:
            until(lambda: all(load.told[of] for of in ("http", "cache", "node")))
            for turn, killed in zip(range(turns), cycle(KILLED)):
                moment = (0.05, 0.2, 0.5, 1.0)[turn // len(KILLED) % 4]
                row = turned(load, killed, moment, started, config)
                print(row, flush=True)
                worst = found.setdefault(killed, row)
                for name in (name for name in row if name.endswith("obeyed")):
                    worst[name] = max(worst[name], row[name])
            time.sleep(2 * REWARD_AFTER)
        latencies = sorted(end - begin for begin, end, _ in load.told["http"])
        until(lambda: len(asyncio.run(rows(technology, topics.input))) >= len(load.ranked))
        time.sleep(QUIET)
        events = asyncio.run(rows(technology, topics.input))
        names = [(dict(row[3])["streamdp-request"] or b"").decode() for row in events]
        won = {
            name for name, row in zip(names, events, strict=True)
            if (row[4] or b"").strip() != b'{"loss":1.0}'
        }  # fmt: skip
        rewarded = {of for of, accepted in load.ranked.items() if accepted}
        verified = ended_at_once("ledger", "verify", *config)
    return [
        *found.values(),
        {
            "answered": len(load.ranked), "unanswered": dict(load.unanswered),
            "events": len(names), "missing": len({*load.ranked} - {*names}),
            "twice": len(names) - len({*names}), "verify": verified.returncode,
            "rewarded": len(rewarded), "late": len(rewarded - won), "beside": len(won - rewarded),
            "p50": round(latencies[len(latencies) // 2], 4),
            "p99": round(latencies[len(latencies) * 99 // 100], 4),
            "load": round(os.getloadavg()[0], 1),
        },
    ]  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="streamdp-") as name:
        found = measured(options.turns, Path(name))
    for row in found:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
