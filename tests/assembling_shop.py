"""A shop whose requests and outcomes are assembled by real processes, on whatever technology.

Visitors' requests and clicks are sent while assemblers are killed. What they must come to is the
join of the two logs as they are in the end, by the model that was written from the documents.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from streamdp.assembly.persons import Cap
from streamdp.ports import Headers, Key, StreamTopics, Value
from streamdp.service.config import Configuration
from tests.assembly_model import Logs, Record, expected_events
from tests.processes import Process

CONFIG = """
app = "{app}"
[transport]
{transport}
[topics."{app}.requests"]
budget = "1"
partitions = 2
[topics."{app}.events"]
budget = "1"
partitions = 2
[streams.home]
input = "{app}.events"
start = "earliest"
observes = "feedback"
actions = ["grid", "list"]
[streams.home.feedback]
content = "loss"
[streams.home.learner]
epsilon = "1"
schedule = "capped 4"
[assemblies.clicks]
requests = "{app}.requests"
outcomes = "{app}.outcomes"
stream = "home"
start = "earliest"
mode = "feedback"
window = "1s"
grace = "1s"
combine = "last"
default_loss = 0.75
[assemblies.clicks.persons]
most = 2
slots = 5
secret_file = "{secret}"
[service]
idle_commit_seconds = 0.05
[log]
format = "json"
"""
SECRET = b"a secret of the tests"
PARTITIONS = 2


def configured(folder: Path, *, app: str, transport: str) -> Path:
    """A shop's configuration."""
    secret, path = folder / "secret", folder / "shop.toml"
    secret.write_bytes(SECRET)
    path.write_text(CONFIG.format(app=app, transport=transport, secret=secret))
    return path


@dataclass
class Shop:
    """A configuration, its options on the command line, and its logs."""

    path: Path
    options: tuple[str, ...] = ()
    random: random.Random = field(default_factory=lambda: random.Random(3))

    def __post_init__(self) -> None:
        """Open the technology as the command line would."""
        extra = {"single_broker": True} if self.options else {}
        self.configuration = Configuration.load(self.path, {})
        self.technology = self.configuration.technology(**extra)
        self.app = self.configuration.app

    def start(self, *command: str) -> Process:
        """One process."""
        return Process.start(*command, "--config", str(self.path), *self.options)

    async def visit(self, *, count: int, rest: float) -> None:
        """Requests, some with an id that was used, and clicks on any of them, in any order."""
        producer = self.technology.producer()
        sent: list[tuple[Key, bytes, int]] = []
        for number in range(count):
            key: Key
            key, home = self.random.choice([(b"fr", 0), (b"de", 1)])
            name = b"r%d" % self.random.randrange(number + 1)
            headers: Headers = [
                ("streamdp-request", name),
                ("streamdp-person", b"p%d" % self.random.randrange(4)),
                ("streamdp-action", self.random.choice([b"grid", b"list"])),
            ]
            topic = f"{self.app}.requests"
            await producer.send(topic, [(key, b"content")], headers=[headers], partition=home)
            sent.append((key, name, home))
            for _ in range(self.random.randrange(3)):
                key, name, home = self.random.choice(sent[-5:])
                value = b'{"reward": %.2f}' % self.random.random()
                if self.random.random() < 0.1:
                    value = b"\xff nonsense"
                clicked: Headers = [("streamdp-request", name)]
                topic = f"{self.app}.outcomes"
                await producer.send(topic, [(key, value)], headers=[clicked], partition=home)
            await asyncio.sleep(rest)
        await producer.close()

    async def column(self, topic: str, number: int) -> list[Record]:
        """What lies in a partition."""
        reader = StreamTopics("reader", "reader", f"{self.app}.{topic}", headers=True)
        tools = self.technology.administrator()
        try:
            return [
                (stamp, key, list(headers), value)
                async for batch in tools.history(reader, after={})
                if batch.partition.number == number
                for stamp, key, headers, value in zip(
                    batch.timestamps, batch.keys, batch.headers, batch.values, strict=True
                )
            ]
        finally:
            await tools.close()

    async def assembled(self) -> int:
        """How many events there are."""
        return sum([len(await self.column("events", number)) for number in range(PARTITIONS)])

    async def check(self) -> None:
        """Every partition's events are the join of its logs, in the order of requests."""
        (spec,) = self.configuration.assemblies()
        values = set()
        for number in range(PARTITIONS):
            logs = Logs(
                await self.column("requests", number), await self.column("outcomes", number)
            )
            events = await self.column("events", number)
            expected = expected_events(logs, spec.rules, Cap(2, 5, SECRET))
            assert [(key, headers) for _, key, headers, _ in events] == [
                (key, headers) for key, _, headers in expected
            ]
            losses = [_loss(value) for *_, value in events]
            assert losses == [np.float32(json.loads(value or b"")[0]) for _, value, _ in expected]
            assert len({len(value or b"") for *_, value in events}) == 1
            values |= set(losses)
        assert len(values) > 4


def _loss(value: Value) -> np.float32:
    return np.float32(json.loads(value or b"")["loss"])


async def killed(shop: Shop, *, count: int, times: int, processes: int = 1) -> None:
    """Visitors come while assemblers are killed; then they are let finish, and drained."""
    visits = asyncio.create_task(shop.visit(count=count, rest=0.05))
    running = [shop.start("assemble") for _ in range(processes)]
    try:
        for _ in range(times):
            victim = running.pop(0)
            await asyncio.to_thread(victim.hear, "partition_running")
            await asyncio.sleep(shop.random.random())
            victim.popen.send_signal(signal.SIGKILL)
            await asyncio.to_thread(victim.popen.wait)
            running.append(shop.start("assemble"))
        await visits
        async with asyncio.timeout(60):
            while await shop.assembled() < count:
                await asyncio.sleep(0.1)
        for process in running:
            await asyncio.to_thread(process.hear, "joined")
            assert await asyncio.to_thread(process.end) == 0
    finally:
        visits.cancel()
        for process in running:
            process.__exit__()
