"""What contexts are worth: regret of `policy_contexts` in percent of uniform play's.

    python tests/bench/bench_contexts.py [--runs N] [--only TEXT] [--json FILE]

One key; click rates .03, and .05 of the best action; 4 actions; fields of 8, 3, 4 and 6 levels (576
cells) or other shapes, of which the n-th level is 1/n as frequent as the first. A policy is in
force for the block after the release that it follows from. Worlds, by what the best action depends
on: nothing; the first field; all fields a little (normal effects that add up to a standard
deviation of .01); the combination of the first two fields, each with a best action of its own.

Worlds by which nothing was chosen: two pairs of fields, a little each; one best action but in a
fifth of the cells, each of which has its own; the first field, where the last one makes all clicks
up to four times as frequent.

`changes`: half way everything is drawn anew. `of levels`: one field of 100 levels in one key, or
100 keys without contexts (`policy_following`). Worlds and draws are seeded; the noise is rounded
Laplace of the learner's scale. With STREAMDP_PEERS, Vowpal Wabbit (`peers/vowpal.py`) learns in
the same worlds, without privacy and with each reward at once.

`choose`: microseconds of an `ActionsCache`'s choice by a context of 576 cells.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import timeit
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.client import ActionsCache, Names, Source
from streamdp.client.answers import Answer, Held, Why
from streamdp.client.choosing import hashed_prefix
from streamdp.core.events import SUMS
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policies import ReleasedSums
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.releases import Identity
from streamdp.lab.play import totals
from streamdp.ports import Publications, StreamTopics
from tests.support.histories import nothing_known, policy_after

ACTIONS = 4
Shape = tuple[int, ...]
SHAPE = (8, 3, 4, 6)
SETTINGS = (("header", "1"), ("header", "3/10"), ("value", "1"))

Floats = NDArray[np.float64]


# -- worlds --------------------------------------------------------------------------------------


def best_by(shape: Shape, fields: Sequence[int], rng: np.random.Generator) -> Floats:
    """1 for the best action of each cell, which depends on some of the fields."""
    kept = [size if field in fields else 1 for field, size in enumerate(shape)]
    best = np.broadcast_to(rng.integers(ACTIONS, size=kept), shape)
    return np.asarray(best[..., None] == np.arange(ACTIONS), dtype=np.float64)


def normal_by(shape: Shape, fields: Sequence[int], rng: np.random.Generator) -> Floats:
    """A normal effect of each action in each combination of levels of some fields."""
    kept = [size if field in fields else 1 for field, size in enumerate(shape)]
    return np.asarray(rng.normal(0, 1, (*kept, ACTIONS)))


def all_fields(shape: Shape, rng: np.random.Generator) -> Floats:
    effects = np.zeros((*shape, ACTIONS))
    for field in range(len(shape)):
        effects += normal_by(shape, [field], rng)
    return np.asarray(0.03 + 0.01 / np.sqrt(len(shape)) * effects)


def two_pairs(shape: Shape, rng: np.random.Generator) -> Floats:
    effects = normal_by(shape, [0, 2], rng) + normal_by(shape, [1, 3], rng)
    return np.asarray(0.03 + 0.01 / np.sqrt(2) * effects)


def odd_cells(shape: Shape, rng: np.random.Generator) -> Floats:
    own = (rng.random(shape) < 0.2)[..., None]
    every = range(len(shape))
    return 0.03 + 0.02 * np.where(own, best_by(shape, every, rng), best_by(shape, [], rng))


def other_rates(shape: Shape, rng: np.random.Generator) -> Floats:
    factors = np.geomspace(0.5, 2, shape[-1])[:, None]
    return np.asarray((0.03 + 0.02 * best_by(shape, [0], rng)) * factors)


WORLDS: dict[str, Callable[[Shape, np.random.Generator], Floats]] = {
    "nothing": lambda shape, rng: 0.03 + 0.02 * best_by(shape, [], rng),
    "one field": lambda shape, rng: 0.03 + 0.02 * best_by(shape, [0], rng),
    "all fields": all_fields,
    "two fields together": lambda shape, rng: 0.03 + 0.02 * best_by(shape, [0, 1], rng),
    "two pairs, a little each": two_pairs,
    "a fifth of the cells": odd_cells,
    "one field, other rates": other_rates,
}


def rates_of(world: str, shape: Shape, rng: np.random.Generator) -> Floats:
    """The click rate of each cell and action."""
    rates = np.broadcast_to(WORLDS[world](shape, rng), (*shape, ACTIONS))
    return np.asarray(np.clip(rates, 0.002, 0.2).reshape(-1, ACTIONS))


def shares_of(shape: Shape) -> Floats:
    """How frequent each cell is."""
    shares = np.ones(())
    for size in shape:
        of_field = 1 / np.arange(1, size + 1)
        shares = np.multiply.outer(shares, of_field / of_field.sum())
    return shares.ravel()


# -- one run -------------------------------------------------------------------------------------


def fields_of(shape: Shape) -> Contexts:
    """Fields of so many levels, `other` included."""
    fields = {f"f{n}": [str(at) for at in range(size - 1)] for n, size in enumerate(shape)}
    return Contexts.read(fields)


def learner_of(shape: Shape, epsilon: str, played: str, interactions: str = "all") -> PolicyLearner:
    """The shipped learner of such a table."""
    contexts = fields_of(shape)
    return FEEDBACK_RECIPES["policy_contexts"](
        actions=contexts.arms(tuple("abcd")), epsilon=epsilon, context=contexts, played=played,
        interactions=interactions,
    )  # fmt: skip


def losses(
    learner: PolicyLearner,
    phases: Sequence[Floats],
    shares: Floats,
    slots: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """What is lost in one run, and by uniform play; phases are equal parts of the slots."""
    state, block, at, lost, uniform = nothing_known(learner), 0, 0, 0.0, 0.0
    ends = [slots * (number + 1) // len(phases) for number in range(len(phases))]
    while at < slots:
        stop = min(slots, at + int(learner.schedule.lengths(np.array([block]))[0]))
        policy = policy_after(learner, state, np.array([block]))[0].reshape(phases[0].shape) / PARTS
        gains, shown = np.zeros(policy.shape), np.zeros(policy.shape)
        while at < stop:
            phase = next(number for number, end in enumerate(ends) if at < end)
            rates, until = phases[phase], min(stop, ends[phase])
            cells = rng.multinomial(until - at, shares)
            shows = rng.multinomial(cells, policy / policy.sum(axis=1, keepdims=True))
            gains += rng.binomial(shows, rates) - shows / 2
            shown += shows
            gaps = rates.max(axis=1, keepdims=True) - rates
            lost, uniform = lost + (shows * gaps).sum(), uniform + (cells * gaps.mean(axis=1)).sum()
            at = until
        state = learned(learner, state, gains, shown, rng)
        block += 1
    return lost, uniform


def learned(
    learner: PolicyLearner, state: Any, gains: Floats, shown: Floats, rng: np.random.Generator
) -> Any:
    """The history after a block with these sums, which are released with rounded noise."""
    whole = np.rint(gains.reshape(1, -1) * UNIT), shown.reshape(1, -1)
    arms = totals(learner, *(of.astype(np.int64) for of in whole))
    released, noisy = learner.exact(arms, state)
    many, of_table = len(learner.actions), int(noisy[0])
    for at, scale in enumerate(learner.scales):
        noise = np.rint(rng.laplace(0, float(scale or 0), of_table)).astype(np.int64)
        released[0, at * many : at * many + of_table] += noise
    evidence = learner.evidence
    if isinstance(evidence, ReleasedSums):
        return evidence.learned(state, released)
    return state | evidence.fold(state, released, np.array([int(shown.sum())]))


@dataclass(frozen=True)
class Scene:
    """A world, a shape, and how long."""

    world: str
    shape: Shape = SHAPE
    slots: int = 1 << 20
    changes: int = 0
    interactions: str = "all"

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"{self.world}, {shape}, {self.slots} events" + ", changes" * self.changes

    @property
    def title(self) -> str:
        """With the parts of its table; its worlds are those of the whole table."""
        return str(self) + f", {self.interactions}" * (self.interactions != "all")

    def phases(self, rng: np.random.Generator) -> list[Floats]:
        """The click rates before and after each change."""
        return [rates_of(self.world, self.shape, rng) for _ in range(self.changes + 1)]


FIRST = ("nothing", "one field", "all fields", "two fields together")
PARTS_OF = ("all", "none", "f0 x f1")
SCENES = (
    *(Scene(world) for world in WORLDS),
    *(Scene(world, changes=1) for world in FIRST[1:]),
    *(Scene(world, slots=slots) for slots in (100_000, 1 << 18) for world in FIRST),
    *(Scene(world, (3, 4, 6), 1 << 18) for world in FIRST),
    *(Scene(world, (2, 2), 1 << 16) for world in FIRST[:3]),
    *(Scene(world, (3, 4, 6), 1 << 18, 1) for world in FIRST[1:]),
    *(Scene(world, (4,) * 5, interactions=of) for world in FIRST for of in PARTS_OF),
    *(Scene(world, (3,) * 7, interactions=of) for world in FIRST for of in PARTS_OF),
)


def regrets(scene: Scene, played: str, epsilon: str, runs: int) -> list[float]:
    """Of some runs, in percent of uniform play's."""
    learner, found = learner_of(scene.shape, epsilon, played, scene.interactions), []
    for seed in range(runs):
        rng = np.random.default_rng([seed, sum(map(ord, str(scene)))])
        phases = scene.phases(rng)
        lost, uniform = losses(learner, phases, shares_of(scene.shape), scene.slots, rng)
        found.append(100 * lost / uniform)
    return found


