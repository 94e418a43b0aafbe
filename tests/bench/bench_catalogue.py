"""How soon all readers obey a stream's list, at 300 requests a second, while processes are killed.

    python -m tests.bench.bench_catalogue [--json FILE] [--turns 12]

Three readers on one broker of Kafka: programs that rank over HTTP (150 a second) and reward every
other request a third of a second later, an `ActionsCache` (100), and a Node program behind
`streamdp watch --json` (50 for each key). Four keys have traffic; for `old`, whose traffic has
ended, and `never`, which had none, choices are asked. Every third request excludes `tiles`. Two
processes `run`, each has a partition.

A turn pauses `list` and adds an action (every second turn the one that left in the turn before);
later it resumes and removes them. In turn nothing is killed, both owners, one of them, `serve`, or
the commands themselves, at another moment each time; what was killed is started again. Or an owner
freezes within a commit before the turn begins, and wakes after it: another has its partition then.

A row is what one sort of turn saw, the worst of its turns. `paused` and `removed` are the seconds
from the command's end to the last request that was answered with the name (below 0: before that
end), `heard` those to the last answer by a list before that of one of the turn's four commands.
`resumed` and `added` are the seconds until each reader has shown the name to each of its keys,
which their policies decide, too. `reloaded`: wrong answers of a cache that was opened then.

Then what must be 0. `wrong`: answers with a name that was not to be shown for more than two seconds
or was not yet added, or with an excluded one; `fallback`: answers that no policy gave to keys that
have one, and single actions to the key that has none. `missing`: answered ranks that are no event;
`twice`; `misnamed`: events that name another action than the answer; `null`: records in released
blocks that are no show. `inexact`: events whose reward is not that of the rewards in the log within
the window. Of accepted rewards `late` are in no event (the window had passed), and `beside` counts
rewards in events that nobody was told of (a process was killed). Whoever shares the machine is in
the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import count, cycle
from pathlib import Path
from signal import SIGCONT, SIGKILL
from threading import Event
from typing import Any

from streamdp.client import ActionsCache, Names, Source, Why
from streamdp.ports import StreamTopics, Technology
from streamdp.testing.broker import borrow_broker
from tests.kafka.test_catalogue_kafka import OBEYED_SECONDS, node_reader, shows
from tests.kafka.test_rank_and_reward_kafka import loop_on
from tests.support.asking import free_port
from tests.support.loops import rows
from tests.support.processes import Process, ended_at_once, until

PROGRAMS, HTTP_RATE, CACHE_RATE = 5, 150.0, 100.0  # the Node program asks every 20 ms
CHOICE_RATE = 40.0
REWARD_AFTER = 0.3  # seconds
WINDOW = 1.0  # seconds in which the join takes rewards
KILLED = ("nothing", "run", "one", "serve", "command", "frozen")
QUIET = 4.0  # seconds after a turn's first commands, and after its last
ACTIONS = ("grid", "list", "tiles", "cards")
EXCLUDED = "tiles"
OLD, NEVER = "old", "never"
BUSY = ("fr", "de", "it", "es")

FREEZING = """
import os, signal
from pathlib import Path
from streamdp_adapters.kafka.internals import AbandonableProducer
commit = AbandonableProducer.commit_transaction
async def frozen(self):
    try:
        os.unlink(os.environ["FREEZE"])
    except FileNotFoundError:
        pass
    else:
        os.kill(os.getpid(), signal.SIGSTOP)
    return await commit(self)
