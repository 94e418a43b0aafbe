"""`streamdp assemble` on a real Kafka broker, beside windowed left joins of its peers.

    python tests/bench/bench_assemble.py [--json FILE] [--quick] [--only TABLE]

One broker for all. The job: requests and outcomes (one of four requests has one), joined within a
window, exactly once. Everyone is seen from outside, as in `bench_service`: what a consumer group
has committed, what the system counts for the processes, the second half of a run.

- *throughput*: requests and outcomes for each second of processor time, from full topics, with
  two partitions and one process. Kafka Streams (built by Maven from ``tests/bench/kafka_streams``)
  runs its stream–stream left join twice, with its default RocksDB stores and with stores in memory;
  the better of both is what counts. Quix Streams 3.28 runs `join_interval`. Ours does more:
  exactly one event for each request, in their order, at one length, and a ledger. Theirs keep what
  is open in changelogs too; ours reads it again.
- *memory*: the most that was resident when a million requests were open and a quarter of them had
  an outcome: of the peer as it comes, and with the smallest heaps with which it came to the end.
- *delay*: from a request's deadline to its event in the hands of a reader of committed records,
  under a steady load. The grace is a part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from streamdp.testing.broker import THROUGHPUT, borrow_broker
from tests.bench.peers import joining
from tests.bench.peers.candidates import build_kafka_streams, has_quix
from tests.bench.peers.inputs import PARTITIONS
from tests.bench.peers.joining import CLICKED, Logs, Times
from tests.bench.peers.processes import Candidate, Measured, committed, measure, median, running
from tests.support.asking import free_port

TABLES = ("throughput", "memory", "delay")
PER_CPU = {"Kafka Streams": 1.0, "Quix Streams": 4.0}
"""At least so many times their requests and outcomes for a second of processor time."""
MEMORY = 0.5
"""At most so much of Kafka Streams' memory."""
DELAY_MS = 100.0
"""From deadline to event, the median."""

