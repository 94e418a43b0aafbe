"""What a cell did on a log: losses over time, the actions in force, and the baselines.

Everything is exact: losses of the actions in force are sums of grid losses between cuts. *Slot t*
is the t-th slot of every key; with several keys a curve adds them up, and a key that has ended
keeps its last value. Regret is against each key's best fixed action up to that slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.grid import UNIT
from streamdp.core.schedule import Schedule
from streamdp.lab.common.answer import NOT_BOOKED, Answer, Charge, Trajectory
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import Cell, schedules_of
from streamdp.lab.common.mapped import held, let_go
from streamdp.lab.play import charge_of
from streamdp.lab.replay.cuts import between, block_ends
from streamdp.lab.replay.grid import Played, play_grid
from streamdp.lab.replay.store import LaidSums, code
from streamdp.lab.replay.summing import Stretches, Summed, SummedKeys
from streamdp.lab.workers import IN_PROCESS, Workers

_VALUES = 1 << 22  # of sums that are handled together
_WORDS = 1 << 22  # of 8 bytes that the keys of a share take together, or one key


@dataclass(frozen=True, slots=True)
class Baselines:
    """Baselines without randomness: the best fixed action and the uniform choice, by point."""

    points: Ints
    slots: Ints  # slots of all keys together at each point
    best: Floats  # the loss of the best fixed action of each key up to the point
    uniform: Floats  # the mean loss of all actions

    @property
    def uniform_regret(self) -> Floats:
        """Expected regret of choosing uniformly."""
        return self.uniform - self.best


def answers(
    summed: Summed, cells: Sequence[Cell], bench: Bench, points: Ints, workers: Workers = IN_PROCESS
) -> tuple[Baselines, list[Answer]]:
    """The baselines, and what every cell did that selects at the ends of blocks.

    Shares of the keys are played by the workers, who find the mapped files of this process. What
    they say of several keys is whole numbers, so it adds up to the same whoever said it.
    """
    work = partial(_played, summed.sums, summed.resampled, cells, bench, points)
    seeds = len(bench.seeds)
    books = [_Book.of(points, seeds, held((len(summed.slots),), np.float64)) for _ in cells]
    added: Ints = np.zeros((3, len(points)), dtype=np.int64)
    every = list(_shares(summed, cells, seeds))
    for share, (of_points, parts) in zip(every, workers.map(work, every), strict=True):
        added += of_points
        for book, part in zip(books, parts, strict=True):
            book.add(part, share.places)
    slots, best, sums = added
    base = Baselines(points, slots, best / UNIT, sums / UNIT / len(summed.actions))
    return base, [
        answer_of(
            cell,
            base,
            book.losses,
            book.leading,
            book.by_key,
            in_force=np.concatenate(book.timeline, axis=1),
            charge=NOT_BOOKED
            if cell.learner.charge is None
            else charge_of(cell.learner, summed.slots),
        )
        for book, cell in zip(books, cells, strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Share:
    """Some keys that are played together."""

    places: range  # where their sums lie
    rows: Ints
    slots: Ints
    tags: NDArray[np.uint8]  # of all rows

    def __repr__(self) -> str:
        """Show how many keys, never a key."""
        return f"{len(self.rows)} keys"


def _shares(summed: Summed, cells: Sequence[Cell], seeds: int) -> Iterator[_Share]:
    """All keys, in shares of as many as fit in memory together."""
    slots, K = summed.slots[summed.order], len(summed.actions)
    blocks = sum(cell.learner.schedule.blocks_of(slots) + 1 for cell in cells)
    looked = 2 + len(summed.resampled) + len(schedules_of(cells))  # at sums, side by side
    taken = seeds * (2 + K + blocks // 2) + np.diff(summed.sums.ends) * (K + 1) * looked
    edges = np.flatnonzero(np.diff((np.cumsum(taken) - taken) // _WORDS, prepend=-1)).tolist()
    for begin, end in pairwise([*edges, len(slots)]):
        rows = summed.order[begin:end]
        yield _Share(range(begin, end), rows, slots[begin:end], summed.rows.every_tag)


def _played(
    sums: LaidSums,
    resampled: tuple[LaidSums, ...],
    cells: Sequence[Cell],
    bench: Bench,
    points: Ints,
    share: _Share,
) -> tuple[Ints, list[_Book]]:
    """Of some keys: slots, the best actions' and all actions' sums by point; and every cell."""
    tags, redrawn = np.asarray(share.tags[share.rows]), (of.of(share.places) for of in resampled)
    let_go(share.tags)
    summed = SummedKeys(share.slots, tags, sums.of(share.places), tuple(redrawn))
    of_points, totals = _baselines(summed, points)
    books = [_Book.of(points, len(bench.seeds), np.zeros(len(totals))) for _ in cells]
    intervals: dict[tuple[Schedule, int], list[_Intervals]] = {}
    for played in play_grid(summed, cells, bench):
        schedule = cells[played.cell].learner.schedule
        name = (schedule, int(played.part.keys[0]))
        if name not in intervals:
            intervals[name] = _intervals(summed, points, totals, schedule, played.part.keys)
        books[played.cell].enter(played, intervals[name], totals)
    return of_points, books


def _baselines(summed: SummedKeys, points: Ints) -> tuple[Ints, Ints]:
    """Slots, the best actions' and all actions' sums by point; each key's sums at its end."""
    last, every = summed.slots, np.arange(len(summed.slots))
    totals = summed.sums.upto(every, last)
    row, cuts = between(points, np.ones_like(last), last)
    added = np.zeros((len(points) + 1, 3), dtype=np.int64)
    _add_by(added, np.searchsorted(points, last, side="right"), _counted(last, totals))
    added = np.cumsum(added, axis=0)[:-1]  # a key that has ended keeps its last values
    _add_by(added, np.searchsorted(points, cuts), _counted(cuts, summed.sums.upto(row, cuts)))
    return added.T, totals


