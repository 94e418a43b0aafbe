"""A shop whose requests and outcomes are assembled by real processes, on whatever technology.

Visitors' requests and clicks are sent while assemblers are killed. What they must come to is the
join of the two logs as they are in the end, by the model that was written from the documents.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from streamdp.assembly.persons import Cap
from streamdp.ports import Headers, Key, StreamTopics, Value
from streamdp.service.config import Configuration
from tests.support.assembly_model import Logs, Record, expected_events
from tests.support.processes import LONG, Process
from tests.support.shop_files import joined_shop

TABLES = """
schedule = "capped 4"
[service]
idle_commit_seconds = 0.05
[log]
format = "json"
"""
OF_ASSEMBLY = """
grace = "1s"
default_loss = 0.75
[assemblies.join.persons]
most = 2
slots = 5
secret_file = "{secret}"
"""
SECRET = b"a secret of the tests"
PARTITIONS = 2
SKEW = (
    400  # milliseconds by which an assembler's clock may be wrong: two differ by less than a grace
)
IDLE = 15  # requests, after which a partition falls idle, or is visited again
HOMES: list[tuple[Key, int]] = [(b"fr", 0), (None, 0), (b"de", 1), (b"\xff\x00:", 1)]


def configured(folder: Path, *, app: str, transport: str) -> Path:
    """A shop's configuration."""
    secret, path = folder / "secret", folder / "shop.toml"
    secret.write_bytes(SECRET)
    text = joined_shop(
        app=app,
        transport=transport,
        of_topics="partitions = 2",
        feedback='content = "loss"',
        tables=TABLES,
        combine="last",
        of_assembly=OF_ASSEMBLY.format(secret=secret),
    )
    path.write_text(text)
    return path


