"""Is a stream's list obeyed at once and never half written, whoever dies in the middle?"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from signal import SIGKILL
from subprocess import DEVNULL, PIPE, Popen
from threading import Event, Thread

import numpy as np
import pytest

from streamdp.client import ActionsCache, Names, Source, Why
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SUMS
from streamdp.ports import StreamTopics
from streamdp.testing.broker import Borrowed
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from streamdp_adapters.kafka import KafkaTechnology
from streamdp_adapters.kafka.catalogue import LIST_KEY, NewestLists
from streamdp_adapters.kafka.internals import AbandonableProducer
from streamdp_adapters.kafka.sending import Outbox
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.topics import administration
from tests.kafka.test_rank_and_reward_kafka import loop_on
from tests.support.asking import free_port
from tests.support.forking import parent
from tests.support.loops import rows
from tests.support.processes import MAIN, Process, ended_at_once, until
from tests.support.publishing import LINES, action, list_record, release

pytestmark = pytest.mark.kafka

OBEYED_SECONDS = 2.0
ROOT = Path(__file__).resolve().parents[2]


def settings(broker: Borrowed) -> KafkaSettings:
    return KafkaSettings.parse({"bootstrap": broker.bootstrap, "single_broker": True})


async def left_open(
    broker: Borrowed, identity: str, topic: str, key: bytes, value: bytes
) -> AbandonableProducer:
    """A producer that has sent something in a transaction, and goes no further."""
    producer = AbandonableProducer(**settings(broker).client(), transactional_id=identity)
    await producer.start()
    await producer.begin_transaction()
    out = Outbox(producer)
    await out.put(topic, 0, [(key, value)])
    await out.acknowledged()
    return producer


async def test_a_pause_is_obeyed_while_an_owner_is_stuck_within_a_commit(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """Its transaction holds up readers of the actions, and must not hold up the list."""
    topics = StreamTopics(fresh_app(), "home", "clicks")
    technology = KafkaTechnology(settings(broker))
    tools = technology.administrator()
    await tools.create([topics], partitions=2)
    first = action(release(b"fr", 1)).value
    owner = await left_open(broker, f"{topics.app}.home.0", topics.actions, b"fr", first)
    await owner.commit_transaction()
    async with ActionsCache(technology.publications, [Source(topics, "a")]) as cache:
        assert cache.action("home", b"fr").action == "b"
        await owner.begin_transaction()
        out = Outbox(owner)
        await out.put(topics.actions, 0, [(b"fr", action(release(b"fr", 2, block=1)).value)])
        await out.acknowledged()
        await tools.revise(topics, lambda _: list_record(1, paused=["b"]).value)
        began = time.monotonic()
        while cache.action("home", b"fr").why is not Why.PAUSED:
            await asyncio.sleep(0.01)
            assert time.monotonic() - began < OBEYED_SECONDS
        async with ActionsCache(technology.publications, [Source(topics, "a")]) as later:
            assert later.action("home", b"fr").action == "a"
    await owner.stop()


async def test_a_command_that_dies_in_its_transaction_is_as_if_it_had_not_begun(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """The next one takes its place at once, and does not read what it had written."""
    topics = StreamTopics(fresh_app(), "home", "clicks")
    technology = KafkaTechnology(settings(broker))
    tools, reader = technology.administrator(), technology.publications()
    await tools.create([topics], partitions=1)
    await tools.revise(topics, lambda _: b"one")
    identity = f"{topics.app}.home.catalogue"
    dead = await left_open(broker, identity, topics.catalogue, LIST_KEY, b"half")
    began = time.monotonic()
    assert await tools.revise(topics, lambda before: (before or b"") + b" two") == b"one two"
    assert time.monotonic() - began < 10
    lists = [r.value async for b in reader.catalogue(topics, follow=False) for r in b]
    assert lists[-1] == b"one two"
    assert b"half" not in lists
    await dead.stop()
    await reader.close()


async def test_an_owner_reads_what_is_committed_and_waits_for_nothing_else(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """A command that is stuck in its transaction holds up no poll."""
    topics = StreamTopics(fresh_app(), "home", "clicks")
    technology = KafkaTechnology(settings(broker))
    tools = technology.administrator()
    await tools.create([topics], partitions=1)
    lists = NewestLists(settings(broker))
    assert await lists.newest(topics) is None
    await tools.revise(topics, lambda _: b"one")
    while await lists.newest(topics) != b"one":  # the command returns a moment before
        await asyncio.sleep(0.01)
    identity = f"{topics.app}.home.catalogue"
    stuck = await left_open(broker, identity, topics.catalogue, LIST_KEY, b"half")
    began = time.monotonic()
    for _ in range(50):
        assert await lists.newest(topics) == b"one"
    assert time.monotonic() - began < OBEYED_SECONDS
    await stuck.commit_transaction()
    while await lists.newest(topics) != b"half":
        await asyncio.sleep(0.01)
    await stuck.stop()
    await lists.close()


async def test_a_reader_of_a_stream_without_a_catalogue_says_what_to_do(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    topics = StreamTopics(fresh_app(), "home", "clicks")
    technology = KafkaTechnology(settings(broker))
    with pytest.raises(InvalidConfig, match="`streamdp topics create`"):
        await technology.administrator().revise(topics, lambda _: b"")
    source = Source(topics, LINES.actions[0])
    with pytest.raises(InvalidConfig, match="`streamdp topics create`"):
        async with ActionsCache(technology.publications, [source]):
            raise AssertionError


# -- beside traffic ------------------------------------------------------------------------------

NODE_READER = """
import { createInterface } from "node:readline";
const policies = new Map(), excluded = process.argv.slice(2);
let list = { ordinal: 0, paused: [] }, asked = 0;
createInterface({ input: process.stdin }).on("line", (text) => {
  const line = JSON.parse(text);
  if (line.type === "policy") policies.set(line.key, line);
  else if (line.ordinal > list.ordinal) list = line;
}).on("close", () => process.exit());
setInterval(() => {
  const without = asked++ % 3 ? [] : excluded;
  for (const [key, policy] of policies) {
    const added = list.epoch === policy.epoch ? list.actions : [];
    const by = { salt: "", exclude: [...list.paused, ...without], ordinal: list.ordinal, added };
    const chosen = choose(policy, `n-${asked}`, by);
    const { ordinal } = list, at = Date.now() / 1000;
    if (chosen) console.log(JSON.stringify({ at, key, action: chosen.action, without, ordinal }));
  }
}, 20);
"""
"""Draws for each key from what `streamdp watch --json` prints, with the functions of `draw.mjs`.

