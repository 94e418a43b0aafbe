"""Computes what a learner's selections should read, from its definition, without the engine.

A block's selection reads the sum of the losses of its window's slots, and the action in force if
that has a bonus: one loop, slow and plain. The sampler takes its law from here, so that it compares
the engine with the learner's definition. Like the engine, a reader is a subject of the exact audit;
with broken readers tests show that the audit notices a slot that is read twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from streamdp.core.arrays import Bools, Ints
from streamdp.core.evidence import Standing
from streamdp.core.grid import UNIT, quantise
from streamdp.core.learners import Leader
from streamdp.core.schedule import Schedule
from streamdp.lab.audit.exposure import Design, Exposure
from streamdp.lab.audit.script import Seen


def window_of_block(schedule: Schedule, block: int, window: int) -> range:
    """The first `window` slots of a block."""
    return range(schedule.start(block), schedule.start(block) + window)


def exact_sum(losses: Ints) -> Ints:
    """The sum of rows."""
    total: Ints = losses.sum(axis=0)
    return total


def in_force(learner: Leader, votes: Ints) -> Ints:
    """The action in force in each block, from an opening and the votes of the blocks before it."""
    standing = Standing(votes[:, 0], np.zeros((len(votes), learner.memory.width), np.int64))
    by_block = [standing.in_force]
    for block in range(votes.shape[1] - 1):
        length = learner.schedule.stop(block) - learner.schedule.start(block)
        lengths = np.full(len(votes), length)
        standing = learner.memory.after(standing, votes[:, block + 1], lengths)
        by_block.append(standing.in_force)
    return np.stack(by_block, axis=1)


@dataclass(frozen=True, slots=True)
class WindowReader:
    """Reads the slots of a block's window by number and adds their losses."""

    learner: Leader
    reads: Callable[[Schedule, int, int], range] = window_of_block
    adds: Callable[[Ints], Ints] = exact_sum

    def __call__(self, design: Design) -> Exposure:
        """What the selections of every run of a design read.

        Sums are the same whatever is in force, so they are added once for all scripts.
        """
        seen = Seen.nothing(design.runs, design.blocks, len(self.learner.actions))
        seen.happened[:] = True
        grids = [quantise(stream)[0] for stream in design.losses()]
        sums = [
            self._sums(design, grid, windows, coins)
            for grid, windows, coins in product(grids, design.windows, design.coins)
        ]
        seen.sums[:] = np.repeat(np.array(sums), len(design.scripts), axis=0)
        if bonus := self.learner.bonus:
            standing = in_force(self.learner, design.scripts)
            shown = np.tile(standing[:, : design.blocks], (len(sums), 1))
            np.put_along_axis(seen.bonuses, shown[..., None], bonus.numerator, axis=2)
            seen.denominators[:] = [bonus.denominator] * design.blocks
        return Exposure(design, seen, np.zeros((design.runs, design.blocks, 0), dtype=np.int64))

    def _sums(self, design: Design, grid: Ints, windows: Ints, coins: Bools) -> list[Ints]:
        """What the selection of each block reads of these losses, windows and coins."""
        losses = np.where(coins, UNIT, 0) if self.learner.resample == "bernoulli" else grid
        losses = np.where(grid % UNIT, losses, grid)  # 0 and 1 stay what they are
        sums, schedule = [], self.learner.schedule
        for block, longer in enumerate(windows.tolist()):
            window = length = schedule.stop(block) - schedule.start(block)
            if self.learner.window == "random_prefix":
                window = length // 2 + 1 + longer
            slots = np.array(self.reads(schedule, block, window))
            sums.append(self.adds(losses[slots[slots >= 1] - 1]))
        return sums