@dataclass
class Shop:
    """A configuration, its options on the command line, and its logs."""

    path: Path
    options: tuple[str, ...] = ()
    random: random.Random = field(default_factory=lambda: random.Random(3))
    enough: bool = True  # whether visitors may stop coming when as many came as are wanted
    visited: int = 0

    def __post_init__(self) -> None:
        """Open the technology as the command line would."""
        extra = {"single_broker": True} if self.options else {}
        self.configuration = Configuration.load(self.path, {})
        self.technology = self.configuration.technology(**extra)
        self.app = self.configuration.app

    def start(self, *command: str) -> Process:
        """One process."""
        return Process.start(*command, "--config", str(self.path), *self.options)

    def start_skewed(self, *command: str) -> Process:
        """One process with a clock that is wrong."""
        skew = self.random.randrange(-SKEW, SKEW)
        program = (
            "import time; right = time.time_ns; "
            f"time.time_ns = lambda: right() + {skew} * 1_000_000; "
            "from streamdp.cli import main; main()"
        )
        return Process.start(*command, "--config", str(self.path), *self.options, program=program)

    async def visit(self, *, count: int, rest: float) -> None:
        """Requests, some with an id that was used, and clicks on any of them, in any order.

        By turns one partition is idle, or none.
        """
        producer = self.technology.producer()
        sent: list[tuple[Key, Headers, int]] = []
        stop = self.visited + count
        while self.visited < stop or not self.enough:
            idle = self.visited // IDLE % 3
            key, home = self.random.choice([pair for pair in HOMES if pair[1] != idle])
            ids = self._ids()
            headers: Headers = [
                *ids,
                ("streamdp-person", b"p%d" % self.random.randrange(4)),
                ("streamdp-action", self.random.choice([b"grid", b"list"])),
            ]
            topic = f"{self.app}.requests"
            await producer.send(topic, [(key, b"content")], headers=[headers], partition=home)
            self.visited += 1
            sent = [*sent[-9:], (key, ids, home)]
            for _ in range(self.random.randrange(3)):
                key, ids, home = self.random.choice(sent)
                topic, value = f"{self.app}.outcomes", self._outcome()
                doubled = [(key, value)] * self.random.choice([1, 1, 2])
                await producer.send(topic, doubled, headers=[ids] * len(doubled), partition=home)
            await asyncio.sleep(rest)
        await producer.close()

    def _ids(self) -> Headers:
        """The id's header as it should be, nine times of ten."""
        wanted = ("streamdp-request", b"r%d" % self.random.randrange(self.visited + 1))
        if self.random.random() < 0.9:
            return [wanted]
        return self.random.choice([[], [wanted, wanted], [("streamdp-request", None)]])

    def _outcome(self) -> Value:
        """What came, and one time of ten anything."""
        if self.random.random() < 0.9:
            return b'{"reward": %.2f}' % self.random.random()
        wrong = [
            None,
            b"",
            b"\xff nonsense",
            b"[" * 5000,
            b'{"reward": 1e999}',
            b'{"reward": true}',
        ]
        return self.random.choice(wrong)

    async def columns(self, topic: str) -> list[list[Record]]:
        """What lies in each partition."""
        reader = StreamTopics("reader", "reader", f"{self.app}.{topic}", headers=True)
        tools = self.technology.administrator()
        lies: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        try:
            async for batch in tools.history(reader, after={}):
                lies[batch.partition.number] += [
                    (stamp, key, list(headers), value)
                    for stamp, key, headers, value in zip(
                        batch.timestamps, batch.keys, batch.headers, batch.values, strict=True
                    )
                ]
        finally:
            await tools.close()
        return lies

    async def assembled(self) -> int:
        """How many events there are."""
        return sum(map(len, await self.columns("events")))

    async def check(self) -> None:
        """Every partition's events are the join of its logs, in the order of requests."""
        (spec,) = self.configuration.assemblies()
        values = set()
        columns = [await self.columns(topic) for topic in ("requests", "outcomes", "events")]
        for requests, outcomes, events in zip(*columns, strict=True):
            expected = expected_events(Logs(requests, outcomes), spec.rules, Cap(2, 5, SECRET))
            losses = [json.loads(value or b"") for _, value, _ in expected]
            assert [(key, value, headers) for _, key, headers, value in events] == [
                (key, spec.encode(loss), headers)
                for (key, _, headers), loss in zip(expected, losses, strict=True)
            ]
            assert len({len(value or b"") for *_, value in events}) == 1
            values |= {loss for (loss,) in losses}
        assert len(values) > 4


async def killed(
    shop: Shop,
    *,
    count: int,
    times: int,
    processes: int = 1,
    rest: float = 0.05,
    restart: Callable[[], None] | None = None,
) -> Counter[str]:
    """Visitors come while assemblers are killed; then they are let finish, and drained.

    Each fifth kill is the broker's, where there is one to `restart`. How often who was killed.
    """
    kills: Counter[str] = Counter()
    shop.enough = False
    visits = asyncio.create_task(shop.visit(count=count, rest=rest))
    running = [shop.start_skewed("assemble") for _ in range(processes)]
    try:
        for number in range(times):
            if restart is not None and number % 5 == 2:
                await asyncio.sleep(shop.random.random())
                await asyncio.to_thread(restart)
                kills["broker"] += 1
                continue
            victim = running.pop(0)
            if number % 4 != 3:  # else in the middle of its start
                await asyncio.to_thread(victim.hear, "partition_running")
            await asyncio.sleep(shop.random.random())
            victim.popen.send_signal(signal.SIGKILL)
            await asyncio.to_thread(victim.popen.wait)
            kills["assembler"] += 1
            running.append(shop.start_skewed("assemble"))
        shop.enough = True
        await visits
        async with asyncio.timeout(LONG):
            while await shop.assembled() < shop.visited:
                await asyncio.sleep(0.1)
        for process in running:
            await asyncio.to_thread(process.hear, "joined")
            assert await asyncio.to_thread(process.end) == 0
        return kills
    finally:
        visits.cancel()
        for process in running:
            process.__exit__()