Every third time without the actions of its arguments.
"""


@contextmanager
def node_reader(folder: Path, config: Sequence[str], *excluded: str) -> Iterator[Popen[bytes]]:
    """It, behind a `streamdp watch`."""
    functions = (ROOT / "docs/programs/draw.mjs").read_text().partition("const line = JSON")[0]
    (folder / "reader.mjs").write_text(functions + NODE_READER)
    watching = ["watch", "--stream", "clicks", "--json", *config]
    reading = ["node", str(folder / "reader.mjs"), *excluded]
    with (
        parent().start(MAIN, watching, stdout=PIPE, stderr=DEVNULL) as watch,
        Popen(reading, stdin=watch.stdout, stdout=PIPE) as node,
    ):
        try:
            yield node
        finally:
            watch.kill()
            node.kill()


def shows(config: Sequence[str]) -> tuple[int, list[int]]:
    """How many slots the released blocks have, and how many shows each of their columns."""
    slots, columns = 0, np.zeros(0, dtype=np.int64)
    said = ended_at_once("ledger", "show", "--stream", "clicks", "--json", *config)
    for text in said.stdout.splitlines():
        line = decode_ledger(text.encode())
        if isinstance(line, Charge) and line.kind == SUMS:
            released = line.released()
            assert released is not None
            slots += line.stop - line.start
            columns = released[len(released) // 2 :] + (columns if len(columns) else 0)
    return slots, columns.tolist()


class Readers:
    """Three programs that ask for one key all the time, and what they were told, with the time."""

    def __init__(self, port: int, cache: ActionsCache, node: Popen[bytes]) -> None:
        self.told: dict[str, list[tuple[float, str]]] = {"http": [], "cache": [], "node": []}
        self.ranked = 0
        self._port, self._cache, self._node = port, cache, node
        self._enough = Event()
        self._threads = [Thread(target=of) for of in (self._http, self._python, self._javascript)]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask no more; what was asked is answered."""
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def _http(self) -> None:
        """Ranks, and rewards for every other one, so that events come."""
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=120)) as connection:
            self._visit(connection)

    def _visit(self, connection: HTTPConnection) -> None:
        while not self._enough.wait(0.01):
            begun, request = time.time(), {"key": "fr", "request": f"h-{self.ranked}"}
            connection.request("POST", "/v1/streams/clicks/rank", json.dumps(request))
            answer = connection.getresponse()
            said = json.loads(answer.read())
            if answer.status == 503 and "nothing was written" in said["title"]:
                continue  # it is still loading the policies
            self.told["http"].append((begun, said["action"]))
            if self.ranked % 2:
                body = json.dumps({**request, "reward": 1})
                connection.request("POST", "/v1/streams/clicks/reward", body)
                connection.getresponse().read()
            self.ranked += 1

    def _python(self) -> None:
        for number in count():
            if self._enough.wait(0.005):
                return
            begun = time.time()
            action = self._cache.choose("clicks", b"fr", f"p-{number}").action
            self.told["cache"].append((begun, action))

    def _javascript(self) -> None:
        assert self._node.stdout is not None
        for line in self._node.stdout:
            told = json.loads(line)
            self.told["node"].append((told["at"], told["action"]))
            if self._enough.is_set():
                return

    def since(self, reader: str, begin: float, end: float = float("inf")) -> list[str]:
        """What a reader was told between two times."""
        return [name for at, name in list(self.told[reader]) if begin < at < end]

    def all_show(self, name: str, since: float) -> bool:
        """Whether each of them has shown this action since then."""
        return all(name in self.since(reader, since) for reader in self.told)


