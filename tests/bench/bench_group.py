"""What a Kafka group costs its service: a restart, a rebalance and a backlog, seen from outside.

    python tests/bench/bench_group.py [--json FILE] [--quick] [--before OTHER/.venv/bin/python]

Three measurements, each of `streamdp run` with default settings but for a name
(`service.worker`), commits ten times a second where nothing is drawn (a pause could not be seen
otherwise), and one broker. What a process has done is what its consumer group has committed.

- **restart**: from the start of a lone process until every partition has committed again, after an
  orderly end (bare) and after SIGKILL. Kafka Streams with its defaults does the same.
- **pause**: the longest time without a commit of a partition that its process keeps, while two more
  processes join (1 → 3) and while they leave (3 → 1); beside it the longest one while nothing
  happens. All processes share this machine, which a joining one keeps busy. Then the longest one
  in a rebalance that another member, busy for four seconds, holds up, and how long that lasted.
- **backlog**: partitions with more input than can be learned: how far the first is ahead of the
  last, and the longest time that one of them waits while its siblings are served.

`--before` names the interpreter of another checkout, which is measured in turn with this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from streamdp.ports import StreamTopics
from streamdp.testing.broker import THROUGHPUT, borrow_broker
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.technology import KafkaTechnology
from tests.bench.peers.candidates import Place, build_kafka_streams, kafka_streams
from tests.bench.peers.inputs import Input, new_name
from tests.bench.peers.processes import Process

INPUT = Input("float32", 10, 1000)
TABLES = ("restart", "pause", "backlog")
OURS, BEFORE, STREAMS = "streamdp", "streamdp before", "Kafka Streams"

_LOOK_SECONDS = 0.02
_PATIENCE = 150.0  # longer than two session time-outs of Kafka's default
_RATE = 2000  # records a second, of all partitions together, while restarts and pauses are measured
_TICK_SECONDS = 0.02
_SETTLE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    turns: int  # of restarts and pauses, of which the median counts
    quiet_seconds: float
    backlog_records: int  # of one partition
    backlog_seconds: float


FULL = Sizes(3, 15.0, 400_000, 30.0)
QUICK = Sizes(1, 8.0, 200_000, 15.0)


@dataclass(slots=True)
class Progress:
    """When each partition's committed offset was seen to move."""

    moves: dict[int, list[tuple[float, int]]] = field(default_factory=dict)

    def see(self, offsets: Mapping[int, int]) -> None:
        """Remember what has moved."""
        now = time.monotonic()
        for number, offset in offsets.items():
            known = self.moves.setdefault(number, [])
            if not known or offset > known[-1][1]:
                known.append((now, offset))

    def moved_since(self, moment: float, partitions: int) -> bool:
        """Whether every partition has."""
        moved = [number for number, known in self.moves.items() if known[-1][0] > moment]
        return len(moved) == partitions

    def longest(self, number: int, begin: float, end: float) -> float:
        """The longest time without a move of one partition."""
        moves = self.moves.get(number, [])
        times = [begin, *(at for at, _ in moves if begin < at < end), end]
        return max(after - before for before, after in pairwise(times))

    def reached(self, number: int) -> int:
        """The newest offset."""
        return self.moves[number][-1][1] if number in self.moves else 0


