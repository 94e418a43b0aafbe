"""Follow-the-leader after every slot: the baseline that needs a pass of its own.

It looks at the sum of everything so far after every slot, so sums at a few cuts do not help it. Its
actions are the same for every seed, except where sums tie: there each seed's own bits decide, as
they do live.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.events import ACTION
from streamdp.core.grid import UNIT, quantise
from streamdp.lab.common.answer import Answer
from streamdp.lab.common.bench import Bench, Rows
from streamdp.lab.common.cells import Cell
from streamdp.lab.logs.log import Log, Portion
from streamdp.lab.play import KeyBits, KeyPart
from streamdp.lab.replay.curves import Baselines, answer_of
from streamdp.lab.replay.summing import Progress, Summed

_VALUES = 1 << 19  # losses looked at together


def follow(
    log: Log,
    cell: Cell,
    summed: Summed,
    bench: Bench,
    base: Baselines,
    *,
    progress: Progress | None = None,
) -> Answer:
    """What slot-by-slot follow-the-leader did, on a log that was summed before."""
    follower = _Follower(cell, summed, bench, base)
    done = 0
    for portion in log.portions():
        follower.take(portion)
        done += len(portion)
        if progress is not None:
            progress(done)
    return follower.close()


class _Follower:
    """Sums so far, the next slot, and the losses of the actions in force."""

    def __init__(self, cell: Cell, summed: Summed, bench: Bench, base: Baselines) -> None:
        self._base, self._cell = base, cell
        self._totals, self._order = summed.totals, summed.order
        self._rows = Rows(bench)  # filled again in the same order
        K, n, seeds = len(summed.actions), len(summed.rows), len(bench.seeds)
        self._sums = np.zeros((n, K), dtype=np.int64)
        self._slots = np.zeros(n, dtype=np.int64)
        part = KeyPart(np.arange(n), range(seeds))
        self._bits = KeyBits(summed.rows.tags(part.keys), bench, part)
        every = partial(self._bits, rows=np.arange(n * seeds), block=0)
        self._openings = cell.learner.opening(n * seeds, every).reshape(seeds, n)
        self._losses = np.zeros((len(base.points), seeds), dtype=np.int64)
        self._by_row = np.zeros(n, dtype=np.int64)  # under all seeds
        self._leading = np.zeros(len(base.points), dtype=np.int64)
        self._best = summed.totals.argmin(axis=1)
        self._seeds = seeds

    def take(self, portion: Portion) -> None:
        batch, grouped = portion.batch, portion.grouped
        losses, ends = batch.content["losses"], np.cumsum(grouped.counts)
        rows = self._rows.find(*portion.begun).tolist()
        for row, begin, end in zip(
            rows, (ends - grouped.counts).tolist(), ends.tolist(), strict=True
        ):
            for part in _pieces(begin, end, step=max(1, _VALUES // losses.shape[1])):
                grid, _ = quantise(losses[grouped.places(part)])
                self._add(row, grid)

    def _add(self, row: int, grid: Ints) -> None:
        """Some slots of one row, in order."""
        n = len(grid)
        before = np.cumsum(grid, axis=0) - grid + self._sums[row]
        slots = self._slots[row] + 1 + np.arange(n)
        tied = before == before.min(axis=1, keepdims=True)
        many = tied.sum(axis=1)
        points = np.searchsorted(self._base.points, slots)
        alone, open_ = np.flatnonzero(many == 1), np.flatnonzero(many > 1)
        chosen = tied[alone].argmax(axis=1)  # the action under every seed
        self._enter(row, points[alone], grid[alone, chosen][:, None], chosen[:, None])
        if len(open_):
            chosen = self._ties(row, slots[open_], before[open_])
            losses = np.take_along_axis(grid[open_], chosen, axis=1)
            self._enter(row, points[open_], losses, chosen)
        self._sums[row] += grid.sum(axis=0)
        self._slots[row] += n

    def _enter(self, row: int, points: Ints, losses: Ints, chosen: Ints) -> None:
        """Add slots to their points: a column for each seed, or one for all."""
        if not len(points):
            return
        seeds = self._seeds // losses.shape[1]
        leads = (chosen == self._best[row]).sum(axis=1) * seeds
        starts = np.flatnonzero(np.diff(points, prepend=-1))
        self._losses[points[starts]] += np.add.reduceat(losses, starts, axis=0)
        self._leading[points[starts]] += np.add.reduceat(leads, starts)
        self._by_row[row] += losses.sum() * seeds

    def _ties(self, row: int, slots: Ints, before: Ints) -> Ints:
        """The choices of each seed's bits at slots whose sums before tie: slots × seeds."""
        rows = np.repeat(row + len(self._slots) * np.arange(self._seeds), len(slots))
        blocks = np.tile(np.maximum(slots - 2, 0), self._seeds)
        chosen = self._cell.learner.draw(
            ACTION,
            {"sums": np.tile(before, (self._seeds, 1))},
            {"action": np.zeros(len(rows), dtype=np.int64)},
            lambda purpose: self._bits.at(purpose, rows, blocks),
        )
        by_slot = chosen.reshape(self._seeds, -1).T
        if slots[0] == 1:
            by_slot[0] = self._openings[:, row]
        return by_slot

    def close(self) -> Answer:
        by_row = (self._by_row - self._seeds * self._totals.min(axis=1)) / UNIT / self._seeds
        by_key = by_row[self._order]
        return answer_of(self._cell, self._base, self._losses, self._leading, by_key)


def _pieces(begin: int, end: int, *, step: int) -> Iterator[Ints]:
    for first in range(begin, end, step):
        yield np.arange(first, min(first + step, end))
