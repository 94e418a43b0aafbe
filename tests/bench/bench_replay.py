"""Replay: a whole grid against one float sum over the same log, and its memory.

    python tests/bench/bench_replay.py [--json FILE] [--rounds N] [--slots N] [--no-memory]

The grid is 6 learners (none resamples) × 7 ε × 100 seeds over T slots of K = 100 losses in a
memory-mapped .npy in the page cache; the baseline is one ``np.add.reduce`` over the same map. The
two take turns, medians are compared, in seconds of processor time (both use one core; a shared
machine's wall clock would measure the others). The log is written once as clean float32 in [0, 1],
and once with a bad value in every chunk. Without `--slots` T is 10⁷ (4 GB in the temporary folder,
deleted afterwards); where the disk has no room it is 10⁶ and the numbers say so.

The per-slot simulation is what people write first: for one cell and one seed a Python loop that
adds each vector and samples a softmax where a block ends. It is timed on 20,000 slots, and
extrapolated to the grid.

Memory: a log of 10 GB (a sparse file, so zeros) is replayed in a process of its own, whose largest
resident set is what the kernel says.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numpy.lib import format as npy

from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import Cell, cells_of, parse_candidates, parse_epsilons, schedules_of
from streamdp.lab.replay import open_log
from streamdp.lab.replay.curves import answers
from streamdp.lab.replay.cuts import CutPlan, report_points
from streamdp.lab.replay.summing import sum_log

K = 100
LEARNERS = (
    "incumbent_leader,prefix_softmax,prefix_softmax:cap=none,noisy_leader:noise=laplace,"
    "noisy_leader:noise=gumbel,noisy_leader:noise=exponential"
)
EPSILONS = "0.1,0.2,0.5,1,2,4,8"
SEEDS = 100
_STEP = 100_000
_LOOPED = 20_000


def grid(path: Path) -> tuple[float, float]:
    """Every cell of the grid; the seconds of the pass, and those of the cells."""
    log = open_log(path)
    cells = _cells(log.actions)
    prefix = [cell for cell in cells if cell.learner.window == "random_prefix"]
    plan = CutPlan(schedules_of(cells), schedules_of(prefix), report_points(log.slots))
    bench = Bench(tuple(range(SEEDS)))
    start = process_time()
    summed = sum_log(log, bench, plan)
    between = process_time()
    _, played = answers(summed, cells, bench, plan.points)
    assert len(played) == len(cells)
    assert all(len(curve.regret) == SEEDS for curve in played)
    return between - start, process_time() - between


def one_sum(path: Path) -> None:
    """The baseline."""
    np.add.reduce(np.load(path, mmap_mode="r"), axis=0)


def per_slot(path: Path) -> float:
    """Seconds a slot of a straightforward simulation of one cell under one seed."""
    log = np.load(path, mmap_mode="r")[:_LOOPED]
    generator = np.random.default_rng(1)
    start = process_time()
    sums, end, action, lost = np.zeros(K), 1, 0, 0.0
    for slot, losses in enumerate(log, 1):
        lost += losses[action]
        sums += losses
        if slot == end:
            weights = np.exp(-0.25 * (sums - sums.min()))
            action = int(generator.choice(K, p=weights / weights.sum()))
            sums[:], end = 0, 2 * end + 1
    return (process_time() - start) / len(log)


def write_log(path: Path, slots: int, *, kind: str) -> None:
    """A log of uniform losses, or the same with a bad row and a large value here and there."""
    generator = np.random.default_rng(7)
    block = generator.random((_STEP, K), dtype=np.float32)
    if kind == "bad":
        block[::500] = np.nan
        block[250::500, 5] = 7.0
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (slots, K)}
        npy.write_array_header_1_0(file, header)
        for first in range(0, slots, _STEP):
            file.write(block[: min(_STEP, slots - first)].data)


def measured(folder: Path, slots: int, *, kind: str, rounds: int) -> list[dict[str, Any]]:
    """The grid against the baseline on one log."""
    path = folder / f"{kind}.npy"
    write_log(path, slots, kind=kind)
    runs: dict[str, list[float]] = {"one sum": [], "pass": [], "cells": []}
    for turn in range(rounds + 1):
        seconds = _timed(lambda: one_sum(path))
        parts = grid(path)
        if turn:  # the first turn fills the page cache
            for name, value in zip(runs, (seconds, *parts), strict=True):
                runs[name].append(value)
    base = statistics.median(runs["one sum"])
    whole = statistics.median(map(sum, zip(runs["pass"], runs["cells"], strict=True)))
    case = f"{len(_cells(('a', 'b')))} cells × {SEEDS} seeds, T = {slots:,}, K = {K}, {kind}"
    cells = len(_cells(("a", "b"))) * SEEDS
    rows = [
        _row(case, "one np.add.reduce", base, 1.0, None),
        _row(case, "pass", statistics.median(runs["pass"]), base, None),
        _row(case, "cells", statistics.median(runs["cells"]), base, None),
        _row(case, "whole grid", whole, base, 3.0 if kind == "clean" else 5.0),
    ]
    if kind == "clean":
        loop = per_slot(path) * slots * cells
        rows.append(
            _row(case, f"per-slot loop, from {_LOOPED:,} slots of one cell", loop, base, None)
        )
        rows[-1]["extrapolated"] = True
    rows[0]["ratio"] = 1.0
    path.unlink()
    return rows


def memory(folder: Path, *, size: int) -> list[dict[str, Any]]:
    """The largest resident set of a process that replays a sparse log."""
    path = folder / "sparse.npy"
    rows = size // (4 * K)
    npy.open_memmap(path, "w+", np.float32, (rows, K))  # sparse: nothing is written
    answer = subprocess.run(
        [sys.executable, __file__, "--child", str(path)], check=True, capture_output=True, text=True
    )
    path.unlink()
    report = json.loads(answer.stdout)
    return [
        {
            "case": f"log of {size / 1e9:.0f} GB, sparse",
            "run": "largest resident set",
            "megabytes": round(report["megabytes"]),
            "seconds": round(report["seconds"], 2),
            "target": 500,
        }
    ]


def child(path: Path) -> None:
    """Replay one log and say what it took."""
    seconds = _timed(lambda: grid(path))
    status = Path("/proc/self/status").read_text()  # getrusage would count the parent's memory
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"seconds": seconds, "megabytes": int(line.split()[1]) / 1024}))


def _cells(actions: tuple[str, ...]) -> tuple[Cell, ...]:
    return cells_of(parse_candidates(LEARNERS), parse_epsilons(EPSILONS), actions=actions)


def _timed(run: Callable[[], object]) -> float:
    start = process_time()
    run()
    return process_time() - start


def _row(case: str, run: str, seconds: float, base: float, target: float | None) -> dict[str, Any]:
    return {
        "case": case,
        "run": run,
        "seconds": round(seconds, 3),
        "ratio": round(seconds / base, 2),
        "target": target,
    }


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--child", type=Path)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    table: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        room = shutil.disk_usage(folder).free > 12 * 10**9
        slots = options.slots or (10**7 if room else 10**6)
        for kind in ("clean", "bad"):
            table += measured(folder, slots, kind=kind, rounds=options.rounds)
        if not options.no_memory:
            table += memory(folder, size=10**10)
    for row in table:
        if "megabytes" in row:
            print(f"{row['case']:52} {row['run']:48} {row['megabytes']:8} MB  ≤ {row['target']}")
            continue
        target = "" if row["target"] is None else f"≤ {row['target']}"
        text = f"{row['seconds']:12.3f} s {row['ratio']:10.2f}"
        print(f"{row['case']:52} {row['run']:48} {text} {target}")
    if options.json:
        options.json.write_text(json.dumps({"replay": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
