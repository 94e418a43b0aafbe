"""Selection against an unsafe numpy softmax, and against OpenDP's permute-and-flip.

    python tests/bench/bench_selection.py [--json FILE] [--rounds N]

Prints a table and, if asked, writes it as JSON. Every ratio compares medians of runs that alternate
within one process, so a noisy neighbour hits both sides. The baseline is what people write: floats,
``exp``, ``cumsum``, ``searchsorted`` and one number of numpy's generator; it is neither exact nor
private. OpenDP is no dependency: where it is installed (``pip install "opendp>=0.12"``) it is
measured too, as its public Python call and as its compiled core alone, arguments converted before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.core.grid import UNIT
from streamdp.core.randomness import Purpose, Randomness, SeededRandomness, SystemRandomness
from streamdp.core.selection import Exponential, Mechanism, NoisyMaxLaplace, PermuteAndFlip

RATE = Fraction(1, 2)
MECHANISMS: tuple[Mechanism, ...] = (PermuteAndFlip(RATE), Exponential(RATE), NoisyMaxLaplace(RATE))
SIZES = ((100, 3.0), (10_000, 1.5), (1_000_000, 1.0))
BATCH, FEW = 100_000, 10
_ETA = float(RATE) / UNIT
_SPAN = 40 * UNIT  # ρ·d up to 20
_TURN = 5e-4  # seconds: shorter than what a scheduler gives to somebody else

Run = Callable[[], object]


def softmax(sums: NDArray[np.int64], generator: np.random.Generator) -> int:
    """One unsafe selection."""
    weights = np.exp((sums - sums.min()) * -_ETA)
    ladder = np.cumsum(weights)
    return int(np.searchsorted(ladder, generator.random() * ladder[-1]))


def softmaxes(sums: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Many unsafe selections, vectorised."""
    weights = np.exp((sums - sums.min(axis=1, keepdims=True)) * -_ETA)
    ladder = np.cumsum(weights, axis=1)
    marks = generator.random(len(sums)) * ladder[:, -1]
    return np.asarray((ladder < marks[:, None]).sum(axis=1))