LEVELS = 100


def of_levels(epsilon: str, runs: int) -> Iterator[tuple[str, list[float]]]:
    """100 levels of which six in ten have the same best action, as one key and as 100 keys."""
    whole = learner_of((LEVELS,), epsilon, "header")
    alone = FEEDBACK_RECIPES["policy_following"](actions=list("abcd"), epsilon=epsilon)
    both: dict[str, list[float]] = {"one key with contexts": [], "100 keys": []}
    for seed in range(runs):
        rng = np.random.default_rng([seed, 100])
        own = (rng.random(LEVELS) < 0.4)[:, None]
        best = np.where(own, best_by((LEVELS,), [0], rng), best_by((LEVELS,), [], rng))
        rates, shares = 0.03 + 0.02 * best, shares_of((LEVELS,))
        slots = 1 << 20
        lost, uniform = losses(whole, [rates], shares, slots, rng)
        both["one key with contexts"].append(100 * lost / uniform)
        each = [
            losses(alone, [rates[[n]]], np.ones(1), round(slots * share), rng)
            for n, share in enumerate(shares.tolist())
        ]
        both["100 keys"].append(100 * sum(x for x, _ in each) / sum(x for _, x in each))
    yield from both.items()


def by_vowpal(scene: Scene, options: str, runs: int) -> list[float]:
    """Regret of Vowpal Wabbit in the same worlds."""
    found = []
    for seed in range(runs):
        rng = np.random.default_rng([seed, sum(map(ord, str(scene)))])
        asked = {
            "rates": [of.tolist() for of in scene.phases(rng)],
            "shares": shares_of(scene.shape).tolist(),
            "shape": scene.shape,
            "slots": scene.slots,
            "seed": seed,
            "options": options,
        }
        script = Path(__file__).parent / "peers" / "vowpal.py"
        ran = subprocess.run(
            [os.environ["STREAMDP_PEERS"], script],
            input=json.dumps(asked), capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append(float(ran.stdout))
    return found


def choice_takes(calls: int = 20_000) -> float:
    """Microseconds of processor for a choice: key, cell, hash, draw; the least of five rounds."""
    contexts, actions = fields_of(SHAPE), tuple("abcd")
    names = Names(actions, "pepper", contexts)
    even = np.tile(np.arange(1, ACTIONS + 1, dtype=np.uint32) * (PARTS // ACTIONS), contexts.cells)
    prefix = hashed_prefix("pepper", Identity("clicks", 0, b"home", 1, 0, 9, SUMS))
    kept = Held(array("I", even.tobytes()), prefix, names)

    def never() -> Publications:
        raise NotImplementedError

    cache = ActionsCache(never, [Source(StreamTopics("shop", "clicks", "shown"), "a", names)])
    followed = cache._streams["clicks"]
    followed.table.answers[b"home"] = Answer("a", Why.PUBLISHED, 0, 1, 0, 9, 9, held=kept)
    followed.current()
    followed.catalogue.current()
    levels = [contexts.levels(cell) for cell in range(0, contexts.cells, 7)]
    requests = [(f"r-{at}", levels[at % len(levels)]) for at in range(calls)]

    def each() -> None:
        for request, context in requests:
            cache.choose("clicks", b"home", request, context=context)

    return min(timeit.repeat(each, number=1, repeat=5, timer=process_time)) / calls * 1e6


VOWPAL = {
    "squarecb": "--cb_explore_adf --squarecb",
    "bagging": "--cb_explore_adf --bag 5",
}


def main() -> None:
    """Print a row for each scene and learner, and write them if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--only", default="", help="scenes whose name holds this text")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows: list[dict[str, object]] = []

    def note(scene: str, learner: str, found: list[float]) -> None:
        error = float(np.std(found, ddof=1) / len(found) ** 0.5) if len(found) > 1 else None
        rows.append(
            {"scene": scene, "learner": learner, "mean": np.mean(found), "standard_error": error}
        )
        shown = "" if error is None else f" ± {error:.1f}"
        print(f"{scene:56} {learner:24} {np.mean(found):5.1f}{shown}", flush=True)

    for scene in SCENES:
        if asked.only not in scene.title:
            continue
        for played, epsilon in SETTINGS:
            note(
                scene.title, f"{played}, ε = {epsilon}", regrets(scene, played, epsilon, asked.runs)
            )
        if "STREAMDP_PEERS" in os.environ and scene.shape == SHAPE and scene.slots < 1 << 20:
            for name, options in VOWPAL.items():
                note(str(scene), f"Vowpal Wabbit, {name}", by_vowpal(scene, options, 1))
    if asked.only in "of levels":
        for epsilon in ("1", "3/10"):
            for name, found in of_levels(epsilon, asked.runs):
                note("of levels", f"{name}, ε = {epsilon}", found)
    if asked.only in "choose":
        note("choose, in microseconds", "with a context", [choice_takes()])
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
