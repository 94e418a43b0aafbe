"""How often the intervals of a lift hold, in learners' own logs; what a floor narrows and costs.

    python -m tests.bench.bench_lift [--logs N] [--only TEXT]

Each line is a setting: the learner's actions and floor, the shows, and the mean click rate, around
which rates of single actions differ by 30 %. *still*: they stay. *falls*: all fall to a third.
*wave*: all go up and down by 30 %, in 10,000 shows. *jump*: all are drawn anew half way. *late*:
three quarters of a block were shown by the policy before, and a tenth of its slots are nobody's.

**alike** is what showing all actions alike would have earned, **one** what always showing one would
have (all of a log's intervals at once), each with **more**: what was earned more. Of each the share
of logs that say something, the share of these whose intervals hold, and the bias in half-widths.
Then the half-width of *alike* beside what was earned, and the share of shows that it is about.
"""

from __future__ import annotations

import argparse

import numpy as np

from tests.support.lift_logs import Setting, logs, told

SETTINGS = (
    *(
        Setting(actions, shows, rate, world, late)
        for actions, shows in ((6, 16_000), (6, 100_000), (20, 100_000))
        for rate in (0.01, 0.02, 0.05)
        for world, late in (("still", False), ("falls", False), ("wave", True), ("jump", True))
    ),
    *(Setting(6, 100_000, 0.05, floor=floor) for floor in ("16", "32", "64", "128")),
    *(Setting(20, 400_000, 0.02, floor=floor) for floor in ("4", "16", "32", "64", "128")),
    Setting(recipe="policy_weights"),
    Setting(recipe="policy_blocks", floor="8"),
)


def line(of: Setting, runs: int) -> str:
    """The line of a setting, after it was played."""
    log, cells = logs(of, runs), list[str]()
    every = [list(told(log, run)) for run in range(runs)]
    for each in zip(*every, strict=True):
        said = [of for of in each if of.intervals]
        held, off, wide = 0, 0.0, 0.0
        for of_log in said:
            both = list(zip(of_log.intervals, of_log.truths, strict=True))
            held += all(found.low <= truth <= found.high for found, truth in both)
            off += sum(found.mean - truth for found, truth in both)
            wide += sum(found.high - found.low for found, _ in both) / 2
        share = held / max(len(said), 1)
        cells.append(
            f"{each[0].name} {len(said) / runs:.2f} {share:.3f} {off / max(wide, 1e-9):+.2f}"
        )
    alike = [each[0] for each in every if each[0].intervals]
    halves = [(each.intervals[0].high - each.intervals[0].low) / 2 for each in alike]
    earned = (log.shown * log.rates).sum() / log.shown.sum()
    cells.append(
        f"± {np.median(halves):.4f} of {earned:.4f}, {np.mean([of.share for of in alike]):.0%}"
    )
    return " | ".join(cells)


def main() -> None:
    """Print a line for each setting."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--logs", type=int, default=1000)
    options.add_argument("--only", default="", help="a part of a setting's name")
    asked = options.parse_args()
    for of in SETTINGS:
        if asked.only in str(of):
            print(f"{of}: {line(of, asked.logs)}", flush=True)


if __name__ == "__main__":
    main()