@dataclass(slots=True)
class Bench:
    """One broker and one folder for everything."""

    bootstrap: str
    folder: Path
    sizes: Sizes
    pythons: Mapping[str, str]  # by who is measured
    rows: list[dict[str, Any]] = field(default_factory=list)
    started: list[Process] = field(default_factory=list)

    async def run(self, only: Sequence[str]) -> None:
        """Everything that is asked for, by turns."""
        turns = self.sizes.turns
        for who in [*self.pythons] * turns if "restart" in only else []:
            await self.restart(who, self._ours)
        if "restart" in only and build_kafka_streams():
            await self.restart(STREAMS, self._kafka_streams)
        for who in [*self.pythons] * turns if "pause" in only else []:
            await self.pause(who)
        for who in self.pythons if "backlog" in only else []:
            await self.backlog(who)

    # -- measurements ------------------------------------------------------------------------------

    async def restart(self, who: str, make: Callable[..., Any], partitions: int = 4) -> None:
        """Start after an orderly end, and after SIGKILL."""
        topic, start, group = await make(who, partitions)
        async with loaded(self.bootstrap, topic, partitions), self._watched(group) as progress:
            process = start("first")
            await _until(lambda: progress.moved_since(0.0, partitions))
            seconds = {}
            for after, how in (("bare", signal.SIGTERM), ("killed", signal.SIGKILL)):
                await asyncio.sleep(_SETTLE_SECONDS)
                await asyncio.to_thread(process.kill, how)
                begun = time.monotonic()
                process = start("first")
                await _until(lambda: progress.moved_since(begun, partitions))  # noqa: B023
                seconds[after] = time.monotonic() - begun
            process.kill()
        ratio = round(seconds["killed"] / seconds["bare"], 2)
        self._tell("restart", who, **_rounded(seconds), ratio=ratio)

    async def pause(self, who: str, partitions: int = 6) -> None:
        """Two join and leave again, while the first one keeps a third of the partitions."""
        topic, start, group = await self._ours(who, partitions)
        async with loaded(self.bootstrap, topic, partitions), self._watched(group) as progress:
            processes = [start("first")]
            await _until(lambda: progress.moved_since(0.0, partitions))
            await asyncio.sleep(_SETTLE_SECONDS)
            marks = [time.monotonic()]
            await asyncio.sleep(self.sizes.quiet_seconds)
            marks.append(time.monotonic())
            processes += [start("second"), start("third")]
            await _until(lambda: min(len(_owned(process)) for process in processes[1:]) == 2)
            await asyncio.sleep(_SETTLE_SECONDS)
            kept = set(range(partitions)) - set().union(*map(_owned, processes[1:]))
            marks.append(time.monotonic())
            await asyncio.gather(
                *(asyncio.to_thread(process.kill, signal.SIGTERM) for process in processes[1:])
            )
            await _until(lambda: progress.moved_since(time.monotonic() - 1, partitions))
            await asyncio.sleep(_SETTLE_SECONDS)
            marks.append(time.monotonic())
            async with busy_member(self.bootstrap, group, topic) as busy:
                await asyncio.sleep(_SETTLE_SECONDS)
                still, begun = _owned(processes[0]), time.monotonic()
                async with busy_member(self.bootstrap, group, topic, seconds=0.0):
                    held = time.monotonic()
                    still &= _owned(processes[0])
            assert busy.rebalances > 0
            processes[0].kill()
        longest = {
            name: max(progress.longest(number, *span) for number in kept)
            for name, span in zip(("quiet", "1→3", "3→1"), pairwise(marks), strict=True)
        }
        longest["held"] = max(progress.longest(number, begun, held) for number in still)
        lasted = round(held - begun, 2)
        self._tell("pause", who, kept=len(kept), **_rounded(longest), lasted=lasted)

    async def backlog(self, who: str, partitions: int = 32) -> None:
        """More input than can be learned."""
        topic, start, group = await self._ours(who, partitions)
        records = self.sizes.backlog_records
        await fill(self.bootstrap, topic, partitions, records)
        async with self._watched(group) as progress:
            process = start("first")
            await _until(lambda: any(progress.reached(number) for number in range(partitions)))
            begun = time.monotonic()
            await asyncio.sleep(self.sizes.backlog_seconds)
            ended = time.monotonic()
            done = [progress.reached(number) for number in range(partitions)]
            lost = process.log.read_text("utf-8").count('"partition_lost"')
            process.kill()
        longest = max(progress.longest(number, begun, ended) for number in range(partitions))
        self._tell(
            "backlog",
            who,
            seconds=self.sizes.backlog_seconds,
            records=sum(done),
            finished=max(done) >= records,
            behind=round(min(done) / max(done), 2),
            longest=round(longest, 2),
            lost=lost,
        )

    # -- who is measured ---------------------------------------------------------------------------

    async def _ours(self, who: str, partitions: int) -> tuple[str, Callable[..., Process], str]:
        """The input, what starts a named process, and the group."""
        app, settings = new_name(), KafkaSettings(bootstrap=self.bootstrap, single_broker=True)
        topics = StreamTopics(app, "sums", f"{app}-input")
        await KafkaTechnology(settings).administrator().create([topics], partitions=partitions)
        path = self.folder / f"{app}.toml"
        program = Path(self.pythons[who]).with_name("streamdp")
        settings_file = _configuration(self.bootstrap, topics)
        path.write_text(tomli_w.dumps(settings_file), "utf-8")
        if subprocess.run([program, "check", "--config", path], capture_output=True).returncode:
            del settings_file["service"]  # an older version commits idle partitions at its own pace
            path.write_text(tomli_w.dumps(settings_file), "utf-8")

        def start(name: str) -> Process:
            return self._begun(
                [str(program), "run", "--config", str(path)],
                {"STREAMDP__SERVICE__WORKER": name},
                self.folder / f"{app}-{name}.log",
            )

        return topics.input, start, f"{app}.sums"

    async def _kafka_streams(
        self, who: str, partitions: int
    ) -> tuple[str, Callable[..., Process], str]:
        """The same of the peer."""
        topic = f"{new_name()}-input"
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(topic, partitions, 1)])
        await admin.close()
        peer = await kafka_streams(Place(self.bootstrap, topic, INPUT, self.folder))

        def start(name: str) -> Process:
            log = self.folder / f"{peer.group}-{name}.log"
            return self._begun(peer.commands[0], {}, log)

        return topic, start, peer.group

    @asynccontextmanager
    async def _watched(self, group: str) -> AsyncIterator[Progress]:
        """What a group commits, for as long as the block lasts."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        progress = Progress()

        async def watch() -> None:
            while True:
                with suppress(KafkaError):  # a young broker has no coordinator yet
                    offsets = await admin.list_consumer_group_offsets(group)
                    progress.see({place.partition: kept.offset for place, kept in offsets.items()})
                await asyncio.sleep(_LOOK_SECONDS)

        watching = asyncio.create_task(watch())
        try:
            yield progress
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            await admin.close()

    def _begun(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Process:
        """A process that does not outlive the benchmark."""
        self.started.append(Process(command, environment, log))
        return self.started[-1]

    def end(self) -> None:
        """End whatever still runs."""
        for process in self.started:
            process.kill()

    def _tell(self, table: str, who: str, **row: object) -> None:
        """Print a line of a table, and keep it."""
        self.rows.append({"table": table, "who": who, **row})
        print(f"{table:9}{who:17}" + "  ".join(f"{name} {value}" for name, value in row.items()))
        sys.stdout.flush()


def _configuration(bootstrap: str, topics: StreamTopics) -> dict[str, object]:
    """The service's file."""
    return {
        "app": topics.app,
        "transport": {"kind": "kafka", "bootstrap": bootstrap, "single_broker": True},
        "service": {"idle_commit_seconds": 0.1},
        "topics": {topics.input: {"budget": "1"}},
        "streams": {
            topics.stream: {
                "input": topics.input,
                "start": "earliest",
                "actions": INPUT.labels,
                "format": {"name": INPUT.format, **INPUT.options},
                "learner": {
                    "recipe": "noisy_leader",
                    "epsilon": "1/2",
                    "noise": "exponential",
                    "schedule": "dyadic",
                },
            }
        },
    }


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """For tables."""
    return {name: round(value, 2) for name, value in seconds.items()}


