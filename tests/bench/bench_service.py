"""The service on a real Kafka broker, beside its peers: the same job, the same topics, one machine.

    python tests/bench/bench_service.py [--json FILE] [--quick]

The job, exactly-once: keyed running sums of K numbers, an output record at each power of two of a
key's count. For streamdp that is the noisy leader with the system's randomness, run by
`streamdp run` with default settings. Beside it run aiokafka alone (which only fetches, and decodes
JSON), Kafka Streams (built by Maven from ``tests/bench/kafka_streams``; EOS v2, two threads, a
cached store) and Quix Streams (in an environment of its own, named by STREAMDP_PEERS); a peer that
is not there is left out, and said so.

Every candidate is seen from outside: what it has done is what its consumer group has committed,
CPU and memory are what the system counts for its processes. Rates and CPU are those of the second
half of a run, so nobody's start or warm-up counts; Kafka Streams gets the most records because its
compilers need them. Each topic has two partitions and more records than are waited for; one input
has 32, where *behind* says how fair the turns are: the position of the partition that is furthest
behind at half the run, of the mean of all. Frames
have 1,000 keys only: 10^5 of K = 100 would be 10 GB of them.

A delay is the time from just before the last record of a block is handed to a producer until a
reader of committed records has the action, at half of the rate that was measured at full load.
All of them share the machine with broker, load and readers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from streamdp.testing.broker import THROUGHPUT, borrow_broker
from tests.bench.peers.candidates import (
    Place,
    actions_of,
    alone,
    build_kafka_streams,
    has_quix,
    kafka_streams,
    outputs_of,
    quix,
    streamdp,
)
from tests.bench.peers.inputs import Input, create, delete, new_name, preload
from tests.bench.peers.latency import (
    CompletedBy,
    Delay,
    delay,
    of_kafka_streams,
    of_streamdp,
)
from tests.bench.peers.processes import Candidate, Measured, measure, median
from tests.bench.peers.rebuild import rebuild
from tests.bench.peers.targets import Case, Results, verdicts

FLOATS = Input("float32", 100, 1000)
MANY_FLOATS = Input("float32", 100, 100_000)
MANY_PARTITIONS = Input("float32", 10, 1000, partitions=32)
FRAME_ROWS = 256
_SPARE, _SPARE_OF_PEERS = 1.5, 1.05
"""A topic has more records than are waited for: where nothing is drawn, streamdp commits once a
second, and it must not come to the topic's end before the commit that is waited for."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; records of ours and of each peer."""

    ours: int
    kafka_streams: int
    kafka_streams_many_keys: int  # slow enough to be warm sooner
    quix: int
    frames_bytes: int
    turns: int  # of streamdp and of aiokafka alone, of which the median counts
    delay_seconds: float
    inputs: Sequence[Input]


FULL = Sizes(
    ours=2_000_000,
    kafka_streams=5_000_000,
    kafka_streams_many_keys=2_000_000,
    quix=400_000,
    frames_bytes=2_500_000_000,
    turns=3,
    delay_seconds=15.0,
    inputs=[
        Input("json", 10, 1000),
        Input("json", 100, 1000),
        FLOATS,
        Input("json", 10, 100_000),
        Input("json", 100, 100_000),
        MANY_FLOATS,
        Input("float32", 10, 1000, rows=FRAME_ROWS),
        Input("float32", 100, 1000, rows=FRAME_ROWS),
        MANY_PARTITIONS,
    ],
)

QUICK = Sizes(
    ours=1_000_000,
    kafka_streams=1_500_000,
    kafka_streams_many_keys=1_000_000,
    quix=250_000,
    frames_bytes=2_000_000_000,
    turns=1,
    delay_seconds=8.0,
    inputs=[
        FLOATS,
        Input("json", 100, 1000),
        Input("float32", 100, 1000, rows=FRAME_ROWS),
        MANY_PARTITIONS,
    ],
)

Make = Callable[[Place], Awaitable[Candidate]]


@dataclass(frozen=True, slots=True)
class Run:
    """One candidate on one input."""

    who: str
    make: Make
    records: int
    processes: int = 1
    turns: int = 1


