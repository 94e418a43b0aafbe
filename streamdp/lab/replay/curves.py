"""What a cell did on a log: losses over time, the actions in force, and the baselines.

Everything is exact: losses of the actions in force are sums of grid losses between cuts. *Slot t*
is the t-th slot of every key; with several keys a curve adds them up, and a key that has ended
keeps its last value. Regret is against each key's best fixed action up to that slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.grid import UNIT
from streamdp.core.schedule import Schedule
from streamdp.lab.common.answer import NOT_BOOKED, Answer, Charge, Trajectory
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import Cell
from streamdp.lab.play import charge_of
from streamdp.lab.replay.cuts import block_ends
from streamdp.lab.replay.grid import Played, play_grid
from streamdp.lab.replay.summing import Stretches, Summed

_VALUES = 1 << 22  # of sums that are handled together


@dataclass(frozen=True, slots=True)
class Baselines:
    """Baselines without randomness: the best fixed action and the uniform choice, by point."""

    points: Ints
    slots: Ints  # slots of all keys together at each point
    best: Floats  # the loss of the best fixed action of each key up to the point
    uniform: Floats  # the mean loss of all actions
    totals: Floats  # rows × K at the end, in losses

    @property
    def uniform_regret(self) -> Floats:
        """Expected regret of choosing uniformly."""
        return self.uniform - self.best


def baselines(summed: Summed, points: Ints) -> Baselines:
    """The baselines of a log at the report's points."""
    K = len(summed.actions)
    best, uniform, slots = (np.zeros(len(points)) for _ in range(3))
    totals = np.empty((len(summed.rows), K))
    for row, last in enumerate(summed.slots.tolist()):
        cuts = np.minimum(points, last)
        seen, where = np.unique(cuts, return_inverse=True)
        sums = summed.sums.at(summed.sums.places(np.full(len(seen), row), seen)) / UNIT
        best += sums.min(axis=1)[where]
        uniform += sums.mean(axis=1)[where]
        slots += cuts
        totals[row] = sums[-1]
    return Baselines(points, slots.astype(np.int64), best, uniform, totals)


def answers(summed: Summed, cells: Sequence[Cell], bench: Bench, base: Baselines) -> list[Answer]:
    """What every cell did that selects at the ends of blocks."""
    books = [_Book(summed, base, len(bench.seeds)) for _ in cells]
    intervals: dict[tuple[Schedule, int], list[_Intervals]] = {}
    for played in play_grid(summed, cells, bench):
        schedule = cells[played.cell].learner.schedule
        name = (schedule, int(played.part.keys[0]))
        if name not in intervals:
            if len(intervals) > 16:
                intervals.clear()
            intervals[name] = _intervals(summed, base, schedule, played.part.keys)
        books[played.cell].enter(played, intervals[name])
    return [book.close(cell, summed.slots) for book, cell in zip(books, cells, strict=True)]


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Stretches of slots within one block and between two points of the report."""

    row: Ints  # index in the part
    block: Ints
    point: Ints  # index of the point
    length: Ints
    losses: Ints  # × K
    best: Ints  # the row's best action at the end


def _intervals(summed: Summed, base: Baselines, schedule: Schedule, rows: Ints) -> list[_Intervals]:
    """The intervals of some rows, in pieces that fit in memory."""
    last = summed.slots[rows]
    first = np.ones_like(last)
    at, cuts = block_ends(schedule, first, last)
    many = np.searchsorted(base.points, last, side="right")
    of_points = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
    at = np.concatenate([at, np.repeat(np.arange(len(rows)), many)])
    cuts = np.concatenate([cuts, base.points[of_points]])
    layout = Stretches.of_cuts(at, cuts, first=first, last=last)
    best = base.totals[rows].argmin(axis=1)
    pieces, step = [], max(1, _VALUES // len(summed.actions))
    for low in range(0, len(layout.cut), step):
        part = slice(low, low + step)
        of, cut, length = layout.of[part], layout.cut[part], layout.length[part]
        ends = summed.sums.at(summed.sums.places(rows[of], cut))
        losses = ends - summed.sums.at(summed.sums.places(rows[of], cut - length))
        point = np.searchsorted(base.points, cut)
        pieces.append(_Intervals(of, schedule.blocks_of(cut), point, length, losses, best[of]))
    return pieces


class _Book:
    """Adds up what one cell played."""

    __slots__ = ("_base", "_by_row", "_leading", "_losses", "_timeline", "_totals")

    def __init__(self, summed: Summed, base: Baselines, seeds: int) -> None:
        self._base = base
        self._losses = np.zeros((len(base.points), seeds), dtype=np.int64)
        self._leading = np.zeros(len(base.points), dtype=np.int64)
        self._by_row = np.zeros((len(summed.rows), seeds), dtype=np.int64)
        longest = int(summed.slots.argmax())
        self._timeline: dict[int, NDArray[np.int32]] = {}
        self._totals = longest

    def enter(self, played: Played, intervals: Sequence[_Intervals]) -> None:
        """The actions of one part."""
        part = played.part
        seeds = slice(part.seeds.start, part.seeds.stop)
        for piece in intervals:
            actions = played.actions[piece.block, piece.row]
            losses = np.take_along_axis(piece.losses, actions, axis=1)
            leads = (actions == piece.best[:, None]).sum(axis=1) * piece.length
            _add_by(self._losses[:, seeds], piece.point, losses)
            _add_by(self._by_row[:, seeds], part.keys[piece.row], losses)
            np.add.at(self._leading, piece.point, leads)
        where = np.flatnonzero(part.keys == self._totals)
        if len(where):
            self._timeline[part.seeds.start] = played.actions[:, where[0]]

    def close(self, cell: Cell, slots: Ints) -> Answer:
        """The answer, of keys with these numbers of slots."""
        timeline = [self._timeline[first] for first in sorted(self._timeline)]
        return answer_of(
            cell,
            self._base,
            self._losses,
            self._leading,
            self._by_row,
            in_force=np.concatenate(timeline, axis=1),
            charge=NOT_BOOKED if cell.learner.charge is None else charge_of(cell.learner, slots),
        )


def answer_of(
    cell: Cell,
    base: Baselines,
    losses: Ints,  # points × seeds: since the point before
    leading: Ints,  # points: slots with the best action in force, under all seeds
    by_row: Ints,  # rows × seeds
    *,
    in_force: NDArray[np.int32] | None = None,
    charge: Charge = NOT_BOOKED,
) -> Answer:
    """What a cell did, from the losses of the actions that it had in force."""
    seeds = losses.shape[1]
    regret = (np.cumsum(losses, axis=0) / UNIT - base.best[:, None]).T
    slots = np.diff(base.slots, prepend=0) * seeds
    return Answer(
        cell=cell,
        runs=seeds,
        regret=np.asarray(regret[:, -1]),
        course=Trajectory.of_runs(base.points, regret),
        best=leading / np.maximum(slots, 1),
        charge=charge,
        by_key=(by_row / UNIT - base.totals.min(axis=1)[:, None]).mean(axis=1),
        in_force=in_force,
    )


def _add_by(totals: Ints, places: Ints, values: Ints) -> None:
    """Add rows of values at their places; faster if equal places are neighbours."""
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    starts = np.flatnonzero(np.diff(sorted_places, prepend=-1))
    totals[sorted_places[starts]] += np.add.reduceat(values[order], starts, axis=0)
