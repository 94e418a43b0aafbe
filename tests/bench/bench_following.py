"""What a feedback learner loses when the best action changes: by the shipped draws and folds.

    python tests/bench/bench_following.py [--json FILE] [--runs N] [--only NAME]

Many runs are rows of one kind: each block is drawn (`draw`) with noise of its own, folded
(`evidence.fold`) and put in force (`evidence.in_force`) as the engine does it. Outcomes come from
made-up worlds, in which every request of a block is shown to somebody and answered before the block
ends. Everything is seeded.

The worlds: rates that stand *still*; rates that are all drawn anew at *1, 3 or 10 jumps*, evenly
apart; *slow* sine waves of about a third of the horizon. Rates are drawn with mean `level` and
deviation `swing`.

- **regret**: the mean regret of 1,000 requests, and its standard error, against always showing the
  best action of the moment; `policy_following`, `policy_blocks`, and the ratio of the two.
- **bounds**: many actions with small rates and jumps, beside a learner that is told of each jump
  (it begins anew there), with noise and without: what no rule that looks for jumps can do better.
- **shop**: a shop whose best banner changes once, half way: clicks after the change.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import pi
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import PolicyLearner, feedback_learner_of
from streamdp.core.randomness import SeededRandomness
from streamdp.lab.play import totals

LEARNERS = ("policy_following", "policy_blocks")
WORLDS = ("still", "1 jump", "3 jumps", "10 jumps", "slow")

_MOMENTS = 200  # of the horizon, at which waves are looked at


Rates = Callable[[int, int], tuple[Floats, Floats]]
"""In the slots [first, stop), of each run: the mean rates of its arms (R × K), and the mean rate of
the arm that is the best at each moment."""


@dataclass(frozen=True)
class Setting:
    """What a table is about."""

    actions: int = 6
    epsilon: str = "1"
    horizon: int = 10**6
    level: float = 0.05
    swing: float = 0.015
    played: str = "header"

    def __str__(self) -> str:
        rates = f"rates {self.level} ± {self.swing}"
        where = "" if self.played == "header" else f", played = {self.played}"
        return f"K = {self.actions}, ε = {self.epsilon}, T = {self.horizon:,}, {rates}{where}"


SETTINGS = (
    Setting(),
    Setting(epsilon="1/4"),
    Setting(horizon=50_000),
    Setting(horizon=50_000, epsilon="1/4"),
    *(Setting(actions=actions, epsilon=epsilon) for actions in (2, 20) for epsilon in ("1", "1/4")),
    *(
        Setting(level=level, swing=swing, epsilon=epsilon)
        for level, swing in ((0.01, 0.003), (0.5, 0.1))
        for epsilon in ("1", "1/4")
    ),
)

MANY = Setting(actions=20, level=0.01, swing=0.003)
"""Many actions, small rates: what limits following there is looked at more closely."""


def rates_of(world: str, of: Setting, runs: int) -> Rates:
    """A world of one kind for each run, always the same."""
    random = default_rng(17)
    shape, least = (runs, of.actions), of.level / 20

    def drawn(count: int) -> Floats:
        return np.clip(random.normal(of.level, of.swing, (count, *shape)), least, 1.0)

    if world == "slow":
        phase = random.uniform(0, 2 * pi, shape)
        period = of.horizon / 3 * random.uniform(0.8, 1.25, shape)

        def wave(first: int, stop: int) -> tuple[Floats, Floats]:
            moments = np.linspace(first, stop, 2 + (stop - first) * _MOMENTS // of.horizon)
            middle = (moments[1:] + moments[:-1])[:, None, None] / 2
            angle = 2 * pi * middle / period + phase
            rates = np.clip(of.level + of.swing * 2**0.5 * np.sin(angle), least, 1.0)
            return rates.mean(axis=0), rates.max(axis=2).mean(axis=0)

        return wave
    stretches = drawn(1 if world == "still" else 1 + int(world.split()[0]))
    return _in_stretches(stretches, of.horizon)


def _in_stretches(stretches: Floats, horizon: int) -> Rates:
    """Rates that change at once, all at the same slots; a block over a change has their mean."""
    borders = [horizon * at // len(stretches) for at in range(len(stretches) + 1)]

    def rates(first: int, stop: int) -> tuple[Floats, Floats]:
        inside = [max(0, min(stop, end) - max(first, begin)) for begin, end in pairwise(borders)]
        parts = np.array(inside) / (stop - first)
        best = np.tensordot(parts, stretches.max(axis=2), axes=1)
        return np.tensordot(parts, stretches, axes=1), best

    return rates


@dataclass(frozen=True)
class Block:
    """One block of some runs."""

    first: int
    stop: int
    policy: Floats  # R × K
    rates: Floats
    best: Floats  # R: the rate of the best arm of each moment
    clicks: Ints  # R


def played(learner: PolicyLearner, rates: Rates, *, runs: int, horizon: int) -> Iterator[Block]:
    """Play a learner in all runs, block by block."""
    random, source, arms = default_rng(23), SeededRandomness("following"), len(learner.actions)
    names = np.arange(runs, dtype="<u8")
    tags = np.zeros((runs, 16), dtype=np.uint8)
    tags[:, :8] = names.view(np.uint8).reshape(runs, 8)
    evidence, schedule = learner.evidence, learner.schedule
    public: dict[str, Any] = {
        field.name: np.zeros((runs, *field.shape), field.dtype) for field in evidence.fields
    }
    public |= evidence.opened(
        learner.opening(runs, lambda purpose: source.bits("", purpose, tags, names))
    )
    for block in range(schedule.block_of(horizon) + 1):
        numbers = np.full(runs, block, dtype=np.int64)
        first = schedule.start(block) - 1
        stop = min(schedule.stop(block) - 1, horizon)
        if stop <= first:
            return
        policy = evidence.in_force(public, schedule.lengths(numbers)) / PARTS
        now, best = rates(first, stop)
        shown = random.multinomial(stop - first, policy)
        clicked = random.binomial(shown, now)
        yield Block(first, stop, policy, now, best, clicked.sum(axis=1))
        private = totals(learner, clicked * UNIT - shown * (UNIT // 2), shown)
        assert shown.shape == (runs, arms)
        released = learner.draw(
            "sums",
            private,
            public,
            lambda purpose, at=numbers: source.bits("following", purpose, tags, at),  # type: ignore[misc]
        )
        public |= evidence.fold(public, released, schedule.lengths(numbers))


def learner_of(recipe: str, of: Setting) -> PolicyLearner:
    """A learner with its defaults."""
    names = [str(number) for number in range(of.actions)]
    config = {"recipe": recipe, "epsilon": of.epsilon, "played": of.played}
    return feedback_learner_of(config, actions=names)


def regret(recipe: str, world: str, of: Setting, runs: int) -> tuple[float, float]:
    """The mean regret of 1,000 requests, and its standard error."""
    total, rates = np.zeros(runs), rates_of(world, of, runs)
    for block in played(learner_of(recipe, of), rates, runs=runs, horizon=of.horizon):
        lost = block.best - (block.policy * block.rates).sum(axis=1)
        total += (block.stop - block.first) * lost
    each = total / of.horizon * 1000
    return float(each.mean()), float(each.std(ddof=1) / runs**0.5)


SHOP = np.array([0.09, 0.05, 0.04, 0.03, 0.03, 0.02])
"""Click rates before the change; after it they are those of other banners, from last to first."""


def shop(recipe: str, runs: int, *, epsilon: str = "1", horizon: int = 50_000) -> dict[str, float]:
    """Clicks of 100 visitors after the change, and their standard error."""
    stretches = np.repeat(np.stack([SHOP, SHOP[::-1]])[:, None], runs, axis=1)
    rates = _in_stretches(stretches, horizon)
    of = Setting(actions=len(SHOP), epsilon=epsilon, horizon=horizon)
    expected = np.zeros(runs)
    for block in played(learner_of(recipe, of), rates, runs=runs, horizon=horizon):
        after = block.stop - max(block.first, horizon // 2)
        if after > 0:
            expected += after * (block.policy * SHOP[::-1]).sum(axis=1)
    each = expected / (horizon - horizon // 2) * 100
    return {
        "clicks": float(each.mean()),
        "error": float(each.std(ddof=1) / runs**0.5),
        "of random": float(each.mean() / SHOP.mean() / 100),
    }


def regrets(settings: Sequence[Setting], runs: int) -> list[dict[str, Any]]:
    """Prints the table of each setting as it comes."""
    rows: list[dict[str, Any]] = []
    for of in settings:
        print(f"\n{of}; regret of 1,000 requests, {runs} runs\n", flush=True)
        print(f"| world | {' | '.join(LEARNERS)} | ratio |\n|---|--:|--:|--:|", flush=True)
        for world in WORLDS:
            found = {recipe: regret(recipe, world, of, runs) for recipe in LEARNERS}
            (ours, ours_error), (theirs, theirs_error) = found.values()
            print(
                f"| {world} | {ours:.2f} ± {ours_error:.2f} | {theirs:.2f} ± {theirs_error:.2f}"
                f" | {ours / theirs:.2f} |",
                flush=True,
            )
            rows.append(
                {"setting": str(of), "world": world, "regret": found, "ratio": ours / theirs}
            )
    return rows


def bounds(runs: int) -> list[dict[str, Any]]:
    """Prints what following loses where actions are many and rates small, and what it could."""
    print(f"\n{MANY}, or other T; regret of 1,000 requests, {runs} runs\n")
    names = (*LEARNERS, "told of jumps", "told, without noise")
    print(f"| T | world | {' | '.join(names)} |\n|--:|---|--:|--:|--:|--:|", flush=True)
    rows: list[dict[str, Any]] = []
    for horizon in (200_000, 10**6, 2 * 10**6):
        for world in WORLDS[1:4]:
            of, jumps = replace(MANY, horizon=horizon), int(world.split()[0])
            part = replace(of, horizon=horizon // (jumps + 1))
            told = (part, replace(part, epsilon="1000"))
            found = [
                *(regret(recipe, world, of, runs) for recipe in LEARNERS),
                *(regret(LEARNERS[0], "still", each, runs) for each in told),
            ]
            cells = " | ".join(f"{mean:.2f} ± {error:.2f}" for mean, error in found)
            print(f"| {horizon:,} | {world} | {cells} |", flush=True)
            regrets = dict(zip(names, found, strict=True))
            rows.append({"horizon": horizon, "world": world, "regret": regrets})
    return rows


def shops(runs: int) -> dict[str, Any]:
    """Prints the table of the shop."""
    random, best = SHOP.mean() * 100, SHOP.max() * 100
    print(f"\nA shop of {len(SHOP)} banners, the best changes half way; T = 50,000, {runs} runs\n")
    print(f"clicks of 100 visitors after it; random play {random:.1f}, the best {best:.1f}\n")
    print("| learner | ε | clicks | of random's |\n|---|--:|--:|--:|")
    found: dict[str, Any] = {}
    for recipe in LEARNERS:
        for epsilon in ("1", "1/4"):
            row = found[f"{recipe} {epsilon}"] = shop(recipe, runs, epsilon=epsilon)
            clicks = f"{row['clicks']:.2f} ± {row['error']:.2f}"
            print(f"| {recipe} | {epsilon} | {clicks} | {row['of random']:.2f} |")
    return found


def main() -> None:
    """Print every table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", type=Path)
    options.add_argument("--runs", type=int, default=100)
    options.add_argument("--only", help="a part of a setting's name")
    asked = options.parse_args()
    settings = [of for of in SETTINGS if asked.only is None or asked.only in str(of)]
    found = {
        "runs": asked.runs,
        "shop": shops(asked.runs),
        "bounds": bounds(asked.runs) if asked.only is None or asked.only in str(MANY) else [],
        "regret": regrets(settings, asked.runs),
    }
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