def _counted(slots: Ints, sums: Ints) -> Ints:
    """Slots, the best action's and all actions' sums."""
    return np.stack([slots, sums.min(axis=1), sums.sum(axis=1)], axis=1)


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Stretches of slots within one block and between two points of the report."""

    row: Ints  # index in the part
    block: Ints
    point: Ints  # index of the point
    length: Ints
    losses: Ints  # × K
    best: Ints  # the row's best action at the end


def _intervals(
    summed: SummedKeys, points: Ints, totals: Ints, schedule: Schedule, rows: Ints
) -> list[_Intervals]:
    """The intervals of some rows, in pieces that fit in memory."""
    last = summed.slots[rows]
    first = np.ones_like(last)
    cuts = block_ends(schedule, first, last), between(points, first, last)
    codes = np.concatenate([code(*pairs) for pairs in cuts])
    layout = Stretches.of_cuts(codes, first=first, last=last)
    best = totals[rows].argmin(axis=1)
    pieces, step = [], max(1, _VALUES // totals.shape[1])
    for low in range(0, len(layout.cut), step):
        part = slice(low, low + step)
        of, cut, length = layout.of[part], layout.cut[part], layout.length[part]
        ends = summed.sums.upto(rows[of], cut)
        losses = ends - summed.sums.upto(rows[of], cut - length)
        point = np.searchsorted(points, cut)
        pieces.append(_Intervals(of, schedule.blocks_of(cut), point, length, losses, best[of]))
    return pieces


@dataclass(slots=True)
class _Book:
    """Adds up what one cell played on some keys."""

    losses: Ints  # points × seeds: since the point before
    leading: Ints  # points: slots with the best action in force, under all seeds
    by_key: Floats  # the regret of each, the longest first, mean over seeds
    timeline: list[NDArray[np.int32]]  # of the longest key: (blocks + 1) × seeds, in parts

    @classmethod
    def of(cls, points: Ints, seeds: int, by_key: Floats) -> _Book:
        """Nothing yet."""
        losses, leading = np.zeros((len(points), seeds), np.int64), np.zeros_like(points)
        return cls(losses, leading, by_key, [])

    def enter(self, played: Played, intervals: Sequence[_Intervals], totals: Ints) -> None:
        """The actions of one part of keys with these sums at their ends."""
        part, lost = played.part, np.zeros(len(totals), dtype=np.int64)
        for piece in intervals:
            actions = played.actions[piece.block, piece.row]
            losses = np.take_along_axis(piece.losses, actions, axis=1)
            leads = (actions == piece.best[:, None]).sum(axis=1) * piece.length
            _add_by(self.losses[:, part.seeds.start : part.seeds.stop], piece.point, losses)
            _add_by(lost, part.keys[piece.row], losses.sum(axis=1))
            np.add.at(self.leading, piece.point, leads)
        regret = (lost - len(part.seeds) * totals.min(axis=1))[part.keys] / UNIT
        self.by_key[part.keys] += regret / self.losses.shape[1]
        self.timeline += [played.actions[:, place] for place in np.flatnonzero(part.keys == 0)]

    def add(self, part: _Book, places: range) -> None:
        """Add what was played on some keys, which lie at these places."""
        self.losses += part.losses
        self.leading += part.leading
        self.by_key[places.start : places.stop] = part.by_key
        let_go(self.by_key)
        self.timeline = self.timeline or part.timeline


def answer_of(
    cell: Cell,
    base: Baselines,
    losses: Ints,  # points × seeds: since the point before
    leading: Ints,  # points: slots with the best action in force, under all seeds
    by_key: Floats,
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
        by_key=by_key,
        in_force=in_force,
    )


def _add_by(totals: Ints, places: Ints, values: Ints) -> None:
    """Add rows of values at their places; faster if equal places are neighbours."""
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    starts = np.flatnonzero(np.diff(sorted_places, prepend=-1))
    totals[sorted_places[starts]] += np.add.reduceat(values[order], starts, axis=0)
