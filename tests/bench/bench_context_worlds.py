"""Whether contexts are never much worse than none: regret beside the best of three others.

    python tests/bench/bench_context_worlds.py [--runs N] [--only TEXT] [--learners A,B]
                                               [--json FILE]

Regret of the default `policy_contexts` in percent of uniform play's, beside that of learners
without contexts and of those that 0.1.0 had: each field alone (`none`) and the whole table from the
first event on (`all`). What these three lose stands in `context_worlds.json`: mean and standard
error of 12 runs, played by this file with the code of commit 7b9dc92c; and what the default lost
when docs/contexts.md was written. All learners play in the same worlds.

Fields of 8, 3, 4 and 6 levels (576 cells), or of 3 and 4; the n-th level is 1/n as frequent as the
first. Click rates are .03, and .05 of the best action, where a world does not say otherwise.
`CHOSEN_BY`: the worlds in which ways to choose the next table were compared. `UNSEEN`: worlds that
were made afterwards, by which nothing was chosen.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from streamdp.core.arrays import Columns, Ints
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.evidence import InForce
from streamdp.core.grid import NULL, UNIT
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.lab.context_worlds import TableShows, shares_of
from streamdp.lab.play import NOBODY, RunBits, play, slots_of

Floats = NDArray[np.float64]
Shape = tuple[int, ...]

OTHERS = ("no contexts", "none", "all")
BASE = Path(__file__).with_name("context_worlds.json")
BIG, SMALL = (8, 3, 4, 6), (3, 4)
DAY = 1 << 20


# -- worlds --------------------------------------------------------------------------------------


class World(NamedTuple):
    """Click rates of cells and actions, which may change, and how often each cell occurs."""

    rates: Sequence[Floats]  # of equal parts of the events: cells × actions
    shares: Floats


def best_by(shape: Shape, fields: Sequence[int], actions: int, rng: Generator) -> Floats:
    """1 for the best action of each cell, which depends on some of the fields."""
    kept = [size if field in fields else 1 for field, size in enumerate(shape)]
    best = np.broadcast_to(rng.integers(actions, size=kept), shape)
    return np.asarray(best[..., None] == np.arange(actions), dtype=np.float64)


def additive(shape: Shape, actions: int, rng: Generator) -> Floats:
    """Normal effects of all fields' levels, which add up to a standard deviation of .01."""
    effects = np.zeros((*shape, actions))
    for field, size in enumerate(shape):
        kept = [1] * len(shape)
        kept[field] = size
        effects += rng.normal(0, 1, (*kept, actions))
    return np.asarray(0.03 + 0.01 / np.sqrt(len(shape)) * effects)


def rare(shape: Shape, actions: int, rng: Generator) -> Floats:
    """One action is best, but another at the rarest level of the first field."""
    best = best_by(shape, [], actions, rng)
    best[-1] = np.roll(best[(0,) * len(shape)], 1)
    return np.asarray(0.03 + 0.02 * best)


CHOSEN_BY: Mapping[str, Callable[[Shape, int, Generator], Floats]] = {
    "nothing": lambda shape, actions, rng: 0.03 + 0.02 * best_by(shape, [], actions, rng),
    "field": lambda shape, actions, rng: 0.03 + 0.02 * best_by(shape, [0], actions, rng),
    "additive": additive,
    "pair": lambda shape, actions, rng: 0.03 + 0.02 * best_by(shape, [0, 1], actions, rng),
    "three": lambda shape, actions, rng: 0.03 + 0.06 * best_by(shape, [], actions, rng),
    "rare": rare,
}


def one_cell(shape: Shape, actions: int, rng: Generator) -> World:
    """One action is best everywhere but in the most frequent cell."""
    best = best_by(shape, [], actions, rng)
    first = (0,) * len(shape)
    best[first] = np.roll(best[first], 1)
    return World([0.03 + 0.02 * best], shares_of(shape))


def unequal_pair(shape: Shape, actions: int, rng: Generator) -> World:
    """The first field decides at half of the last one's levels, which one action wins elsewhere."""
    by_first, everywhere = best_by(shape, [0], actions, rng), best_by(shape, [], actions, rng)
    of_last = rng.permutation(np.arange(shape[-1]) % 2 == 0)[:, None]
    return World([0.03 + 0.02 * np.where(of_last, by_first, everywhere)], shares_of(shape))


