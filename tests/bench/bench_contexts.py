"""What contexts are worth: regret of `policy_contexts` in percent of uniform play's.

    python tests/bench/bench_contexts.py [--runs N] [--slots N] [--json FILE]

One key; click rates .03, and .05 of the best action; 4 actions; fields of 8, 3, 4 and 6 levels (576
cells), of which the n-th is 1/n as frequent as the first. A policy is in force for the block after
the release that it follows from. Worlds, by what the best action depends on: nothing; the first
field; all fields a little (normal effects that add up to a standard deviation of .01); the
combination of the first two fields, each with a best action of its own. Worlds and draws are
seeded; the noise is rounded Laplace of the learner's scale.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner

SHAPE = (8, 3, 4, 6)
ACTIONS = 4
WORLDS = ("nothing", "one field", "all fields", "two fields together")
SETTINGS = (("header", "1"), ("header", "3/10"), ("value", "1"))

Floats = NDArray[np.float64]


def learner_of(epsilon: str, played: str) -> PolicyLearner:
    """The shipped learner of such a table."""
    fields = {f"f{n}": [str(at) for at in range(size - 1)] for n, size in enumerate(SHAPE)}
    contexts = Contexts.read(fields)
    arms = contexts.arms(tuple("abcd"))
    return FEEDBACK_RECIPES["policy_contexts"](
        actions=arms, epsilon=epsilon, context=contexts, played=played
    )


def rates_of(world: str, rng: np.random.Generator) -> Floats:
    """The click rate of each cell and action."""
    rates = np.full((*SHAPE, ACTIONS), 0.03)
    if world == "all fields":
        for field, size in enumerate(SHAPE):
            effects = rng.normal(0, 0.01 / np.sqrt(len(SHAPE)), (size, ACTIONS))
            shape = [1] * len(SHAPE) + [ACTIONS]
            shape[field] = size
            rates = rates + effects.reshape(shape)
        return np.asarray(np.clip(rates, 0.002, 0.2).reshape(-1, ACTIONS))
    decides = SHAPE[: WORLDS.index(world)] if world != "two fields together" else SHAPE[:2]
    best = rng.integers(ACTIONS, size=decides)
    best = best.reshape(decides + (1,) * (len(SHAPE) - len(decides)))
    rates += 0.02 * (best[..., None] == np.arange(ACTIONS))
    return rates.reshape(-1, ACTIONS)


def regret(world: str, learner: PolicyLearner, *, slots: int, seed: int) -> float:
    """One run's regret, in percent of uniform play's."""
    rng = np.random.default_rng([seed, WORLDS.index(world)])
    rates, shares = rates_of(world, rng), np.ones(())
    for size in SHAPE:
        of_field = 1 / np.arange(1, size + 1)
        shares = np.multiply.outer(shares, of_field / of_field.sum())
    state, block, left, lost, uniform = learner.nothing_known(1), 0, slots, 0.0, 0.0
    gaps = rates.max(axis=1, keepdims=True) - rates
    while left:
        length = min(left, int(learner.schedule.lengths(np.array([block]))[0]))
        policy = learner.policy(state, np.array([block]))[0].reshape(rates.shape) / PARTS
        cells = rng.multinomial(length, shares.ravel())
        shown = np.stack([rng.multinomial(n, of) for n, of in zip(cells, policy, strict=True)])
        gains = rng.binomial(shown, rates) - shown / 2
        lost, uniform = lost + (shown * gaps).sum(), uniform + (cells * gaps.mean(axis=1)).sum()
        exact = learner.totals(np.rint(gains * UNIT).astype(np.int64), shown)
        released = np.concatenate(
            [
                numbers.reshape(1, -1) + np.rint(rng.laplace(0, float(scale or 0), (1, shown.size)))
                for numbers, scale in zip(exact.values(), learner.scales, strict=True)
            ],
            axis=1,
        ).astype(np.int64)
        state = learner.evidence.learned(state, released)
        block, left = block + 1, left - length
    return float(100 * lost / uniform)


def main() -> None:
    """Print a row for each world, and write them if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--slots", type=int, default=1 << 20)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows: list[Mapping[str, object]] = []
    for world in WORLDS:
        for played, epsilon in SETTINGS:
            learner = learner_of(epsilon, played)
            runs = [
                regret(world, learner, slots=asked.slots, seed=seed) for seed in range(asked.runs)
            ]
            row = {
                "world": world, "played": played, "epsilon": epsilon, "mean": np.mean(runs),
                "standard_error": np.std(runs, ddof=1) / len(runs) ** 0.5, "runs": len(runs),
            }  # fmt: skip
            rows.append(row)
            mean, error = row["mean"], row["standard_error"]
            print(f"{world:20} {played:7} ε = {epsilon:5} {mean:5.1f} ± {error:.1f}", flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
