"""Feedback streams on a real Kafka broker: beside aiokafka alone, and beside streams of losses.

    python tests/bench/bench_feedback.py [--json FILE] [--records N] [--turns N] [--only TABLE]

Three tables. *throughput*: 1,000 keys, records with their header, the service with default settings
beside aiokafka alone (which fetches, decodes headers as every consumer of it does, and for JSON
decodes the value). *many keys*: 10^5 keys, the processor time of a feedback stream beside that of a
stream of losses whose blocks have the same lengths. Everyone is measured as in `bench_service`:
what a consumer group has committed, what the system counts for the processes, the second half of a
run; turns alternate, and ratios are of medians. *memory*: by how much a process grew when 10^5 keys
came, and the bytes of a saved row; the rows of streams of losses have the same number of actions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import streamdp as sd
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.testing.broker import THROUGHPUT, borrow_broker
from tests.bench.bench_engine import resident
from tests.bench.peers.candidates import Place, alone, streamdp
from tests.bench.peers.inputs import Input, delete, new_name, preload
from tests.bench.peers.processes import Candidate, Measured, measure, median
from tests.support.batches import feedback_batch, loss_batch

ACTIONS = (10, 100)
FORMATS = ("json", "float32")
FEW_KEYS, MANY_KEYS = 1000, 100_000
_BATCH = 8192  # of a service under load
_SPARE = 1.5
"""A topic has more records than are waited for; see `bench_service`."""

TARGETS = {"throughput": 0.7, "many keys": 2.0, "memory": 3.0}
"""At least so much of aiokafka alone; at most so much of streams of losses, for K = 10."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    records: int
    turns: int


Make = Callable[[Place], Awaitable[Candidate]]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: who, and on which input."""

    who: str
    make: Make
    input: Input


@dataclass(slots=True)
class Bench:
    """One run of everything that needs a broker."""

    bootstrap: str
    folder: Path
    sizes: Sizes
    rows: list[dict[str, Any]] = field(default_factory=list)

    async def throughput(self) -> None:
        """Beside aiokafka alone."""
        for format_ in FORMATS:
            for actions in ACTIONS:
                input_ = Input(format_, actions, FEW_KEYS, observes="feedback")
                ours, bare = await self._compared(
                    Side("streamdp", streamdp, input_), Side("aiokafka alone", alone, input_)
                )
                per_cpu = round(bare.cpu / ours.cpu, 2)  # the same, per processor second
                self._judge("throughput", input_, ours.rate / bare.rate, {"per CPU": per_cpu})

    async def many_keys(self) -> None:
        """Beside a stream of losses, by processor time."""
        for actions in ACTIONS:
            for format_ in FORMATS:
                input_ = Input(format_, actions, MANY_KEYS, observes="feedback")
                losses = Input(format_, actions, MANY_KEYS)
                ours, full = await self._compared(
                    Side("streamdp", streamdp, input_),
                    Side("streamdp, losses", streamdp, losses),
                )
                self._judge("many keys", input_, ours.cpu / full.cpu, {})

    async def _compared(self, *sides: Side) -> list[Measured]:
        """The sides' medians, their turns alternating."""
        places: dict[Input, Place] = {}
        for side in sides:
            if side.input not in places:
                place = Place(
                    self.bootstrap, f"{new_name()}-{side.input.name}", side.input, self.folder
                )
                places[side.input] = place
                needed = round(self.sizes.records * _SPARE)
                await preload(self.bootstrap, place.topic, side.input, records=needed)
        results: list[list[Measured]] = [[] for _ in sides]
        for _ in range(self.sizes.turns):
            for side, turns in zip(sides, results, strict=True):
                place = places[side.input]
                turns.append(
                    await measure(
                        await side.make(place),
                        self.folder,
                        bootstrap=self.bootstrap,
                        topic=place.topic,
                        records=self.sizes.records,
                    )
                )
        await delete(self.bootstrap, *(place.topic for place in places.values()))
        medians = [median(turns) for turns in results]
        for side, measured in zip(sides, medians, strict=True):
            self._tell(side.input.name, {"who": side.who, **measured.as_row()})
        return medians

    def _judge(
        self, table: str, input_: Input, ratio: float, second_input: Mapping[str, float]
    ) -> None:
        """A ratio beside what is wanted of it."""
        row = {"table": table, "K": input_.actions, "format": input_.format}
        self._tell(input_.name, {**row, **judged(table, input_.actions, ratio), **second_input})

    def _tell(self, name: str, row: Mapping[str, Any]) -> None:
        """Print a line, and keep it."""
        self.rows.append({"input": name, **row})
        text = "  ".join(f"{key} {value}" for key, value in row.items())
        print(f"{name:36}{text}", flush=True)