def often(shape: Shape, actions: int, rng: Generator) -> World:
    """Every fifth is clicked, and .05 more of the best action, by the second field."""
    return World([0.2 + 0.05 * best_by(shape, [1], actions, rng)], shares_of(shape))


def skewed(shape: Shape, actions: int, rng: Generator) -> World:
    """Nine of ten are at the first level of the last field, which decides."""
    of_last = np.full(shape[-1], 0.1 / (shape[-1] - 1))
    of_last[0] = 0.9
    shares = np.multiply.outer(shares_of(shape[:-1]), of_last).reshape(-1)
    return World([0.03 + 0.02 * best_by(shape, [len(shape) - 1], actions, rng)], shares)


def last_field(shape: Shape, actions: int, rng: Generator) -> World:
    """The last field decides."""
    by_last = best_by(shape, [len(shape) - 1], actions, rng)
    return World([0.03 + 0.02 * by_last], shares_of(shape))


def changing(shape: Shape, actions: int, rng: Generator) -> World:
    """The second field decides, and half way everything is drawn anew."""
    rates = [0.03 + 0.02 * best_by(shape, [1], actions, rng) for _ in range(2)]
    return World(rates, shares_of(shape))


UNSEEN: Mapping[str, tuple[int, Callable[[Shape, int, Generator], World]]] = {
    "one cell": (4, one_cell),
    "unequal pair": (4, unequal_pair),
    "eight actions": (8, last_field),
    "every fifth": (4, often),
    "skewed": (4, skewed),
    "changing": (4, changing),
}
"""The number of actions, and the world."""


@dataclass(frozen=True)
class Setting:
    """A world, and who plays how long in it."""

    world: str
    shape: Shape
    actions: int
    epsilon: str
    played: str
    events: int

    def __str__(self) -> str:
        """As `--only` finds it."""
        shape = "x".join(map(str, self.shape))
        return (
            f"{self.world}, {shape} x {self.actions}, ε = {self.epsilon}, {self.played},"
            f" {self.events}"
        )

    def drawn(self, seed: int) -> World:
        """The world of a run."""
        number = [seed, zlib.crc32(self.world.encode()), self.actions, len(self.shape)]
        rng = np.random.default_rng(number)
        if self.world in CHOSEN_BY:
            rates = [CHOSEN_BY[self.world](self.shape, self.actions, rng)]
            world = World(rates, shares_of(self.shape))
        else:
            world = UNSEEN[self.world][1](self.shape, self.actions, rng)
        wide = (*self.shape, self.actions)
        cells = [np.broadcast_to(of, wide).reshape(-1, self.actions) for of in world.rates]
        low = 0.002 if self.world in CHOSEN_BY else 0.0
        return World([np.clip(of, low, 1.0) for of in cells], world.shares)


def settings() -> Iterator[Setting]:
    """The 84 of `CHOSEN_BY`, then those of `UNSEEN`."""
    for events in (5_000, 50_000, 100_000, 200_000, DAY):
        for world in CHOSEN_BY:
            yield Setting(world, BIG, 4, "1", "header", events)
    for events in (5_000, 50_000):
        for world in CHOSEN_BY:
            yield Setting(world, BIG, 20, "1", "header", events)
            yield Setting(world, SMALL, 4, "1", "header", events)
            yield Setting(world, BIG, 4, "1", "value", events)
            yield Setting(world, BIG, 4, "3/10", "header", events)
    for world in CHOSEN_BY:
        yield Setting(world, BIG, 4, "1", "value", DAY)
    for world, (actions, _) in UNSEEN.items():
        for events in (5_000, 50_000, 200_000, DAY):
            yield Setting(world, BIG, actions, "1", "header", events)