def medians(runs: dict[str, Run], *, rounds: int) -> dict[str, float]:
    """The median time of each run in seconds. They take turns, each of about half a millisecond."""
    repeats = {}
    for name, run in runs.items():
        run()  # warms caches and allocator
        repeats[name] = max(1, round(_TURN / _seconds(run, 1)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(_seconds(run, repeats[name]) / repeats[name])
    return {name: statistics.median(values) for name, values in times.items()}


def _seconds(run: Run, repeats: int) -> float:
    """How long `repeats` calls take."""
    start = perf_counter()
    for _ in range(repeats):
        run()
    return perf_counter() - start


def drawn(mechanism: Mechanism, sums: NDArray[np.int64], source: Randomness) -> Run:
    """A selection with everything that belongs to it: fresh bits each time."""
    tags = np.zeros((len(sums), 16), np.uint8)
    indices = np.arange(len(sums))
    return lambda: mechanism.select(sums, source.bits("bench", Purpose.SELECTION, tags, indices))


def one_row(rounds: int) -> list[dict[str, Any]]:
    """One selection among K, against the softmax."""
    generator, system, table = np.random.default_rng(1), SystemRandomness(), []
    for size, target in SIZES:
        sums = generator.integers(0, _SPAN, (1, size))
        runs: dict[str, Run] = {"softmax": partial(softmax, sums[0], generator)}
        for mechanism in MECHANISMS:
            runs[mechanism.name] = drawn(mechanism, sums, system)
        seconds_of = medians(runs, rounds=rounds)
        table += _rows(f"K = {size}", seconds_of, "softmax", target)
    return table


def many_rows(rounds: int) -> list[dict[str, Any]]:
    """1e5 selections among 10 in one call, against the vectorised softmax."""
    generator = np.random.default_rng(2)
    sums = generator.integers(0, _SPAN, (BATCH, FEW))
    runs: dict[str, Run] = {"softmax": lambda: softmaxes(sums, generator)}
    for mechanism in MECHANISMS:
        runs[mechanism.name] = drawn(mechanism, sums, SystemRandomness())
        runs[mechanism.name + ", seeded"] = drawn(mechanism, sums, SeededRandomness(1))
    return _rows(f"{BATCH} rows of {FEW}", medians(runs, rounds=rounds), "softmax", 1.0)


def shapes(rounds: int) -> list[dict[str, Any]]:
    """The same K with scores of every shape: the time must not tell them apart."""
    generator, system, table = np.random.default_rng(3), SystemRandomness(), []
    size = 10_000
    shaped = {
        "spread": generator.integers(0, _SPAN, (1, size)),
        "flat": np.zeros((1, size), np.int64),
        "one far ahead": np.r_[0, np.full(size - 1, 10**6 * UNIT)][None, :],
        "best last": np.arange(size, 0, -1)[None, :] * UNIT,
        "best first": np.arange(size)[None, :] * UNIT,
    }
    for mechanism in MECHANISMS:
        runs = {name: drawn(mechanism, sums, system) for name, sums in shaped.items()}
        seconds_of = medians(runs, rounds=rounds)
        table += _rows(f"{mechanism.name}, K = {size}", seconds_of, "spread", 1.2)
    return table


def opendp(rounds: int) -> list[dict[str, Any]]:
    """OpenDP's permute-and-flip at K = 1e4: public call, and core alone."""
    try:
        dp = import_module("opendp.prelude")  # by name: only `make bench` has it, mypy does not
        convert, library = import_module("opendp._convert"), import_module("opendp._lib")
    except ImportError:
        print("OpenDP is not installed: left out", file=sys.stderr)
        return []
    dp.enable_features("contrib")
    size, table = 10_000, []
    generator = np.random.default_rng(4)
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int)
    peer = dp.m.make_noisy_max(*space, dp.max_divergence(), scale=1 / _ETA, negate=True)
    for shape, sums in {
        "converged": np.r_[0, generator.integers(30 * UNIT, _SPAN, size - 1)],
        "flat": np.zeros(size, np.int64),
    }.items():
        values = sums.tolist()
        peer(values)  # sets up the foreign function that is called below
        invoke = library.lib.opendp_core__measurement_invoke

        def core(converted: object, invoke: Any = invoke) -> object:
            return library.unwrap(invoke(peer, converted), library.AnyObjectPtr)

        argument = convert.py_to_c(values, c_type=library.AnyObjectPtr, type_name="Vec<i32>")
        runs: dict[str, Run] = {
            "ours": drawn(MECHANISMS[0], sums[None, :], SystemRandomness()),
            "OpenDP, public call": partial(peer, values),
            "OpenDP, core alone": partial(core, argument),
        }
        seconds_of = medians(runs, rounds=rounds)
        table += _rows(f"permute-and-flip, {shape}, K = {size}", seconds_of, "ours", None)
    return table


def _rows(
    case: str, seconds_of: dict[str, float], baseline: str, target: float | None
) -> list[dict[str, Any]]:
    """One line per run: its time and its ratio to the baseline."""
    return [
        {
            "case": case,
            "run": name,
            "microseconds": round(seconds * 1e6, 2),
            "ratio": round(seconds / seconds_of[baseline], 3),
            "target": None if name == baseline else target,
        }
        for name, seconds in seconds_of.items()
    ]


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=51)
    options = parser.parse_args()
    table = [row for part in (one_row, many_rows, shapes, opendp) for row in part(options.rounds)]
    for row in table:
        target = "" if row["target"] is None else f"≤ {row['target']}"
        print(
            f"{row['case']:40} {row['run']:28} {row['microseconds']:12.1f} µs "
            f"{row['ratio']:9.2f} {target}"
        )
    if options.json:
        options.json.write_text(json.dumps({"selection": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
