"""What adding an action costs a stream of many keys: carried over, begun anew, not changed at all.

    python tests/bench/bench_carrying.py [--keys N] [--next N] [--json FILE]

Every key has a best action of its own (mean loss .3, the others .5; Bernoulli). Once the stream has
learned for a while, an action is added, and the next events are told three ways, with the same
losses: nothing changed, the new epoch carries over, the new epoch begins anew. Regret is against
the key's best action. Readers hear of a release 1,000 events later. Events that the new action was
shown to are counted apart: that is its own exploration.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import streamdp as sd
from tests.support.batches import loss_batch
from tests.support.bequeathing import heritage_of

ACTIONS = ("a", "b", "c", "d")
GAP = 0.2
_AT_ONCE = 1_000


@dataclass(frozen=True)
class World:
    """Which key each event is of, and what each action is worth to it."""

    keys: int
    traffic: str  # "uniform", or "power law": the n-th key has 1/n of the first one's events
    seed: int = 0

    def events(self, count: int, *, part: int) -> NDArray[np.int64]:
        """The key of each event."""
        rng = np.random.default_rng([self.seed, part])
        if self.traffic == "uniform":
            return rng.integers(0, self.keys, count)
        reach = np.cumsum(1.0 / np.arange(1, self.keys + 1))
        keys: NDArray[np.int64] = np.searchsorted(reach, rng.random(count) * reach[-1])
        return keys

    @property
    def best(self) -> NDArray[np.int64]:
        """The best action of each key."""
        return np.random.default_rng([self.seed, 1 << 20]).integers(0, len(ACTIONS), self.keys)

    def losses(self, events: NDArray[np.int64], *, part: int) -> NDArray[np.float32]:
        """Of the actions and one more, for each event."""
        draws = np.random.default_rng([self.seed, part, 1]).random((len(events), len(ACTIONS) + 1))
        means = np.full(draws.shape, 0.5)
        means[np.arange(len(events)), self.best[events]] -= GAP
        return (draws < means).astype(np.float32)


def engine(actions: tuple[str, ...], *, epoch: int, **more: object) -> sd.Engine:
    """The default learner, seeded."""
    return sd.Engine(
        stream="home", partition=0, epoch=epoch, budget="1", limit=10_000_000,
        learner=sd.remembering_leader(actions=actions, epsilon="1"),
        randomness=sd.SeededRandomness(1), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def feed(machine: sd.Engine, world: World, events: NDArray[np.int64], losses: object) -> None:
    """Apply these events."""
    keys, index = np.unique(events, return_inverse=True)
    names = [b"%d" % key for key in keys.tolist()]
    offsets = np.arange(machine.position, machine.position + len(events))
    wide = np.asarray(losses)[:, : len(machine.learner.actions)]
    machine.apply_batch(loss_batch(names, index, np.ascontiguousarray(wide), offsets))


def learned(world: World, events: int) -> sd.Engine:
    """The stream once it has learned from so many events."""
    machine = engine(ACTIONS, epoch=1)
    for part, begin in enumerate(range(0, events, 250_000)):
        which = world.events(min(250_000, events - begin), part=part)
        feed(machine, world, which, world.losses(which, part=part))
    return machine


def in_force(machine: sd.Engine, events: NDArray[np.int64]) -> NDArray[np.int64]:
    """The action that each event's key has; -1 where it has no learner."""
    numbers = {name: at for at, name in enumerate(machine.learner.actions)}
    names = {key: machine.action(b"%d" % key) for key in np.unique(events).tolist()}
    action_of = {key: -1 if name is None else numbers[name] for key, name in names.items()}
    return np.array([action_of[key] for key in events.tolist()])


def regret(world: World, machine: sd.Engine, before: sd.Engine, count: int) -> tuple[float, int]:
    """Of the next events, and how many of them the new action was shown to, counted apart."""
    lost, new = 0.0, 0
    for part in range(count // _AT_ONCE):
        events = world.events(_AT_ONCE, part=10_000 + part)
        shown = in_force(machine, events)
        shown = np.where(shown < 0, in_force(before, events), shown)  # told by the epoch before
        explored = shown >= len(ACTIONS)
        new += int(explored.sum())
        lost += GAP * float(((shown != world.best[events]) & ~explored).sum())
        feed(machine, world, events, world.losses(events, part=10_000 + part))
    return lost, new


def compared(world: World, *, events: int, following: int) -> dict[str, float]:
    """Regret of the next events, each way, relative to not having changed anything."""
    more = (*ACTIONS, "new")
    ways = {"carried over": "carried", "begun anew": "anew", "unchanged": "same"}
    regrets: dict[str, float] = {}
    for name, way in ways.items():
        before = learned(world, events)
        machine = before
        if way != "same":
            now = engine(more, epoch=2)
            heritage = heritage_of(before, now.learner) if way == "carried" else {}
            machine = engine(more, epoch=2, heritage=heritage)
            machine.skip_to(before.position)
        regrets[name], shown = regret(world, machine, before, following)
        regrets[f"{name}: new action shown"] = shown
    return {
        "carried over": regrets["carried over"] / regrets["unchanged"],
        "begun anew": regrets["begun anew"] / regrets["unchanged"],
        "unchanged, a thousand events": 1000 * regrets["unchanged"] / following,
        "new action shown, carried": regrets["carried over: new action shown"] / following,
        "new action shown, anew": regrets["begun anew: new action shown"] / following,
    }


def main() -> None:
    """Print a table."""
    reading = argparse.ArgumentParser(description=__doc__)
    reading.add_argument("--keys", type=int, default=100_000)
    reading.add_argument("--events", type=int, default=15_000_000)
    reading.add_argument("--next", type=int, default=100_000)
    reading.add_argument("--json", type=Path)
    asked = reading.parse_args()
    tables = {
        traffic: compared(World(asked.keys, traffic), events=asked.events, following=asked.next)
        for traffic in ("uniform", "power law")
    }
    for traffic, figures in tables.items():
        print(traffic, ", ".join(f"{name}: {value:.3f}" for name, value in figures.items()))
    if asked.json is not None:
        asked.json.write_text(json.dumps(tables, indent=1))


if __name__ == "__main__":
    main()
