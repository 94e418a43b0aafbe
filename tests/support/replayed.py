"""What the tests of replay share: a log in pieces, and what the live engine makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.events import Key, numbered
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import (
    Cell,
    cells_of,
    parse_candidates,
    parse_epsilons,
    redraws,
    schedules_of,
)
from streamdp.lab.logs.chunks import chunks
from streamdp.lab.logs.log import Columns, Log, LogPart, Portion, portions_of
from streamdp.lab.replay.cuts import CutPlan, report_points
from streamdp.lab.replay.grid import play_grid
from streamdp.lab.replay.summing import Summed, SummedKeys, sum_log

ACTIONS = ("a", "b", "c", "d")

FIRST = 40
"""Up to here every slot is a cut."""

EVERYONE = (
    "incumbent_leader",
    "remembering_leader:schedule=geometric 2 to 8",
    "prefix_softmax",
    "noisy_leader:noise=laplace",
    "noisy_leader:noise=exponential",
    "noisy_leader:noise=gumbel:resample=bernoulli",
    "naive_noisy_leader",
    "follow_the_leader",
    "incumbent_leader:schedule=capped 16",
    "prefix_softmax:schedule=restarting 100",
)


@dataclass(frozen=True, slots=True)
class Pieces:
    """A log in memory with keys and partitions, read in pieces of so many rows."""

    losses: NDArray[np.float32]
    keys: Sequence[Key] | None = None
    partitions: NDArray[np.int64] | None = None
    step: int = 577
    name: str = "pieces"
    actions: tuple[str, ...] = ACTIONS
    parts: tuple[LogPart, ...] = ()

    @property
    def slots(self) -> int:
        return len(self.losses)

    def portions(self) -> Iterator[Portion]:
        for first in range(0, len(self.losses), self.step):
            part = slice(first, min(first + self.step, len(self.losses)))
            columns = Columns(
                None if self.keys is None else numbered(self.keys[part]),
                None,
                None if self.partitions is None else self.partitions[part],
            )
            rows = range(first, part.stop)
            yield from portions_of({"losses": self.losses[part]}, columns, rows)


def made_up(slots: int, *, seed: int, keys: int = 1) -> Pieces:
    """Uniform losses with some bad rows, of one key or several."""
    generator = np.random.default_rng(seed)
    losses = generator.random((slots, len(ACTIONS))).astype(np.float32)
    losses[generator.random(slots) < 0.01] = np.nan
    losses[generator.random(slots) < 0.01, 1] = 3.0
    if keys == 1:
        return Pieces(losses)
    named: list[Key] = [None, *(b"k%d" % number for number in range(1, keys))]
    chosen = generator.zipf(1.5, slots) % keys
    partitions = np.sort(generator.integers(0, 2, slots))
    return Pieces(losses, [named[number] for number in chosen.tolist()], partitions)


def logged(log: Log) -> list[tuple[object, ...]]:
    """Every slot: losses as bits (null rows alike), key, offset, partition."""
    slots: list[tuple[object, ...]] = []
    for chunk in chunks(log.portions()):
        losses = np.clip(chunk.losses, 0, 1)
        null = chunk.nulls()
        for at, row in enumerate(losses):
            held = None if null[at] else row.tobytes()
            slots.append((held, chunk.keys[at], int(chunk.offsets[at]), chunk.partition))
    return slots


def cells(texts: Sequence[str] = EVERYONE, epsilons: str = "0.5,2") -> tuple[Cell, ...]:
    return cells_of(parse_candidates(texts), parse_epsilons(epsilons), actions=ACTIONS)


def plan_of(which: Sequence[Cell], slots: int) -> CutPlan:
    prefix = [cell for cell in which if cell.learner.window == "random_prefix"]
    points = np.union1d(report_points(slots), np.arange(1, FIRST))
    return CutPlan(schedules_of(which), schedules_of(prefix), points)


def redrawn(which: Sequence[Cell]) -> CutPlan | None:
    resampled = [cell for cell in which if redraws(cell)]
    return CutPlan(schedules_of(resampled), (), np.zeros(0, dtype=np.int64)) if resampled else None


def summed(log: Log, which: Sequence[Cell], bench: Bench) -> Summed:
    return sum_log(log, bench, plan_of(which, log.slots), resampling=redrawn(which))


def all_keys(sums: Summed) -> SummedKeys:
    """All keys as one share."""
    every, tags = range(len(sums.order)), sums.rows.tags(sums.order)
    again = tuple(of.of(every) for of in sums.resampled)
    return SummedKeys(sums.slots[sums.order], tags, sums.sums.of(every), again)


Name = tuple[int, int, int, Key]  # cell, seed, partition, key


def replayed(log: Log, which: Sequence[Cell], bench: Bench) -> dict[Name, list[int]]:
    """The actions of every cell: the opening, then block by block."""
    sums = summed(log, which, bench)
    actions: dict[Name, list[int]] = {}
    for played in play_grid(all_keys(sums), which, bench):
        for place, row in enumerate(sums.order[played.part.keys].tolist()):
            blocks = int((played.actions[:, place, 0] >= 0).sum())
            for at, seed in enumerate(played.part.seeds):
                name = (
                    played.cell,
                    bench.seeds[seed],
                    *sums.rows.keys[row],
                )
                actions[name] = played.actions[:blocks, place, at].tolist()
    return actions


def lived(
    portions: Iterable[Portion], which: Sequence[Cell], bench: Bench
) -> dict[Name, list[int]]:
    """The same from live engines, one for each partition, cell and seed."""
    held = list(portions)
    actions: dict[Name, list[int]] = {}
    for at, cell in enumerate(which):
        for seed in bench.seeds:
            engines: Mapping[int, sd.Engine] = {
                number: sd.Engine(
                    stream=bench.stream,
                    partition=number,
                    learner=cell.learner,
                    budget=None if cell.learner.charge is None else "10",
                    randomness=sd.SeededRandomness(seed),
                    epoch=bench.epoch,
                )
                for number in {portion.partition for portion in held}
            }
            for portion in held:
                for release in engines[portion.partition].apply_batch(portion.batch):
                    in_force = actions.setdefault((at, seed, portion.partition, release.key), [])
                    in_force.append(release.standing)
    return actions