# -- playing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phases(TableShows):
    """Events whose rates change at equal parts of the horizon, wherever a block is then."""

    phases: Floats  # parts × runs × cells × actions

    def parts(self, block: int) -> Iterator[tuple[Floats, int]]:
        """The rates of each part that a block has slots in, and how many."""
        slots = slots_of(self.learner.schedule, block, self.horizon)
        for number, rates in enumerate(self.phases):
            begin, end = (self.horizon * at // len(self.phases) for at in (number, number + 1))
            many = min(slots.stop, end) - max(slots.start, begin)
            if many > 0:
                yield rates, many

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """Draw the events of a block."""
        if self.learner.schedule.stop(block) - 1 > self.horizon:
            return NOBODY
        policies = self.policies(in_force)
        policies = policies / policies.sum(axis=2, keepdims=True)
        gains, shown = np.zeros((2, *policies.shape), dtype=np.int64)
        for rates, many in self.parts(block):
            events = self.generator.multinomial(many, self.shares, size=len(rates))
            shows = self.generator.multinomial(events, policies)
            gains += self.generator.binomial(shows, rates) * UNIT - shows * NULL
            shown += shows
        if len(self.learner.actions) == self.rates.shape[2]:
            gains, shown = gains.sum(axis=1), shown.sum(axis=1)
        of_rows = (of.reshape(len(rows), -1) for of in (gains, shown))
        return rows, self.learner.added(*of_rows)


def learner_of(name: str, of: Setting) -> PolicyLearner:
    """`default`, `no contexts`, or what `interactions` says."""
    actions = tuple("abcdefghijklmnopqrstuvwxyz"[: of.actions])
    options = {"epsilon": of.epsilon, "played": of.played}
    if name == "no contexts":
        return FEEDBACK_RECIPES["policy_following"](actions=actions, **options)
    fields = Contexts.read({f"f{n}": list(map(str, range(1, k))) for n, k in enumerate(of.shape)})
    if name != "default":
        options["interactions"] = name
    made = FEEDBACK_RECIPES["policy_contexts"]
    return made(actions=fields.arms(actions), context=fields, **options)


def regrets(name: str, of: Setting, runs: int) -> list[float]:
    """Of some runs, in percent of uniform play's."""
    learner, worlds = learner_of(name, of), [of.drawn(seed) for seed in range(runs)]
    phases = np.array([world.rates for world in worlds]).swapaxes(0, 1)
    shares = worlds[0].shares
    generator = np.random.default_rng((0, 7))
    shows = Phases(phases[0], shares, learner, generator, of.events, phases)
    lost, uniform = np.zeros((2, runs))
    for step in play(learner, runs, shows, RunBits.of(1, range(runs))):
        for rates, many in shows.parts(step.block):
            gaps = rates.max(axis=2, keepdims=True) - rates
            lost += many * ((shows.policies(step.in_force) * gaps).sum(axis=2) @ shares)
            uniform += many * (gaps.mean(axis=2) @ shares)
    return list((100 * lost / uniform).tolist())


def main() -> None:
    """Print what is lost in each setting, beside the least of the others, and the mean ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--only", default="", help="settings whose name holds this text")
    parser.add_argument("--learners", default="default", help=f"default, {', '.join(OTHERS)}")
    parser.add_argument("--json", type=Path, help="what others lose; is added to")
    asked = parser.parse_args()
    base = json.loads(BASE.read_text()) if BASE.exists() else {}
    found = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    ratios: dict[str, list[float]] = {}
    for setting in settings():
        if asked.only not in str(setting):
            continue
        for name in asked.learners.split(","):
            of_runs = regrets(name, setting, asked.runs)
            mean, error = np.mean(of_runs), np.std(of_runs, ddof=1) / asked.runs**0.5
            others = base.get(str(setting), {})
            least = min((others[of][0] for of in OTHERS if of in others), default=float("nan"))
            ratios.setdefault(name, []).append(float(mean / least))
            print(
                f"{setting!s:58} {name:12} {mean:5.1f} ± {error:.1f}"
                f"  {mean / least:4.2f} × {least:5.1f}",
                flush=True,
            )
            found.setdefault(str(setting), {})[name] = [
                round(float(mean), 2),
                round(float(error), 2),
            ]
            if asked.json:
                lines = (
                    f" {json.dumps(key, ensure_ascii=False)}: {json.dumps(of)}"
                    for key, of in found.items()
                )
                asked.json.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for name, of_settings in ratios.items():
        mean = np.exp(np.mean(np.log(of_settings)))
        print(f"{name}: {mean:.2f} × in the geometric mean, at most {max(of_settings):.2f} ×")


if __name__ == "__main__":
    main()