async def _until(what: Callable[[], bool]) -> None:
    """Wait for something that must happen."""
    async with asyncio.timeout(_PATIENCE):
        while not what():
            await asyncio.sleep(_LOOK_SECONDS)


def _owned(process: Process) -> set[int]:
    """The partitions that a process says to run."""
    owned: set[int] = set()
    for line in process.log.read_text("utf-8").splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        numbers = {int(str(event["partition"]).rpartition("/")[2])} if "partition" in event else {0}
        if event.get("event") == "partition_running":
            owned |= numbers
        elif event.get("event") == "partition_revoked":
            owned -= numbers
    return owned


class Busy(ConsumerRebalanceListener):
    """A member that does something else for a while before it joins anew."""

    def __init__(self, seconds: float) -> None:
        self.assigned = asyncio.Event()
        self.rebalances = 0
        self._seconds = seconds

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Before it joins anew."""
        if self.assigned.is_set():
            self.rebalances += 1
            await asyncio.sleep(self._seconds)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """It is in."""
        self.assigned.set()


@asynccontextmanager
async def busy_member(
    bootstrap: str, group: str, topic: str, *, seconds: float = 4.0
) -> AsyncIterator[Busy]:
    """A member of a group that has joined and holds every rebalance up for so long."""
    listener = Busy(seconds)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
        rebalance_timeout_ms=60_000,
        partition_assignment_strategy=(type("Sticky", (StickyPartitionAssignor,), {}),),
    )
    await consumer.start()
    consumer.subscribe([topic], listener=listener)
    try:
        async with asyncio.timeout(_PATIENCE):
            await listener.assigned.wait()
        yield listener
    finally:
        await consumer.stop()


@asynccontextmanager
async def loaded(bootstrap: str, topic: str, partitions: int) -> AsyncIterator[None]:
    """A steady input of every partition, for as long as the block lasts."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5)
    await producer.start()
    values = list(INPUT.values(64))
    numbers = np.random.default_rng(7).integers(0, INPUT.keys, 10_000).tolist()

    async def produce() -> None:
        sent, begun = 0, time.monotonic()
        while True:
            due = int((time.monotonic() - begun) * _RATE)
            for at in range(sent, due):
                number = numbers[at % len(numbers)]
                key = b"key-%d" % number
                await producer.send(topic, values[at % 64], key, partition=number % partitions)
            sent = due
            await asyncio.sleep(_TICK_SECONDS)

    producing = asyncio.create_task(produce())
    try:
        yield
    finally:
        producing.cancel()
        await asyncio.wait([producing])
        with suppress(Exception):
            await producer.stop()