async def test_an_administration_that_is_cancelled_leaves_no_connection_open(
    broker: Borrowed,
) -> None:
    """Wherever it is: a follower is, when another one of its cache finds no topic."""

    async def entered() -> None:
        async with administration(settings(broker)):
            await asyncio.sleep(30)

    for steps in range(1, 60):
        task = asyncio.create_task(entered())
        for _ in range(steps):
            await asyncio.sleep(0.0007)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del task
        gc.collect()  # what is still open warns, and a warning is an error


@pytest.mark.long
@pytest.mark.system("node")
def test_no_reader_shows_what_is_paused_whoever_is_killed_beside_traffic(
    broker: Borrowed, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    """HTTP, the Python cache and a Node program; the owner is killed, and commands are.

    An action is added meanwhile, and the owner's successor knows it: each event is a show.
    """
    app, port = fresh_app(), free_port()
    of_stream = "room = 2"
    path, technology = loop_on(broker, tmp_path, app, port, http="", of_stream=of_stream)
    config = "--config", str(path)
    source = Source(StreamTopics(app, "clicks", f"{app}.events"), "grid", Names(("grid", "list")))

    def command(*words: str) -> None:
        done = ended_at_once("actions", "clicks", *words, *config)
        assert done.returncode == 0, done.stderr

    def paused_is_obeyed() -> None:
        """From two seconds after the command on, for half a second."""
        paused = time.time()
        time.sleep(OBEYED_SECONDS + 0.5)
        for reader in readers.told:
            told = readers.since(reader, paused + OBEYED_SECONDS)
            assert (len(told) > 5, {*told} - {"tiles"}) == (True, {"grid"}), reader

    with ExitStack() as running:
        started = {of: Process.start(of, *config) for of in ("run", "assemble", "serve")}
        for process in started.values():
            running.enter_context(process)
        started["serve"].hear("http_listening")
        node = running.enter_context(node_reader(tmp_path, config))
        cache = running.enter_context(ActionsCache(technology.publications, [source]))
        readers = running.enter_context(Readers(port, cache, node))
        until(lambda: readers.all_show("list", 0) and readers.all_show("grid", 0))

        added = time.time()
        command("add", "tiles")
        until(lambda: readers.all_show("tiles", added))
        command("pause", "list")
        started["run"].signal(SIGKILL)  # the owner, within whatever it was doing
        paused_is_obeyed()
        running.enter_context(Process.start("run", *config))
        resumed = time.time()
        command("resume", "list")
        until(lambda: readers.all_show("list", resumed))

        for moment in (0.05, 0.2, 0.5):
            with Process.start("actions", "clicks", "pause", "list", *config) as killed:
                time.sleep(moment)
                killed.signal(SIGKILL)
        command("pause", "list")
        paused_is_obeyed()
        resumed = time.time()
        command("resume", "list")
        until(lambda: readers.all_show("list", resumed))
        until(lambda: bool(shows(config)[1][2]))  # of what was added, in a block that ended
        readers.stop()
        events = f"{app}.events"
        until(lambda: len(asyncio.run(rows(technology, events))) >= readers.ranked)
    verified = ended_at_once("ledger", "verify", *config)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    slots, of_actions = shows(config)
    assert slots == sum(of_actions)
    assert [count > 0 for count in of_actions] == [True, True, True, False]
    ids = [dict(row[3])["streamdp-request"] or b"" for row in asyncio.run(rows(technology, events))]
    assert sorted(ids) == sorted(b"h-%d" % number for number in range(readers.ranked))
