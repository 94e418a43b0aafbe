"""What donation is worth to the engine: records a second and releases a key, with it and without.

    python tests/bench/bench_donation.py [--keys N] [--batches N] [--rounds N] [--json FILE]

Two engines with a crowd, one of whose keys donate short blocks, take the same records in turns in
one process: float32, K = 100, keys in any order, in batches of 65,536 from the first record on.
System randomness. The ratio of their processor times, batch by batch in turns, is what is told.
Releases and their bytes are what a partition draws and would publish: votes, openings, votes of the
pool and, at the size of a release's line, the lines of donated blocks.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from time import process_time

import numpy as np

import streamdp as sd
from streamdp.core.learners.leader import crowded, donating

ROWS, ACTIONS, EPSILON = 65_536, 100, "1/2"


def engine(*, donates: bool) -> sd.Engine:
    """An engine whose keys know each other."""
    names = [f"action-{number}" for number in range(ACTIONS)]
    learner = crowded(sd.remembering_leader(actions=names, epsilon=EPSILON))
    if donates:
        learner = donating(learner)
    return sd.Engine(
        stream="bench", partition=0, learner=learner, budget="1",
        randomness=sd.SystemRandomness(),
    )  # fmt: skip


def one_round(keys: int, batches: int, seed: int) -> dict[str, dict[str, float]]:
    """Both engines from nothing, batch by batch in turns."""
    generator = np.random.default_rng(seed)
    losses = generator.random((ROWS, ACTIONS), dtype=np.float32)
    names = [b"key-%d" % number for number in range(keys)]
    machines = {"kept": engine(donates=False), "donated": engine(donates=True)}
    found = {name: {"seconds": 0.0, "releases": 0.0, "donated": 0.0} for name in machines}
    for _ in range(batches):
        index = generator.integers(keys, size=ROWS)
        order = list(machines) if generator.integers(2) else list(machines)[::-1]
        for name in order:
            machine = machines[name]
            offsets = np.arange(machine.position, machine.position + ROWS)
            begun = process_time()
            released = machine.apply_batch(sd.LossBatch(names, index, losses, offsets))
            found[name]["seconds"] += process_time() - begun
            found[name]["releases"] += len(released) + sum(map(len, released.pooled))
            found[name]["donated"] += sum(map(len, released.donated))
    return found


def main() -> None:
    """Run and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rounds = [one_round(asked.keys, asked.batches, seed) for seed in range(asked.rounds)]
    records = ROWS * asked.batches
    speeds = {
        name: [records / each[name]["seconds"] for each in rounds] for name in ("kept", "donated")
    }
    ratio = [one / other for one, other in zip(speeds["donated"], speeds["kept"], strict=True)]
    told = {
        "keys": asked.keys,
        "slots a key": records / asked.keys,
        "records a second": {name: statistics.median(each) for name, each in speeds.items()},
        "ratio": statistics.median(ratio),
        "ratios": ratio,
        "releases a key": {
            name: rounds[-1][name]["releases"] / asked.keys for name in ("kept", "donated")
        },
        "donated blocks a key": rounds[-1]["donated"]["donated"] / asked.keys,
    }
    print(json.dumps(told, indent=2))
    if asked.json is not None:
        asked.json.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