async def fill(bootstrap: str, topic: str, partitions: int, records: int) -> None:
    """Put so many records into each partition, in batches that are made once."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1_000_000, acks=1)
    await producer.start()
    value = next(INPUT.values(1))
    for number in range(partitions):
        for _ in range(0, records, 1000):
            batch = producer.create_batch()
            for at in range(1000):
                batch.append(timestamp=None, key=b"key-%d-%d" % (number, at % 50), value=value)
            batch.close()
            await producer.send_batch(batch, topic, partition=number)
    await producer.flush()
    await producer.stop()


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The targets, by medians."""
    rated: list[dict[str, Any]] = []
    for table, column, target, wanted in (
        ("restart", "ratio", "restart after SIGKILL ÷ bare start-up", 1.5),
        ("pause", "1→3", "pause of a kept partition, 1 → 3, s", 0.5),
        ("pause", "3→1", "pause of a kept partition, 3 → 1, s", 0.5),
        ("pause", "held", "pause of a kept partition, held up, s", 0.5),
    ):
        of = [row for row in rows if row["table"] == table]
        for who in dict.fromkeys(row["who"] for row in of):
            got = statistics.median(row[column] for row in of if row["who"] == who)
            met = got <= wanted
            rated.append({"target": target, "who": who, "wanted": wanted, "got": got, "met": met})
    return rated


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns")
    parser.add_argument("--before", help="the interpreter of another checkout, measured in turn")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES)
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    pythons = {BEFORE: options.before} if options.before else {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamdp-bench-")))
        broker = stack.enter_context(borrow_broker(java_options=THROUGHPUT))
        sizes = QUICK if options.quick else FULL
        bench = Bench(broker.bootstrap, folder, sizes, pythons | {OURS: sys.executable})
        stack.callback(bench.end)
        asyncio.run(bench.run(options.only))
    targets = summary(bench.rows)
    for row in targets:
        met = "met" if row["met"] else "MISSED"
        print(f"{row['target']:40}{row['who']:17}≤ {row['wanted']:<6}{row['got']:<8}{met}")
    if options.json:
        options.json.write_text(json.dumps({"group": {"rows": bench.rows, "targets": targets}}))


if __name__ == "__main__":
    main()
