"""The answers of a whole grid from the sums of one pass.

A cell is a kind that the player (`lab.play`) plays for all keys and seeds at once, filled with the
sums of the log's blocks. It costs O(blocks · K), whatever the number of slots. The cells of a part
go block by block side by side, so those that look at the same sums take them once.

Under a seed a cell makes the same releases, bit for bit, as the live engine makes of the same
records under ``SeededRandomness(seed)``: same sums, same bits, same code.
`tests/lab/test_replay_live.py` tests this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Columns, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.evidence import InForce
from streamdp.core.learners import Leader
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import Cell
from streamdp.lab.play import KeyBits, KeyPart, play, side_by_side
from streamdp.lab.replay.store import CutSums
from streamdp.lab.replay.summing import SummedKeys

Actions = NDArray[np.int32]

_MOST_ACTIONS_HELD = 1 << 28  # blocks × seeds × keys of one part


@dataclass(frozen=True, slots=True)
class Played:
    """The actions in force of one cell on one part: [0] the openings, [b + 1] after block b."""

    part: KeyPart
    cell: int
    actions: Actions  # (blocks + 1) × rows × seeds; −1 where a key has no such block


def play_grid(summed: SummedKeys, cells: Sequence[Cell], bench: Bench) -> Iterator[Played]:
    """The actions of every cell, part by part; no cell may be a running learner."""
    words = summed.sums.sums.shape[1]
    for part in KeyPart.all(summed.slots, len(bench.seeds), words=words):
        yield from _play_part(summed, cells, bench, part)


def _play_part(
    summed: SummedKeys, cells: Sequence[Cell], bench: Bench, part: KeyPart
) -> Iterator[Played]:
    bits, seeds = KeyBits(summed.tags[part.keys], bench, part), len(part.seeds)
    alike: dict[object, list[int]] = {}  # that look at the same sums
    for at, cell in enumerate(cells):
        leader = cell.learner
        alike.setdefault((leader.schedule, leader.window, leader.resample), []).append(at)
    held, playing = {}, {}
    for group in alike.values():
        fill = LogSums.of(cells[group[0]].learner, summed, bench, part)
        for at in group:
            held[at] = blank(int(fill.closed.max(initial=0)), part, cells[at])
            playing[at] = play(cells[at].learner, len(bits), fill, bits)
    which = list(playing)
    for place, step in side_by_side(playing.values()):
        in_force = step.in_force.reshape(seeds, -1)
        held[which[place]][step.block, : in_force.shape[1]] = in_force.T
    for at in range(len(cells)):
        yield Played(part, at, held[at])


@dataclass(slots=True)
class LogSums:
    """Fills the columns of learners that look at the same sums of a log."""

    leader: Leader
    summed: SummedKeys
    bench: Bench
    part: KeyPart
    closed: Ints  # how many blocks each key ends: the longest first
    newest: tuple[int, Ints, Columns] | None = None  # the block that was asked for last

    @classmethod
    def of(cls, leader: Leader, summed: SummedKeys, bench: Bench, part: KeyPart) -> LogSums:
        """Those of some keys under some seeds."""
        closed = leader.schedule.blocks_of(summed.slots[part.keys] + 1)
        return cls(leader, summed, bench, part, closed)

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """All seeds of a key end a block together."""
        if self.newest is None or self.newest[0] != block:
            keys, ended = self.part.ending(rows, self.closed, block)
            self.newest = block, ended, {"sums": self._sums(keys, np.full(len(keys), block))}
        return self.newest[1:]

    def _sums(self, rows: Ints, blocks: Ints) -> Ints:
        """The sums from which the keys select, seed by seed."""
        schedule, seeds = self.leader.schedule, self.part.seeds
        starts = schedule.starts(blocks) - 1
        if self.leader.window == "whole" and self.leader.resample == "none":
            sums = _difference(self.summed.sums, rows, starts, schedule.stops(blocks) - 1)
            return np.tile(sums, (len(seeds), 1))
        sources = [self.summed.sums for _ in seeds]
        if self.leader.resample != "none":
            sources = [self.summed.resampled[seed] for seed in seeds]
        stops = np.repeat(schedule.stops(blocks)[:, None] - 1, len(seeds), axis=1)
        if self.leader.window == "random_prefix":
            windows = self.bench.windows(schedule, self.summed.tags[rows], blocks)
            stops = starts[:, None] + windows[:, seeds.start : seeds.stop]
        of_seeds = zip(sources, stops.T, strict=True)
        return np.concatenate([_difference(sums, rows, starts, ends) for sums, ends in of_seeds])


def _difference(sums: CutSums, rows: Ints, starts: Ints, stops: Ints) -> Ints:
    return sums.upto(rows, stops) - sums.upto(rows, starts)


def blank(blocks: int, part: KeyPart, cell: Cell) -> Actions:
    """An empty array for the actions that a cell puts in force."""
    shape = (blocks + 1, len(part.keys), len(part.seeds))
    if np.prod(shape) > _MOST_ACTIONS_HELD:
        raise InvalidConfig(
            f"{cell}",
            "too many blocks for so many seeds",
            expected=f"blocks × seeds ≤ {_MOST_ACTIONS_HELD}",
            got=f"{shape[0]} × {shape[2]}",
        )
    return np.full(shape, -1, dtype=np.int32)