def judged(table: str, actions: int, ratio: float) -> dict[str, Any]:
    """Whether a ratio is as wanted; of many keys and of memory nothing is wanted for K = 100."""
    row: dict[str, Any] = {"ratio": round(ratio, 2)}
    if table == "throughput":
        return {**row, "target": f"≥ {TARGETS[table]:g}", "met": ratio >= TARGETS[table]}
    if actions == ACTIONS[0]:
        return {**row, "target": f"≤ {TARGETS[table]:g}", "met": ratio <= TARGETS[table]}
    return row


# -- memory ----------------------------------------------------------------------------------------


def engine(observes: str, actions: int) -> sd.Engine:
    """An engine as a service runs it."""
    names = [f"action-{number}" for number in range(actions)]
    learner: sd.Leader | sd.PolicyLearner = (
        policy_blocks(actions=names, epsilon="1/2")
        if observes == "feedback"
        else sd.incumbent_leader(actions=names, epsilon="1/2")
    )
    return sd.Engine(
        stream="bench",
        partition=0,
        learner=learner,
        budget="1",
        randomness=sd.SystemRandomness(),
        limit=2 * MANY_KEYS,
    )


def populate(machine: sd.Engine, observes: str, actions: int, *, many: int) -> None:
    """A slot of each of so many keys, a service's batch at a time."""
    for begin in range(0, many, _BATCH):
        offsets = np.arange(begin, min(begin + _BATCH, many))
        keys = [b"key-%d" % offset for offset in offsets.tolist()]
        index, slots = offsets - begin, len(offsets)
        if observes == "feedback":
            arms, gains = np.zeros(slots, np.int32), np.zeros(slots, np.int64)
            machine.apply_batch(feedback_batch(keys, index, arms, gains, offsets))
        else:
            losses = np.full((slots, actions), 0.5, np.float32)
            machine.apply_batch(loss_batch(keys, index, losses, offsets))


def _bytes_of_a_key(observes: str, actions: int) -> tuple[float, int]:
    """In memory and saved, in a process that does nothing else."""
    populate(engine(observes, actions), observes, actions, many=1)  # makes tables and caches
    before = resident()
    machine = engine(observes, actions)
    populate(machine, observes, actions, many=MANY_KEYS)
    grown = (resident() - before) / len(machine)
    ((_, row),) = machine.save(most=1)
    return grown, len(row)


def memory() -> list[dict[str, Any]]:
    """Bytes a key of both kinds of streams."""
    rows = []
    for actions in ACTIONS:
        bytes_of: dict[str, tuple[float, int]] = {}
        for observes in ("feedback", "losses"):
            with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                bytes_of[observes] = pool.apply(_bytes_of_a_key, (observes, actions))
        for at, where in enumerate(("in memory", "saved")):
            ours, full = bytes_of["feedback"][at], bytes_of["losses"][at]
            row = {
                "table": "memory",
                "input": f"bytes a key {where}, K = {actions}",
                "K": actions,
                "where": where,
                "feedback": round(ours),
                "losses": round(full),
                **judged("memory", actions, ours / full),
            }
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items() if key != "table"))
    return rows


async def service(sizes: Sizes, wanted: Sequence[str]) -> list[dict[str, Any]]:
    """The tables that need a broker: one of its own unless another is named."""
    with (
        tempfile.TemporaryDirectory(prefix="streamdp-bench-") as folder,
        borrow_broker(java_options=THROUGHPUT) as broker,
    ):
        bench = Bench(broker.bootstrap, Path(folder), sizes)
        if "throughput" in wanted:
            await bench.throughput()
        if "many keys" in wanted:
            await bench.many_keys()
        return bench.rows


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--records", type=int, default=2_000_000, help="of each run")
    parser.add_argument("--turns", type=int, default=3, help="of which the median counts")
    parser.add_argument("--only", choices=list(TARGETS), help="one table; memory needs no broker")
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a young broker has no coordinator
    wanted = [options.only] if options.only else list(TARGETS)
    rows = memory() if "memory" in wanted else []
    if wanted != ["memory"]:
        rows += asyncio.run(service(Sizes(options.records, options.turns), wanted))
    if missed := [row["input"] for row in rows if row.get("met") is False]:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps({"feedback": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
