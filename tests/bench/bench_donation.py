"""What donation is worth to the engine: records a second and releases a key, with it and without.

    python tests/bench/bench_donation.py [--keys N] [--batches N] [--rounds N] [--json FILE]
                                         [--of engine|service]

Two partitions with a crowd, one of whose keys donate short blocks, take the same records in turns
in one process: float32, K = 100, keys in any order, in batches of 65,536 from the first record on.
System randomness. The ratio of their processor times, batch by batch in turns, is what is told.

`engine` is the engine alone. `service` is all that the service does with a partition but for the
transport: records are decoded and applied, and after each batch a cut is made, with final bytes of
ledger and actions and the state's entries. Their bytes are counted as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from fractions import Fraction
from pathlib import Path
from time import process_time

import numpy as np
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.arrays import Ints
from streamdp.core.learners.leader import crowded, donating
from streamdp.ports import Partition, Records, StreamTopics, Taken
from streamdp.service.past import ALONE
from streamdp.service.protocol import Pace, Restoring
from streamdp.service.spec import Start, StreamSpec
from streamdp.wire.formats import configure
from streamdp.wire.published import Mode

ROWS, ACTIONS, EPSILON = 65_536, 100, "1/2"
HOME = Partition("bench", 0)

Floats = NDArray[np.float32]
Found = dict[str, dict[str, float]]


def learner_of(*, donates: bool) -> sd.Leader:
    """A learner whose keys know each other."""
    names = [f"action-{number}" for number in range(ACTIONS)]
    learner = crowded(sd.remembering_leader(actions=names, epsilon=EPSILON))
    return donating(learner) if donates else learner


class Alone:
    """An engine, without anything that makes its releases durable."""

    def __init__(self, *, donates: bool) -> None:
        self.engine = sd.Engine(
            stream="bench", partition=0, learner=learner_of(donates=donates), budget="1",
            randomness=sd.SystemRandomness(),
        )  # fmt: skip
        self.counts = Counter[str]()

    def take(self, names: list[bytes], index: Ints, losses: Floats, start: int) -> None:
        """One batch, whose first record has this offset."""
        offsets = np.arange(start, start + len(index))
        released = self.engine.apply_batch(sd.LossBatch(names, index, losses, offsets))
        self.counts["releases"] += len(released) + sum(map(len, released.pooled))


class Served:
    """A partition as the service runs it, whose commits go nowhere."""

    def __init__(self, *, donates: bool) -> None:
        learner = learner_of(donates=donates)
        spec = StreamSpec(
            topics=StreamTopics("shop", "bench", "losses"), learner=learner, estimates=(),
            format=configure("float32", actions=list(learner.actions), options={}),
            share=Fraction(1, 2), epoch=1, start=Start.EARLIEST, randomness=sd.SystemRandomness(),
        )  # fmt: skip
        taken = Taken({}, 0, 1 << 40, None, None, 1)
        self.work = Restoring(spec, HOME, taken, past=ALONE).finish()
        self.counts = Counter[str]()

    def take(self, names: list[bytes], index: Ints, losses: Floats, start: int) -> None:
        """One batch, and a commit."""
        keys = [names[key] for key in index.tolist()]
        width, raw = losses.itemsize * losses.shape[1], memoryview(losses.tobytes())
        values = [bytes(raw[at : at + width]) for at in range(0, len(raw), width)]
        stop = start + len(index)
        self.work.absorb([Records(HOME, start, range(start, stop), keys, values, stop)],
                         mode=Mode.LIVE)  # fmt: skip
        commit = self.work.cut(now=float(start), pace=Pace()).commit
        sizes = {"ledger": commit.ledger, "actions": commit.actions, "state": commit.state}
        for topic, lines in sizes.items():
            self.counts[f"{topic} bytes"] += sum(len(line or b"") for _, line in lines)
        self.counts["releases"] += len(commit.ledger)


def one_round(kind: type[Alone | Served], keys: int, batches: int, seed: int) -> Found:
    """Both from nothing, batch by batch in turns."""
    generator = np.random.default_rng(seed)
    losses = generator.random((ROWS, ACTIONS), dtype=np.float32)
    names = [b"key-%d" % number for number in range(keys)]
    machines = {"kept": kind(donates=False), "donated": kind(donates=True)}
    seconds = dict.fromkeys(machines, 0.0)
    for batch in range(batches):
        index = generator.integers(keys, size=ROWS)
        order = list(machines) if generator.integers(2) else list(machines)[::-1]
        for name in order:
            begun = process_time()
            machines[name].take(names, index, losses, batch * ROWS)
            seconds[name] += process_time() - begun
    return {name: {"seconds": seconds[name], **machines[name].counts} for name in machines}


def main() -> None:
    """Run and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--of", choices=["engine", "service"], default="engine")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    kind = Alone if asked.of == "engine" else Served
    rounds = [one_round(kind, asked.keys, asked.batches, seed) for seed in range(asked.rounds)]
    records = ROWS * asked.batches
    speeds = {
        name: [records / one_round[name]["seconds"] for one_round in rounds]
        for name in ("kept", "donated")
    }
    ratio = [one / other for one, other in zip(speeds["donated"], speeds["kept"], strict=True)]
    report = {
        "keys": asked.keys,
        "slots a key": records / asked.keys,
        "records a second": {name: statistics.median(rates) for name, rates in speeds.items()},
        "ratio": statistics.median(ratio),
        "ratios": ratio,
        "of": asked.of,
        "a key": {
            name: {what: count / asked.keys for what, count in of.items() if what != "seconds"}
            for name, of in rounds[-1].items()
        },
    }
    print(json.dumps(report, indent=2))
    if asked.json is not None:
        asked.json.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
