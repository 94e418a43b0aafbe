"""What a catalogue that changes every day loses: by the shipped draws, folds and readers' filter.

    python tests/bench/bench_catalogue_days.py [--days N] [--keys N] [--seeds N] [--only TEXT]

Each day a tenth of the names is replaced. Keys are rows of one kind, each with rates of its own; a
list is a mask of columns, which is what it is to the core. Three learners release sums with noise
of their own at the ends of the same blocks:

- **list**: the shipped way. A policy is that of what the list allowed as its block began. Until the
  next one a new name is shown by readers alone (`client.filtering`), and what is gone is not shown.
- **known**: it knew all names and days beforehand. Each morning it computes the policy of the day's
  names from what was released, so a new name begins with the chance that the prior gives it.
- **all at once**: its policy is that of all names that there will ever be; readers leave out those
  which are not there that day.

The regret is that of 1,000 requests, against the best name of the day, and its ratio to *known*
with the standard error over seeds. **first** is how much less a new name earned than the best one,
in 1,000 of its first shows (10,000 over all keys), and **hours** how long these took.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from streamdp.client.filtering import allowed
from streamdp.core.arrays import Bools, Floats
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.learners.feedback.policy_following import among, policy_following
from streamdp.core.randomness import SeededRandomness
from streamdp.lab.play import totals

FIRST = 10_000  # shows of a new name, over all keys
LEARNERS = ("list", "known", "all at once")


@dataclass(frozen=True)
class Setting:
    """What a line is about."""

    level: float = 0.05
    swing: float = 0.015
    epsilon: str = "1"
    longest: int = 20_000  # slots: 400·K/ε of 50 names
    names: int = 50
    replaced: int = 5  # each day
    events: int = 5_000  # of a key, each day

    def __str__(self) -> str:
        rates = f"rates {self.level} ± {self.swing}"
        return f"ε = {self.epsilon}, {rates}, blocks of up to {self.longest:,}"


SETTINGS = (
    Setting(),
    Setting(longest=5_000),
    Setting(longest=2_500),
    Setting(level=0.01, swing=0.003),
    Setting(level=0.01, swing=0.003, longest=5_000),
    Setting(level=0.2, swing=0.06),
    Setting(epsilon="1/4", longest=80_000),
    Setting(epsilon="1/4", longest=20_000),
)


def lists(of: Setting, days: int, random: Generator) -> Bools:
    """Which names are there on each day: days × columns. A name takes a column of its own."""
    columns = of.names + of.replaced * (days - 1)
    there = np.zeros((days, columns), dtype=np.bool_)
    there[0, : of.names] = True
    for day in range(1, days):
        there[day] = there[day - 1]
        gone = random.choice(np.flatnonzero(there[day]), of.replaced, replace=False)
        there[day, gone] = False
        new = of.names + of.replaced * (day - 1)
        there[day, new : new + of.replaced] = True
    return there


def stretches(learner: PolicyLearner, of: Setting, days: int) -> Iterator[tuple[int, int, int]]:
    """Slots in which neither block nor day changes: first, stop, and the block."""
    horizon, first, block = of.events * days, 0, 0
    while first < horizon:
        end = learner.schedule.stop(block) - 1
        stop = min(end, first - first % of.events + of.events, horizon)
        yield first, stop, block
        first, block = stop, block + (stop == end)


def filtered(policies: Policy, mask: Bools, back: Bools | None) -> Floats:
    """What readers draw from, R × K."""
    ends = policies.astype(np.int64).cumsum(axis=1)
    drawn = np.array([allowed(row, mask, back) for row in ends.tolist()])
    return np.diff(drawn, axis=1, prepend=0) / PARTS


@dataclass(frozen=True)
class Found:
    """Regrets of 1,000, and how long the first shows of new names took."""

    regret: float
    first: float
    hours: float


def played(name: str, of: Setting, *, days: int, keys: int, seed: int) -> Found:
    """One learner in all keys, day by day."""
    world = default_rng([seed, 1])
    there = lists(of, days, world)
    columns = there.shape[1]
    rates = np.clip(world.normal(of.level, of.swing, (keys, columns)), of.level / 20, 1.0)
    learner = policy_following(
        actions=[str(number) for number in range(columns)],
        epsilon=of.epsilon,
        schedule=f"capped {of.longest}",
        spread=among(of.names),
    )
    random, source = default_rng([seed, 2]), SeededRandomness(f"catalogue {seed} {name}")
    tags = np.zeros((keys, 16), dtype=np.uint8)
    tags[:, :8] = np.arange(keys, dtype="<u8").view(np.uint8).reshape(keys, 8)
    evidence, public = learner.evidence, dict[str, Any]()
    public = {at.name: np.zeros((keys, *at.shape), at.dtype) for at in evidence.fields}
    shows = np.zeros((2, keys, columns), dtype=np.int64)  # of the open block, and clicks
    lost, came, came_lost, took = 0.0, np.zeros(columns), np.zeros(columns), np.zeros(columns)
    newest, listed, policies = -1, there[0], np.zeros(0, dtype=np.uint32)
    for first, stop, block in stretches(learner, of, days):
        today, numbers = there[first // of.events], np.full(keys, block)
        lengths = learner.schedule.lengths(numbers)
        if block != newest or name == "known":
            listed = today if name != "all at once" else np.ones(columns, dtype=np.bool_)
            policies = evidence.in_force(public, lengths, listed)
        newest = block
        exact = (listed == today).all()
        drawn = policies / PARTS if exact else filtered(policies, today, today & ~listed)
        shown = random.multinomial(stop - first, drawn)
        shows += np.stack([shown, random.binomial(shown, rates)])
        behind = np.where(today, rates, 0.0).max(axis=1)[:, None] - rates
        lost += float((stop - first) * (drawn * behind).sum())
        new = (np.arange(columns) >= of.names) & (came < FIRST)
        of_all, total = shown.sum(axis=0), (shown * behind).sum(axis=0)
        part = np.minimum(1.0, (FIRST - came[new]) / np.maximum(of_all[new], 1))
        came_lost[new] += part * total[new]
        took[new & today] += (part * (stop - first))[today[new]]
        came += of_all
        if stop == learner.schedule.stop(block) - 1:
            private = totals(learner, shows[1] * UNIT - shows[0] * (UNIT // 2), shows[0])
            released = learner.draw(
                "sums",
                private,
                public,
                lambda purpose, at=numbers: source.bits("catalogue", purpose, tags, at),  # type: ignore[misc]
            )
            public |= evidence.fold(public, released, lengths)
            shows[:] = 0
    whole = (came >= FIRST) & (np.arange(columns) >= of.names)
    return Found(
        lost / (keys * of.events * days) * 1000,
        float(came_lost[whole].sum() / FIRST / max(whole.sum(), 1)) * 1000,
        float(took[whole].mean() / of.events * 24) if whole.any() else float("nan"),
    )


def of_setting(of: Setting, *, days: int, keys: int, seeds: int) -> dict[str, Any]:
    """Prints a table, and gives it back."""
    print(f"\n{of}; {keys} keys, {days} days, {seeds} seeds\n", flush=True)
    print("| learner | regret of 1,000 | ÷ known | first | hours |\n|---|--:|--:|--:|--:|")
    every = {
        name: [played(name, of, days=days, keys=keys, seed=seed) for seed in range(seeds)]
        for name in LEARNERS
    }
    known = np.array([found.regret for found in every["known"]])
    rows = dict[str, Any]()
    for name, found in every.items():
        regret = np.array([each.regret for each in found])
        ratio, root = regret / known, max(seeds - 1, 1) ** 0.5
        row = {
            "regret": float(regret.mean()),
            "ratio": float(ratio.mean()),
            "error": float(ratio.std() / root),
            "first": float(np.mean([each.first for each in found])),
            "hours": float(np.mean([each.hours for each in found])),
        }
        rows[name] = row
        print(
            f"| {name} | {row['regret']:.3f} | {row['ratio']:.3f} ± {row['error']:.3f}"
            f" | {row['first']:.1f} | {row['hours']:.1f} |",
            flush=True,
        )
    return {"setting": str(of), "learners": rows}


def main() -> None:
    """Print every table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", type=Path)
    options.add_argument("--days", type=int, default=30)
    options.add_argument("--keys", type=int, default=200)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--only", default="", help="a part of a setting's name")
    asked = options.parse_args()
    found = [
        of_setting(of, days=asked.days, keys=asked.keys, seeds=asked.seeds)
        for of in SETTINGS
        if asked.only in str(of)
    ]
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