AbandonableProducer.commit_transaction = frozen
from streamdp.cli import main
main()
"""
"""An owner that stops itself before its next commit ends, if there is a file that says so."""


@dataclass(frozen=True, slots=True)
class Told:
    """An answer."""

    asked: float
    answered: float
    key: str
    action: str
    by_list: int  # its ordinal
    excluded: bool
    fallback: bool


@dataclass(frozen=True, slots=True)
class Away:
    """A name that is not to be shown from the end of a command until another begins."""

    name: str
    since: float
    until: float


class Load:
    """The readers, and what they were told."""

    def __init__(self, port: int, cache: ActionsCache, node: Any) -> None:
        self.told: dict[str, list[Told]] = defaultdict(list)
        self.ranked: dict[str, tuple[str, bool]] = {}  # request: action, was its reward accepted
        self.unanswered = Counter[str]()  # by why
        self.busy: Sequence[str] = (*BUSY, OLD)
        self._port, self._cache, self._node, self._enough = port, cache, node, Event()
        self._pool = ThreadPoolExecutor(PROGRAMS + 3)
        self._asking: list[Future[None]] = []

    def __enter__(self) -> Load:
        others = (self._choices, self._python, self._javascript)
        self._asking = [self._pool.submit(self._visit, of) for of in range(PROGRAMS)]
        self._asking += [self._pool.submit(of) for of in others]
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for asking in self._asking:
            asking.result()

    def _paced(self, rate: float) -> Iterator[int]:
        """Numbers, so many a second; what is late is asked at once."""
        begun = time.time()
        for number in count():
            if self._enough.wait(max(0.0, begun + number / rate - time.time())):
                return
            yield number

    def _visit(self, of: int) -> None:
        due: list[tuple[float, str, str]] = []
        for number in self._paced(HTTP_RATE / PROGRAMS):
            request, key = f"{of}-{number}", self.busy[(of + number) % len(self.busy)]
            left_out = [EXCLUDED] if number % 3 == 0 else []
            asked = {"key": key, "request": request, "exclude": left_out}
            if (said := self._heard(key, left_out, "POST", "rank", asked)) is not None:
                self.ranked[request] = said, False
                due += [(time.time() + REWARD_AFTER, key, request)] * (number % 2)
            while due and due[0][0] < time.time():
                _, key, request = due[0]
                body = {"key": key, "request": request, "reward": 1}
                if self._said("POST", "reward", body) is None:
                    break
                self.ranked[request] = self.ranked[request][0], True
                del due[0]

    def _choices(self) -> None:
        self._until_ready()
        for number in self._paced(CHOICE_RATE):
            key = (OLD, NEVER)[number % 2] if OLD not in self.busy else NEVER
            left_out = [EXCLUDED] if number % 3 == 0 else []
            query = f"request=c-{number}" + "".join(f"&exclude={name}" for name in left_out)
            if self._heard(key, left_out, "GET", f"keys/{key}/choice?{query}") is None:
                self._until_ready()  # while it loads the fallback action answers

    def _until_ready(self) -> None:
        while not self._enough.wait(0.05):
            connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
            with contextlib.suppress(OSError, HTTPException), closing(connection):
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return

    def _heard(
        self, key: str, left_out: Sequence[str], method: str, call: str, body: object = None
    ) -> str | None:
        """The action of an answer that came."""
        begun = time.time()
        said = self._said(method, call, body)
        if said is None:
            return None
        self._tell(
            "http", begun, key, said["action"], left_out, said.get("list", 0),
            why=Why(said["source"]), probability=said["probability"],
        )  # fmt: skip
        return str(said["action"])

    def _said(self, method: str, call: str, body: object) -> Any:
        try:
            with closing(HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
                text = None if body is None else json.dumps(body)
                connection.request(method, f"/v1/streams/clicks/{call}", text)
                answer = connection.getresponse()
                said = answer.read()
        except (OSError, HTTPException) as error:
            self.unanswered[type(error).__name__] += 1
            return None
        if answer.status >= 300:
            self.unanswered[f"{call.partition('?')[0]} {answer.status}"] += 1
            return None
        return json.loads(said or b"{}")

    def _python(self) -> None:
        keys = (*BUSY, OLD, NEVER)
        for number in self._paced(CACHE_RATE):
            key, left_out = keys[number % len(keys)], [EXCLUDED] if number % 3 == 0 else []
            begun = time.time()
            answer = self._cache.choose("clicks", key.encode(), f"p-{number}", exclude=left_out)
            self._tell(
                "cache", begun, key, answer.action, left_out, answer.list,
                why=answer.why, probability=answer.probability,
            )  # fmt: skip

    def _javascript(self) -> None:
        for line in self._node.stdout:
            told = json.loads(line)
            at, key, action, by = told["at"], told["key"], told["action"], told["ordinal"]
            self._tell("node", at, key, action, told["without"], by)
            if self._enough.is_set():
                return

    def _tell(
        self, reader: str, begun: float, key: str, action: str, left_out: Sequence[str],
        by_list: int, *, why: Why = Why.PUBLISHED, probability: float | None = None,
    ) -> None:  # fmt: skip
        known = key != NEVER and OLD not in self.busy  # after the start each other key has a policy
        fallback = (known and why is not Why.PUBLISHED) or (key == NEVER and probability == 1.0)
        at, excluded = time.time(), action in left_out
        self.told[reader].append(Told(begun, at, key, action, by_list, excluded, fallback))

    def between(self, begin: float, end: float) -> dict[tuple[str, str], list[Told]]:
        """What was asked between two times, by reader and key."""
        found = defaultdict(list)
        for reader, told in list(self.told.items()):
            for one in list(told):
                if begin < one.asked < end:
                    found[reader, one.key].append(one)
        return found

    def last(self, name: str, begin: float, end: float, since: float) -> float:
        """The seconds from a time to the last answer with a name."""
        told = self.between(begin, end).values()
        shown = (of.asked - since for one in told for of in one if of.action == name)
        return max(shown, default=begin - since)

    def first(self, name: str, begin: float, end: float, since: float) -> float:
        """The seconds from a time until each reader has shown a name, to each key."""
        told = self.between(begin, end).values()
        never = end - since
        return max(
            min((of.answered - since for of in one if of.action == name), default=never)
            for one in told
        )

    def unheard(self, ordinal: int, since: float) -> float:
        """The seconds from a time to the last answer by an earlier list; 0 if there is none."""
        told = self.between(since, time.time()).values()
        late = (of.asked - since for one in told for of in one if of.by_list < ordinal)
        return max(late, default=0.0)

    def wrong(self, away: Sequence[Away]) -> int:
        """How many answers were not to be given."""
        return sum(
            one.excluded
            or any(
                of.name == one.action and of.since + OBEYED_SECONDS < one.asked
                and one.answered < of.until
                for of in away
            )
            for told in self.told.values()
            for one in told
        )  # fmt: skip


@dataclass(slots=True)
class Shop:
    """What runs, and how it is changed."""

    load: Load
    started: dict[str, list[Process]]
    start: Callable[[str], Process]
    config: Sequence[str]
    reload: Callable[[], ActionsCache]
    freeze: Path

    def command(self, word: str, name: str) -> tuple[int, float]:
        """A change of the list: its ordinal, and when the command had ended."""
        done = ended_at_once("actions", "clicks", word, name, "--json", *self.config)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["list"], time.time()

    def dying(self, word: str, name: str, moment: float) -> None:
        """A command that is killed so many seconds after it began."""
        with Process.start("actions", "clicks", word, name, *self.config) as killed:
            time.sleep(moment)
            killed.signal(SIGKILL)

    def kill(self, killed: str, moment: float) -> None:
        """Kill processes after so many seconds, and start them again."""
        of = "run" if killed == "one" else killed
        if of in self.started:
            time.sleep(moment)
            many = 1 if killed == "one" else len(self.started[of])
            for process in self.started[of][:many]:
                process.signal(SIGKILL)
            kept = self.started[of][many:]
            self.started[of] = [*kept, *(self.start(of) for _ in range(many))]

    def wake(self) -> None:
        """Let a frozen owner go on; one that has lost its partition may end."""
        for process in self.started["run"]:
            process.signal(SIGCONT)
        time.sleep(QUIET)
        alive = [of for of in self.started["run"] if of.popen.poll() is None]
        self.started["run"] = [*alive, *(self.start("run") for _ in range(2 - len(alive)))]

    def wrong_of_a_new_cache(self, absent: Sequence[str]) -> int:
        """How many answers of a cache that has just been opened are not to be given."""
        with self.reload() as cache:
            keys = [key.encode() for key in (*BUSY, OLD, NEVER)] * 20
            told = [cache.choose("clicks", key, f"l-{at}").action for at, key in enumerate(keys)]
        return sum(name in absent for name in told)


def turned(
    shop: Shop, killed: str, moment: float, new: str, away: list[Away], since: float
) -> tuple[dict[str, Any], float]:
    """One turn; and when its new action had left again."""
    load = shop.load
    if killed == "frozen":
        shop.freeze.touch()
        until(lambda: not shop.freeze.exists())
    begun = time.time()
    if killed == "command":
        shop.dying("pause", "list", moment)
    lists = [shop.command("pause", "list")]
    adding = time.time()
    if killed == "command":
        shop.dying("add", new, moment)
    lists.append(shop.command("add", new))
    away.append(Away(new, since, adding))
    shop.kill(killed, moment)
    reloaded = shop.wrong_of_a_new_cache(["list"])
    time.sleep(QUIET)
    resuming = time.time()
    away.append(Away("list", lists[0][1], resuming))
    lists.append(shop.command("resume", "list"))
    if killed == "command":
        shop.dying("remove", new, moment)
    lists.append(shop.command("remove", new))
    shop.kill(killed, moment)
    reloaded += shop.wrong_of_a_new_cache([new])
    time.sleep(QUIET)
    ended = time.time()
    if killed == "frozen":
        shop.wake()
    paused, added, resumed, removed = (at for _, at in lists)
    row = {
        "paused": load.last("list", begun - 1, resuming, paused),
        "removed": load.last(new, adding, ended, removed),
        "heard": max(load.unheard(*of) for of in lists),
        "resumed": load.first("list", resuming, ended, resumed),
        "added": load.first(new, adding, resuming, added),
        "reloaded": reloaded,
        "a second": sum(map(len, load.between(begun, ended).values())) / (ended - begun),
    }
    return {"killed": killed, **{name: round(of, 2) for name, of in row.items()}}, removed


def by_request(topic: str, technology: Technology) -> dict[str, list[Any]]:
    """The records of a topic, by the request that they are of."""
    found = defaultdict(list)
    for row in asyncio.run(rows(technology, topic)):
        found[(dict(row[3])["streamdp-request"] or b"").decode()].append(row)
    return found


def in_the_end(load: Load, app: str, technology: Technology) -> dict[str, int]:
    """What became of each request."""
    until(lambda: len(by_request(f"{app}.events", technology)) >= len(load.ranked))
    time.sleep(QUIET)
    names = ("events", "requests", "outcomes")
    events, requests, outcomes = (by_request(f"{app}.{of}", technology) for of in names)
    won = {of for of, (row, *_) in events.items() if json.loads(row[4]) != {"loss": 1.0}}
    due = {
        of
        for of, (row, *_) in requests.items()
        if any(later[1] <= row[1] + 1000 * WINDOW for later in outcomes.get(of, ()))
    }
    rewarded = {of for of, (_, accepted) in load.ranked.items() if accepted}
    return {
        "answered": len(load.ranked),
        "events": sum(map(len, events.values())),
        "missing": len({*load.ranked} - {*events}),
        "twice": sum(len(of) - 1 for of in events.values()),
        "misnamed": sum(
            dict(events[of][0][3])["streamdp-action"] != action.encode()
            for of, (action, _) in load.ranked.items()
            if of in events
        ),
        "inexact": len((won ^ due) & {*events}),
        "rewarded": len(rewarded),
        "late": len(rewarded - won),
        "beside": len(won - rewarded),
    }


def measured(turns: int, folder: Path) -> list[dict[str, Any]]:
    """Everything, with a broker."""
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as running:
        broker = running.enter_context(borrow_broker())
        app, port, freeze = f"catalogue-{os.getpid()}", free_port(), folder / "freeze"
        path, technology = loop_on(
            broker, folder, app, port, http="", learner='schedule = "capped 64"',
            of_stream=f"room = {turns}", actions=json.dumps(ACTIONS), partitions=2,
        )  # fmt: skip
        config = "--config", str(path)

        def start(of: str) -> Process:
            if of != "run":
                return Process.start(of, *config)
            return Process.start(of, *config, program=FREEZING, environment={"FREEZE": str(freeze)})

        several = {"run": 2, "assemble": 1, "serve": 1}
        started = {of: [start(of) for _ in range(n)] for of, n in several.items()}
        running.callback(lambda: [of.end() for some in started.values() for of in some])
        started["serve"][0].hear("http_listening")
        node = running.enter_context(node_reader(folder, config, EXCLUDED))
        topics = StreamTopics(app, "clicks", f"{app}.events")
        source = Source(topics, ACTIONS[0], Names(ACTIONS))

        def opened() -> ActionsCache:
            return ActionsCache(technology.publications, [source])

        cache = running.enter_context(opened())
        away: list[Away] = []
        with Load(port, cache, node) as load:
            shop = Shop(load, started, start, config, opened, freeze)
            until(lambda: {key for _, key in load.between(0, time.time())} >= {*BUSY, OLD, NEVER})
            until(lambda: len({of for of in load.between(0, time.time()) if of[0] == "node"}) == 5)
            load.busy = BUSY
            since = -OBEYED_SECONDS  # no name is shown before it was added
            for turn, killed in zip(range(turns), cycle(KILLED)):
                moment = (0.05, 0.2, 0.5, 1.0)[turn // len(KILLED) % 4]
                new, since = f"new-{turn // 2}", since if turn % 2 else -OBEYED_SECONDS
                row, since = turned(shop, killed, moment, new, away, since)
                print(row, flush=True)
                worst = found.setdefault(killed, row)
                for name in ("paused", "removed", "heard", "resumed", "added", "reloaded"):
                    worst[name] = max(worst[name], row[name])
            time.sleep(2 * REWARD_AFTER)
        told = [one for of in load.told.values() for one in of]
        latencies = sorted(one.answered - one.asked for one in load.told["http"])
        ended = in_the_end(load, app, technology)
        verified = ended_at_once("ledger", "verify", *config)
        slots, of_actions = shows(config)
        ended |= {"null": slots - sum(of_actions), "verify": verified.returncode}
    return [
        *found.values(),
        {
            "told": len(told),
            "wrong": load.wrong(away),
            "fallback": sum(one.fallback for one in told),
            "unanswered": dict(load.unanswered),
            **ended,
            "p50": round(latencies[len(latencies) // 2], 4),
            "p99": round(latencies[len(latencies) * 99 // 100], 4),
            "load": round(os.getloadavg()[0], 1),
        },
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=12)
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
