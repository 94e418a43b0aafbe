"""The engine at array speed: batches against a plain sum, one event, births, bytes per key.

    python tests/bench/bench_engine.py [--json FILE] [--rounds N]

Prints tables and, if asked, writes them as JSON. `apply_batch` (plan, charge, quantise, sum, draw,
columnar releases; system randomness) is compared with `np.add.reduce(A, axis=0)` over the same
float32 array, which neither clips nor looks for bad values nor knows keys. Ratios compare medians
of runs that alternate within one process. Bytes per key are by how much the resident memory of a
process of its own grew when 10^6 keys came, all included: bank, ledger, dictionary, numbers and
the key objects themselves; unused memory of the allocator is given back where that is possible.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import streamdp as sd
from tests.support.batches import loss_batch

ROWS = 65_536
ACTIONS = 100
MANY_KEYS = 1000
NEW_KEYS, SLOTS_EACH, FEW_ACTIONS = 100_000, 16, 10
LIVING_KEYS = 1_000_000
Run = Callable[[], object]


def engine(actions: int) -> sd.Engine:
    """An engine as a service runs it."""
    names = [f"action-{number}" for number in range(actions)]
    return sd.Engine(
        stream="bench",
        partition=0,
        learner=sd.incumbent_leader(actions=names, epsilon="1/2"),
        budget="1",
        randomness=sd.SystemRandomness(),
        limit=2 * LIVING_KEYS,
    )


def applying(losses: NDArray[np.float32], index: NDArray[np.int64]) -> Run:
    """One more batch of the same losses, the keys known by number."""
    machine = engine(losses.shape[1])
    keys = [b"key-%d" % number for number in range(int(index.max()) + 1)]

    def run() -> object:
        offsets = np.arange(machine.position, machine.position + len(losses))
        return machine.apply_batch(loss_batch(keys, index, losses, offsets))

    return run


def applying_by_key(losses: NDArray[np.float32], index: NDArray[np.int64]) -> Run:
    """One more batch of the same losses, each slot with a key of its own making."""
    machine = engine(losses.shape[1])
    joined = b"".join(b"key-%06d" % number for number in index.tolist())

    def run() -> float:
        keys = [joined[at : at + 10] for at in range(0, len(joined), 10)]  # as a client makes them
        offsets = np.arange(machine.position, machine.position + len(losses))
        start = perf_counter()
        machine.apply_batch(sd.Batch.of_losses(keys, losses, offsets))
        return perf_counter() - start

    return run


def medians(runs: dict[str, Run], *, rounds: int) -> dict[str, float]:
    """The median time of each run in seconds, the runs taking turns; a run may time itself."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 3):
        for name, run in runs.items():
            start = perf_counter()
            own = run()
            seconds = own if isinstance(own, float) else perf_counter() - start
            if turn >= 3:  # the first turns warm caches and allocator
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def batches(rounds: int) -> list[dict[str, Any]]:
    """65,536 rows of K = 100 in a batch, of one key and of a thousand."""
    generator = np.random.default_rng(1)
    losses = generator.random((ROWS, ACTIONS), dtype=np.float32)
    among = generator.integers(0, MANY_KEYS, ROWS)
    frames = np.repeat(generator.integers(0, MANY_KEYS, ROWS // 256), 256)
    seconds_of = medians(
        {
            "np.add.reduce": lambda: np.add.reduce(losses, axis=0),
            "one key": applying(losses, np.zeros(ROWS, np.int64)),
            "1000 keys": applying(losses, among),
            "1000 keys, a key a slot": applying_by_key(losses, among),
            "1000 keys in frames of 256": applying(losses, frames),
        },
        rounds=rounds,
    )
    targets = {"one key": 4.0, "1000 keys": 10.0, "1000 keys, a key a slot": 10.0}
    return [
        {
            "run": name,
            "milliseconds": round(seconds * 1e3, 2),
            "ratio": round(seconds / seconds_of["np.add.reduce"], 2),
            "target": targets.get(name),
        }
        for name, seconds in seconds_of.items()
    ]


def births(rounds: int) -> list[dict[str, Any]]:
    """The first 16 slots of each of 10^5 new keys in one batch: births, charges, four blocks."""
    generator = np.random.default_rng(2)
    slots = NEW_KEYS * SLOTS_EACH
    losses = generator.random((slots, FEW_ACTIONS), dtype=np.float32)
    keys: Sequence[bytes] = [b"key-%d" % number for number in range(NEW_KEYS)]
    batch = loss_batch(
        keys, np.tile(np.arange(NEW_KEYS), SLOTS_EACH), losses, np.arange(slots, dtype=np.int64)
    )

    def run() -> float:
        machine = engine(FEW_ACTIONS)
        start = perf_counter()
        machine.apply_batch(batch)
        return perf_counter() - start

    seconds = medians({"births": run}, rounds=max(3, rounds // 5))["births"]
    return [
        {
            "run": f"{SLOTS_EACH} slots of {NEW_KEYS} new keys, K = {FEW_ACTIONS}",
            "milliseconds": round(seconds * 1e3, 1),
            "slots_per_second": round(slots / seconds),
            "target": 3_000_000,
        }
    ]


def singles(rounds: int) -> list[dict[str, Any]]:
    """One event a call, from Python lists: of keys that live on, and the first 100 of new ones."""
    generator = np.random.default_rng(3)
    events = generator.random((1000, FEW_ACTIONS), dtype=np.float32).tolist()
    living, fresh = engine(FEW_ACTIONS), iter(range(1 << 30))

    def alive() -> float:
        start = process_time()
        for number, event in enumerate(events):
            living.apply(b"key-%d" % (number % 20), event)
        return process_time() - start

    def new() -> float:
        mine, machine = next(fresh), engine(FEW_ACTIONS)
        start = process_time()
        for number, event in enumerate(events):
            machine.apply(b"key-%d-%d" % (mine, number % 10), event)
        return process_time() - start

    for _ in range(5):  # blocks have become long
        alive()
    runs: dict[str, Run] = {"an event of a living key": alive, "the first 100 of a new key": new}
    seconds_of = medians(runs, rounds=rounds)
    return [
        {"run": run, "microseconds_of_processor": round(seconds * 1e6 / len(events), 1)}
        for run, seconds in seconds_of.items()
    ]


def populated(actions: int) -> sd.Engine:
    """An engine that has seen a slot of each of 10^6 keys."""
    machine = engine(actions)
    losses = np.full((ROWS, actions), 0.5, np.float32)
    for begin in range(0, LIVING_KEYS, ROWS):
        offsets = np.arange(begin, min(begin + ROWS, LIVING_KEYS))
        keys = [b"key-%d" % offset for offset in offsets.tolist()]
        index = offsets - begin
        machine.apply_batch(loss_batch(keys, index, losses[: len(index)], offsets))
    return machine


def resident() -> int:
    """This process's memory in bytes, without what the allocator only keeps for later."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _resident_bytes(actions: int) -> float:
    before = resident()
    machine = populated(actions)
    return (resident() - before) / len(machine)


def memory(rounds: int) -> list[dict[str, Any]]:
    """Bytes per key at 10^6 keys, measured in processes that do nothing else."""
    table = []
    for actions in (2, 10, 100):
        with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            grown = pool.apply(_resident_bytes, (actions,))
        table.append(
            {
                "run": f"K = {actions}",
                "bytes_per_key": round(grown),
                "target": 1.5 * actions * 8 + 200,
            }
        )
    return table


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    tables = {part.__name__: part(options.rounds) for part in (batches, singles, births, memory)}
    for name, table in tables.items():
        print(name)
        for row in table:
            text = ", ".join(f"{key} {value}" for key, value in row.items() if key != "run")
            print(f"  {row['run']:44} {text}")
    if options.json:
        options.json.write_text(json.dumps({"engine": tables}, indent=1) + "\n")


if __name__ == "__main__":
    main()