@dataclass(slots=True)
class Bench:
    """One run of everything."""

    bootstrap: str
    folder: Path
    sizes: Sizes
    with_kafka_streams: bool
    with_quix: bool
    results: Results = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    async def throughput(self) -> None:
        """Every candidate on every input."""
        for input_ in self.sizes.inputs:
            place = Place(self.bootstrap, f"{new_name()}-{input_.name}", input_, self.folder)
            runs = self._runs(input_)
            peers = max(planned.records for planned in runs) * _SPARE_OF_PEERS
            needed = round(max(runs[0].records * _SPARE, peers))
            size = await preload(self.bootstrap, place.topic, input_, records=needed)
            for planned in runs:
                await self._measure(planned, place, record_bytes=size)
            if input_ == MANY_FLOATS:
                await self._rebuild(place)
            await delete(self.bootstrap, place.topic)

    def _runs(self, input_: Input) -> list[Run]:
        """What an input is given to."""
        sizes = self.sizes
        frame_bytes = 4 * input_.rows * input_.actions
        ours = sizes.frames_bytes // frame_bytes if input_.rows > 1 else sizes.ours
        runs = [
            Run("aiokafka alone", alone, ours, turns=sizes.turns),
            Run("streamdp", streamdp, ours, turns=sizes.turns),
        ]
        if input_ == FLOATS:
            runs += [
                Run("aiokafka alone", partial(alone, processes=2), ours, processes=2),
                Run("streamdp", partial(streamdp, processes=2), ours, processes=2),
            ]
        if input_.rows > 1 or input_ == MANY_PARTITIONS:
            return runs
        few = input_.keys == FLOATS.keys
        if self.with_kafka_streams:
            records = sizes.kafka_streams if few else sizes.kafka_streams_many_keys
            runs.append(Run("Kafka Streams", kafka_streams, records))
            if input_ == FLOATS and sizes is FULL:
                two = partial(kafka_streams, processes=2)
                runs.append(Run("Kafka Streams", two, records, processes=2))
        if self.with_quix and few:
            runs.append(Run("Quix Streams", quix, sizes.quix))
        return runs

    async def _measure(self, run: Run, place: Place, *, record_bytes: int) -> None:
        """One candidate on one input: the median of its turns."""
        case = Case(run.who, place.input, run.processes)
        measured: list[Measured] = []
        for _ in range(run.turns):
            candidate = await run.make(place)
            measured.append(
                await measure(
                    candidate,
                    self.folder,
                    bootstrap=self.bootstrap,
                    topic=place.topic,
                    records=run.records,
                    partitions=place.input.partitions,
                )
            )
        result = self.results[case] = median(measured)
        self._tell(
            "throughput",
            {"input": case.input.name, "who": case.who, "processes": case.processes}
            | result.as_row()
            | {"MB/s": round(result.rate * record_bytes / 1e6), "behind": round(result.behind, 2)},
        )

    async def _rebuild(self, place: Place) -> None:
        """kill -9 and back, with many keys."""
        rebuilt = await rebuild(
            await streamdp(place),
            self.folder,
            bootstrap=self.bootstrap,
            topic=place.topic,
            records=self.sizes.ours,
        )
        self._tell("rebuild", {"input": place.input.name} | rebuilt.as_row())

    async def delays(self) -> dict[str, float]:
        """From a block's last record to its visible action, each at half its highest load."""
        ours = await self._delay("streamdp", streamdp, actions_of, of_streamdp)
        if self.with_kafka_streams:
            await self._delay("Kafka Streams", kafka_streams, outputs_of, of_kafka_streams)
        return {"p50": ours.p50, "p99": ours.p99}

    async def _delay(
        self, who: str, make: Make, outputs: Callable[[Candidate], str], completed_by: CompletedBy
    ) -> Delay:
        """One candidate on an empty topic."""
        place = Place(self.bootstrap, new_name(), FLOATS, self.folder)
        await create(self.bootstrap, place.topic)
        candidate = await make(place)
        rate = self.results[Case(who, FLOATS, 1)].rate / 2
        delays = await delay(
            candidate,
            place,
            outputs=outputs(candidate),
            completed_by=completed_by,
            rate=rate,
            seconds=self.sizes.delay_seconds,
        )
        self._tell("delay", {"who": who, "records/s": round(rate)} | delays.as_row())
        return delays

    def _tell(self, table: str, row: Mapping[str, Any]) -> None:
        """Print a line of a table, and keep it."""
        self.rows.append({"table": table, **row})
        print(f"{table:11}" + "  ".join(_cell(name, value) for name, value in row.items()))
        sys.stdout.flush()


def _cell(name: str, value: object) -> str:
    """One value and what it is, in columns."""
    if isinstance(value, str):
        return f"{value:{32 if name == 'input' else 15}}"
    return f"{value:>9} {name}"


async def run(sizes: Sizes) -> dict[str, Any]:
    """Everything, on a broker of its own unless another is named."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamdp-bench-")))
        broker = stack.enter_context(borrow_broker(java_options=THROUGHPUT))
        bench = Bench(
            broker.bootstrap,
            folder,
            sizes,
            with_kafka_streams=build_kafka_streams(),
            with_quix=has_quix(),
        )
        for name, there in (
            ("Kafka Streams (needs Maven)", bench.with_kafka_streams),
            ("Quix Streams (needs STREAMDP_PEERS)", bench.with_quix),
        ):
            if not there:
                print(f"{name} is not there: left out", file=sys.stderr)
        await bench.throughput()
        delays = await bench.delays()
    judged = verdicts(bench.results, delays)
    for verdict in judged:
        print(
            f"{verdict['target']:58} {verdict['wanted']:>10} {verdict['got']:>10}  "
            f"{'met' if verdict['met'] else 'MISSED'}"
        )
    return {"rows": bench.rows, "targets": judged}


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="two minutes; nobody is warmed up")
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(
        logging.CRITICAL
    )  # a young broker has no coordinator yet
    result = asyncio.run(run(QUICK if options.quick else FULL))
    if options.json:
        options.json.write_text(json.dumps({"service": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