_FAST = Times(window=1000, grace=1000)
_ALL_OPEN = Times(window=7_200_000, grace=1000)
_SHARP = Times(window=1000, grace=20)
_HEAPS = (("rocksdb", ""), ("rocksdb", "-Xmx256m"), ("memory", "-Xmx1g"))
"""As it comes (a quarter of the machine's memory at most), and the smallest heaps for a million
open requests: with less it runs out of memory, or does nothing but collect."""
_ROOMY = "-Xmx2g"
_PATIENCE = 600.0  # seconds for a million requests to be read


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; requests of ours and of each peer."""

    ours: int
    kafka_streams: int
    quix: int
    turns: int
    open: int
    delay_seconds: float


FULL = Sizes(1_000_000, 2_000_000, 120_000, turns=3, open=1_000_000, delay_seconds=20.0)
QUICK = Sizes(400_000, 600_000, 60_000, turns=1, open=200_000, delay_seconds=8.0)

Make = Callable[[Logs], Awaitable[Candidate]]


@dataclass(slots=True)
class Bench:
    """One run of everything."""

    bootstrap: str
    folder: Path
    sizes: Sizes
    with_kafka_streams: bool
    with_quix: bool
    rows: list[dict[str, Any]] = field(default_factory=list)

    async def throughput(self) -> None:
        """Everyone from full topics, by turns."""
        sizes = self.sizes
        ours, theirs = [await Logs.new(self.bootstrap, by_id=by_id) for by_id in (False, True)]
        await ours.fill(round(1.2 * sizes.ours))
        runs: list[tuple[str, Logs, Make, int]] = [
            (
                "streamdp",
                ours,
                partial(joining.assemble, times=_FAST, folder=self.folder),
                sizes.ours,
            )
        ]
        if self.with_kafka_streams:
            runs += [
                (f"Kafka Streams, {stores}", theirs, self._kafka_streams(_FAST, stores, _ROOMY),
                 sizes.kafka_streams)
                for stores in ("rocksdb", "memory")
            ]  # fmt: skip
        if self.with_quix:
            quix: Make = partial(joining.quix, times=_FAST, folder=self.folder)
            runs.append(("Quix Streams", theirs, quix, sizes.quix))
        if len(runs) > 1:
            await theirs.fill(round(1.05 * sizes.kafka_streams))
        measured: dict[str, list[Measured]] = {who: [] for who, *_ in runs}
        for _ in range(sizes.turns):
            for who, logs, make, count in runs:
                measured[who].append(await self._measured(await make(logs), logs, count))
        self._compare({who: median(turns) for who, turns in measured.items()})

    def _kafka_streams(self, times: Times, stores: str, heap: str) -> Make:
        return partial(
            joining.kafka_streams, times=times, folder=self.folder, stores=stores, heap=heap
        )

    async def _measured(self, candidate: Candidate, logs: Logs, count: int) -> Measured:
        return await measure(
            candidate, self.folder, bootstrap=self.bootstrap, topic=logs.requests, records=count
        )

    def _compare(self, measured: dict[str, Measured]) -> None:
        """Requests and outcomes for each second of processor time."""
        records = 1 + 1 / CLICKED
        per_cpu = {who: records * 1e6 / side.cpu for who, side in measured.items()}
        for who, side in measured.items():
            self._tell("throughput", who, {
                "records/s": round(records * side.rate), "records/CPU s": round(per_cpu[who]),
                "MiB": round(side.memory),
            })  # fmt: skip
        for peer, least in PER_CPU.items():
            best = max(
                (rate for who, rate in per_cpu.items() if who.startswith(peer)), default=None
            )
            if best is not None:
                ratio = per_cpu["streamdp"] / best
                self._judge("throughput", f"{peer} per CPU", ratio, ratio >= least, f"≥ {least:g}")

    async def memory(self) -> None:
        """So many open requests, and what that takes."""
        ours, theirs = [await Logs.new(self.bootstrap, by_id=by_id) for by_id in (False, True)]
        await ours.fill(self.sizes.open)
        port = free_port()
        candidate = await joining.assemble(ours, _ALL_OPEN, self.folder, port=port)
        resident = {"streamdp": await self._resident(candidate, partial(_open_requests, port))}
        if self.with_kafka_streams:
            await theirs.fill(self.sizes.open)
            for stores, heap in _HEAPS:
                candidate = await self._kafka_streams(_ALL_OPEN, stores, heap)(theirs)
                asked = committed(self.bootstrap, candidate.group, theirs.requests)
                async with asked as positions:

                    async def read() -> int:
                        return sum(await positions())

                    who = f"Kafka Streams, {stores} {heap}".strip()
                    resident[who] = await self._resident(candidate, read)
        for who, mebibytes in resident.items():
            row = {"open": self.sizes.open, "MiB": round(mebibytes)}
            self._tell("memory", who, row)
            if who != "streamdp":
                ratio = resident["streamdp"] / mebibytes
                self._judge("memory", f"of {who}", ratio, ratio <= MEMORY, f"≤ {MEMORY:g}")

    async def _resident(self, candidate: Candidate, read: Callable[[], Awaitable[int]]) -> float:
        """The most memory of a process that has read all requests."""
        with running(candidate, self.folder) as (process,):
            deadline = time.monotonic() + _PATIENCE
            while await read() < self.sizes.open:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{candidate.name} has not read all requests")
                await asyncio.sleep(0.2)
                _ = process.cpu  # raises if it has ended
            return process.memory

    async def delay(self) -> None:
        """From the deadline to the event, with two thousand requests a second."""
        logs = await Logs.new(self.bootstrap, by_id=False)
        candidate = await joining.assemble(logs, _SHARP, self.folder)
        seconds, rate = self.sizes.delay_seconds, 2000
        with running(candidate, self.folder):
            await logs.fill(200, rate=200)
            expected = 200 + round(seconds * rate)
            reading = asyncio.create_task(
                _seen(self.bootstrap, joining.events_of(candidate), expected)
            )
            await logs.fill(round(seconds * rate), rate=rate)
            events = await reading
        requests = await _seen(self.bootstrap, logs.requests, expected)
        delays = [
            seen - timestamp - _SHARP.window
            for part, own in events.items()
            for (seen, _), (_, timestamp) in list(zip(own, requests[part], strict=True))[
                len(own) // 2 :
            ]
        ]
        p50, p99 = (statistics.quantiles(delays, n=100)[at] for at in (49, 98))
        row = {"requests/s": rate, "p50 ms": round(p50, 1), "p99 ms": round(p99, 1)}
        self._tell("delay", "streamdp", row)
        self._judge("delay", "p50 ms", p50, p50 <= DELAY_MS, f"≤ {DELAY_MS:g}")

    def _judge(self, table: str, what: str, got: float, met: bool, wanted: str) -> None:
        self._tell(table, what, {"ratio": round(got, 2), "target": wanted, "met": met})

    def _tell(self, table: str, who: str, row: dict[str, Any]) -> None:
        """Print a line of a table, and keep it."""
        self.rows.append({"table": table, "who": who, **row})
        text = "  ".join(f"{key} {value}" for key, value in row.items())
        print(f"{table:11}{who:26}{text}", flush=True)


async def _open_requests(port: int) -> int:
    """What the service says of itself."""

    def ask() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0
        lines_open = [line for line in lines if line.startswith("streamdp_requests_open{")]
        return round(sum(float(line.rpartition(" ")[2]) for line in lines_open))

    return await asyncio.to_thread(ask)


async def _seen(bootstrap: str, topic: str, count: int) -> dict[int, list[tuple[float, int]]]:
    """When a reader had so many committed records (milliseconds), and their own times."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    await consumer.start()
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    seen: dict[int, list[tuple[float, int]]] = {number: [] for number in range(PARTITIONS)}
    try:
        consumer.assign(places)
        await consumer.seek_to_beginning()
        while sum(map(len, seen.values())) < count:
            batches = await consumer.getmany(timeout_ms=200)
            now = time.time() * 1000
            for place, records in batches.items():
                seen[place.partition] += [(now, record.timestamp) for record in records]
    finally:
        await consumer.stop()
    return seen


async def run(sizes: Sizes, wanted: Sequence[str]) -> list[dict[str, Any]]:
    """What is wanted, on a broker of its own unless another is named."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamdp-bench-")))
        broker = stack.enter_context(borrow_broker(java_options=THROUGHPUT))
        bench = Bench(broker.bootstrap, folder, sizes, build_kafka_streams(), has_quix())
        for name, there in (
            ("Kafka Streams (needs Maven)", bench.with_kafka_streams),
            ("Quix Streams (needs STREAMDP_PEERS)", bench.with_quix),
        ):
            if not there:
                print(f"{name} is not there: left out", file=sys.stderr)
        for table in wanted:
            await getattr(bench, table)()
        return bench.rows


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="two minutes; nobody is warmed up")
    parser.add_argument("--only", choices=TABLES, help="one table")
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a young broker has no coordinator
    sizes = QUICK if options.quick else FULL
    rows = asyncio.run(run(sizes, [options.only] if options.only else TABLES))
    if missed := [f"{row['table']}: {row['who']}" for row in rows if row.get("met") is False]:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps({"assemble": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
