"""How often the intervals of ``streamdp worth`` hold the truth, in learners' own logs.

    python -m tests.bench.bench_worth [LOGS]

Each line is a world: click rates of 12 cells and 4 actions, `apart` how much those of cells differ.
Each log is valued as users would: the policy of the first half of all events and the best action of
each cell (or of each level of a field) by the other half, each action for everybody by all of it.
"told" are logs in which blocks said something of it; of the others the interval is [0, 1]. "alike"
is what showing all actions alike would have earned, in the shows that say it (`Lift.of_tables`).
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from streamdp.core.evidence.context_value import value_of
from streamdp.core.evidence.lift import Lift
from tests.core.test_contexts_value import Found, Logs, everybody, logs, newest, picked
from tests.support.lift_logs import true_of

WORLDS = (
    ("header", 1 << 12, "1", 0.0),
    ("header", 1 << 15, "1", 0.0),
    ("header", 1 << 15, "1", 1.0),
    ("header", 1 << 17, "1/3", 1.0),
    ("value", 1 << 12, "1", 0.0),
    ("value", 1 << 15, "1", 0.0),
    ("value", 1 << 15, "1", 1.0),
    ("value", 1 << 17, "1/3", 1.0),
)


def of_a_field(of: Logs, run: int, half: int) -> list[Found]:
    """The best action of each level of the first field in one half, by the other."""
    tables = of.tables[run]
    policy = tables.until(half).best(np.arange(12) // 3)
    return [(value_of(policy, tables.since(half)), of.truth(run, policy))]


def alike(of: Logs) -> str:
    """All actions alike, by `lift`; the truth is that of the cells as they occurred."""
    held, off, width, told = 0, 0.0, 0.0, 0
    for run, tables in enumerate(of.tables):
        count, levels = tables.shown.shape[2], list(tables.each())
        occurred = [of_block.of_cells for of_block in levels]
        mixed = np.zeros_like(tables.gains)
        for block, entries in enumerate(occurred):
            events = tables.shown[block].sum(axis=1)
            of_entry = np.maximum(np.bincount(entries, events), 1.0)
            rates = np.stack(
                [np.bincount(entries, events * one) / of_entry for one in of.rates[run].T], axis=1
            )
            mixed[block] = tables.shown[block] * (rates[entries] - 0.5)
        found = Lift.of_tables(tables, [None] * tables.blocks).earned()
        true = Lift.of_tables(replace(tables, gains=mixed), [None] * tables.blocks)
        if found is None or found.alike is None:
            continue
        mean, _ = true_of(true, count, found.alike.shows)
        told += 1
        held += found.alike.reward.low <= mean <= found.alike.reward.high
        off += found.alike.reward.mean - mean
        width += (found.alike.reward.high - found.alike.reward.low) / 2
    return f"told {told}, held {held / max(told, 1):.3f}, bias {off / max(width, 1e-9):+.2f}"


def main(runs: int) -> None:
    """Print a line for each world and setting."""
    for played, slots, epsilon, apart in WORLDS:
        of = logs(played, slots=slots, runs=runs, epsilon=epsilon, apart=apart)
        print(f"{played}, {slots:,} events, ε = {epsilon}, apart {apart}:")
        for setting in (newest, picked, of_a_field, everybody):
            told, held, off, width = 0, 0, 0.0, 0.0
            for run, tables in enumerate(of.tables):
                found = setting(of, run, tables.half())
                if all(value.blocks for value, _ in found):
                    told += 1
                    held += all(v.reward.low <= truth <= v.reward.high for v, truth in found)
                    off += sum(value.reward.mean - truth for value, truth in found)
                    width += sum(value.reward.high - value.reward.low for value, _ in found) / 2
            line = f"{setting.__name__:<11} told {told}, held {held / max(told, 1):.3f}"
            print(f"  {line}, bias {off / max(width, 1e-9):+.2f} half-widths")
        if played == "header":
            print(f"  alike       {alike(of)} half-widths")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
