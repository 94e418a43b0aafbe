"""Cells whose learners have a crowd: the prior of a draw depends on all keys before it.

The waves of `grid` treat each key alone, so these cells are played by the shipped engine itself:
all keys of a partition in the order of the log, each seed on its own. The releases are those of the
live service under the same seed. One reading of the log serves as many seeds as fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.engine import Engine
from streamdp.core.engine.machine import MOST_ROWS
from streamdp.core.events import OPENING, LossBatch, Releases
from streamdp.core.randomness import SeededRandomness
from streamdp.replay.cells import Cell
from streamdp.replay.cuts import Bench
from streamdp.replay.grid import GridPart, Played, blank
from streamdp.replay.log import Log
from streamdp.replay.onepass import Progress, Summed

Actions = NDArray[np.int32]

_BYTES = 1 << 28  # of the rows of all engines that work together
_A_ROW = 512  # bytes beside the sums, by far


def play_crowds(
    log: Log,
    cells: Sequence[Cell],
    summed: Summed,
    bench: Bench,
    *,
    progress: Progress | None = None,
) -> Iterator[Played]:
    """The actions of every cell, by some seeds at once."""
    rows, seeds = len(summed.rows), len(bench.seeds)
    together = max(1, _BYTES // max(1, rows * (8 * len(summed.actions) + _A_ROW)))
    done = 0
    for at, cell in enumerate(cells):
        for first in range(0, seeds, together):
            part = GridPart(np.arange(rows), range(first, min(first + together, seeds)))
            crowd = _Crowd(cell, part, summed, bench)
            for portion in log.portions():
                done += len(portion) * len(part.seeds)
                for seed in part.seeds:
                    crowd.take(portion.partition, seed, portion.batch)
                if progress is not None:
                    progress(done // seeds)
            yield Played(part, at, crowd.actions, crowd.closed)


class _Crowd:
    """One cell's engines, one for each partition and seed, and the actions they put in force."""

    def __init__(self, cell: Cell, part: GridPart, summed: Summed, bench: Bench) -> None:
        self._leader, self._bench, self._part = cell.leader, bench, part
        self.closed = cell.leader.schedule.blocks_of(summed.slots + 1)
        self.actions: Actions = blank(int(self.closed.max(initial=0)), part, cell)
        names = zip(summed.rows.partitions, summed.rows.keys, strict=True)
        self._places = {name: row for row, name in enumerate(names)}
        self._engines: dict[tuple[int, int], Engine] = {}

    def take(self, partition: int, seed: int, batch: LossBatch) -> None:
        """Some slots of a partition, in order."""
        if (partition, seed) not in self._engines:
            self._engines[partition, seed] = self._engine(partition, seed)
        releases = self._engines[partition, seed].apply_batch(batch)
        at = seed - self._part.seeds.start
        if len(releases):
            standing = releases.value if releases.in_force is None else releases.in_force
            opening = releases.kind == releases.kinds.index(OPENING)
            blocks = np.where(opening, 0, releases.block + 1)  # there are no estimates
            self.actions[blocks, self._rows(partition, releases), at] = standing
        for donated in releases.donated:
            self._keep(donated, self._rows(partition, donated), at)

    def _rows(self, partition: int, releases: Releases) -> Ints:
        return np.array([self._places[partition, key] for key in releases.keys], dtype=np.int64)

    def _keep(self, donated: Releases, rows: Ints, at: int) -> None:
        """After a donated block the action stays that was in force before it."""
        for block in np.unique(donated.block).tolist():
            ended = rows[donated.block == block]
            self.actions[block + 1, ended, at] = self.actions[block, ended, at]

    def _engine(self, partition: int, seed: int) -> Engine:
        return Engine(
            stream=self._bench.stream,
            partition=partition,
            learner=self._leader,
            budget=self._leader.charge,
            randomness=SeededRandomness(self._bench.seeds[seed]),
            epoch=self._bench.epoch,
            limit=MOST_ROWS,
        )
