"""The answers of a whole grid from the sums of one pass.

Cells are rows of selection waves: wave b selects at the end of block b for all keys and seeds at
once. If a learner's choice does not depend on the action in force, its waves need no order, so all
that fit in memory are one call. A cell costs O(blocks · K), whatever the number of slots.

Under a seed a cell makes the same releases, bit for bit, as the live engine makes of the same
records under ``SeededRandomness(seed)``: same sums, same bits, same code.
`tests/test_replay_live.py` tests this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import ACTION
from streamdp.core.schedule import Schedule
from streamdp.lab.replay.cells import Cell, redraws, schedules_of
from streamdp.lab.replay.cuts import Bench
from streamdp.lab.replay.draws import Dealer, SharedBits
from streamdp.lab.replay.store import CutSums
from streamdp.lab.replay.summing import Summed

Actions = NDArray[np.int32]

_WORDS = 1 << 22  # of bits that are held at once: 32 MB
_MOST_ACTIONS_HELD = 1 << 28  # blocks × seeds × keys of one part


@dataclass(frozen=True, slots=True)
class GridPart:
    """Keys and seeds that are played together."""

    rows: Ints  # the longest key first
    seeds: range

    def draws(self, pairs: Ints) -> Ints:
        """The numbers of the draws of some pairs."""
        return (pairs[:, None] * len(self.seeds) + np.arange(len(self.seeds))).reshape(-1)


@dataclass(frozen=True, slots=True)
class Played:
    """The actions in force of one cell on one part: [0] the openings, [b + 1] after block b."""

    part: GridPart
    cell: int
    actions: Actions  # (blocks + 1) × rows × seeds; −1 where a key has no such block
    closed: Ints  # the number of blocks that each row has ended


def play(summed: Summed, cells: Sequence[Cell], bench: Bench) -> Iterator[Played]:
    """The actions of every cell, part by part; no cell may be a running learner."""
    for part in parts(summed, bench):
        yield from _play_part(summed, cells, bench, part)


def holds(cell: Cell, summed: Summed, bench: Bench) -> bool:
    """Whether a cell's plays fit in memory, part by part."""
    rows, seeds = _part_size(summed, bench)
    blocks = cell.learner.schedule.block_of(summed.longest + 1) + 1
    return blocks * min(rows, len(summed.rows)) * seeds <= _MOST_ACTIONS_HELD


def _part_size(summed: Summed, bench: Bench) -> tuple[int, int]:
    """How many keys and how many seeds are played together."""
    seeds, actions = len(bench.seeds), len(summed.actions)
    together = max(1, min(seeds, _WORDS // actions))
    return max(1, _WORDS // (actions * together)), together


def parts(summed: Summed, bench: Bench) -> Iterator[GridPart]:
    """Keys and seeds in portions that fit in memory."""
    seeds = len(bench.seeds)
    many, together = _part_size(summed, bench)
    order = np.argsort(-summed.slots, kind="stable")
    for first in range(0, len(order), many):
        for seed in range(0, seeds, together):
            yield GridPart(order[first : first + many], range(seed, min(seed + together, seeds)))


@dataclass(frozen=True, slots=True)
class _Waves:
    """Which rows of a part end which blocks of a schedule: pairs (block, row), block by block."""

    schedule: Schedule
    counts: Ints  # how many rows end block b: the first rows of the part, which are the longest
    closed: Ints  # how many blocks each row ends

    @classmethod
    def of(cls, schedule: Schedule, slots: Ints) -> _Waves:
        closed = schedule.blocks_of(slots + 1)
        blocks = np.arange(int(closed[0]) if len(closed) else 0)
        return cls(schedule, np.searchsorted(-closed, -blocks, side="left"), closed)

    def __len__(self) -> int:
        return len(self.counts)


def _play_part(
    summed: Summed, cells: Sequence[Cell], bench: Bench, part: GridPart
) -> Iterator[Played]:
    slots, K = summed.slots[part.rows], len(summed.actions)
    dealer = Dealer(summed.rows, bench.randomness(), stream=bench.stream, seeds=part.seeds)
    waves = {schedule: _Waves.of(schedule, slots) for schedule in schedules_of(cells)}
    held = [blank(len(waves[cell.learner.schedule]), part, cell) for cell in cells]
    remembered = [
        {
            column.name: np.zeros((len(part.rows), len(part.seeds), *column.shape), column.dtype)
            for column in cell.learner.evidence.fields
        }
        for cell in cells
    ]
    openings = dealer.openings(part.rows, actions=K)
    for actions, public in zip(held, remembered, strict=True):
        actions[0] = public["action"][:] = openings
    longest = max((len(wave) for wave in waves.values()), default=0)
    widest = np.zeros(longest, dtype=np.int64)
    for wave in waves.values():
        widest[: len(wave)] = np.maximum(widest[: len(wave)], wave.counts)
    for low, high in _stretches(widest, limit=_WORDS // (K * len(part.seeds))):
        counts = widest[low:high]
        rows, blocks = _pairs(counts, low)
        bits = dealer.selections(part.rows[rows], blocks, actions=K)
        for group in _alike(cells):
            _Chunk(summed, part, waves[group[0][1].learner.schedule], low, high, counts).play(
                group, held, remembered, bits
            )
    for at, cell in enumerate(cells):
        yield Played(part, at, held[at], waves[cell.learner.schedule].closed)


class _Chunk:
    """The waves [low, high) of one schedule for cells that select from the same sums."""

    def __init__(
        self, summed: Summed, part: GridPart, waves: _Waves, low: int, high: int, widest: Ints
    ) -> None:
        self._summed, self._part, self._schedule = summed, part, waves.schedule
        self._low = low
        self._counts = waves.counts[low:high]
        self._rows, self._blocks = _pairs(self._counts, low)
        offsets = np.cumsum(widest) - widest  # where each wave's pairs are among the shared bits
        shared = offsets[: len(self._counts)][self._blocks - low] + self._rows
        self._draws = part.draws(shared)

    def play(
        self,
        group: Sequence[tuple[int, Cell]],
        held: Sequence[Actions],
        remembered: Sequence[dict[str, NDArray[Any]]],
        bits: SharedBits,
    ) -> None:
        """Select for some cells."""
        if not len(self._rows):
            return
        sums = self._sums(group[0][1])
        own = bits.pick(self._draws)
        for at, cell in group:
            if cell.learner.bonus or cell.learner.remembers:
                self._in_order(cell, held[at], remembered[at], sums, own)
                continue
            chosen = _drawn(cell, sums, np.zeros(len(sums), np.int64), own)
            held[at][self._blocks + 1, self._rows] = chosen.reshape(len(self._rows), -1)

    def _in_order(
        self,
        cell: Cell,
        actions: Actions,
        public: dict[str, NDArray[Any]],
        sums: Ints,
        bits: SharedBits,
    ) -> None:
        """Select wave after wave: a choice depends on the action in force and on the memory."""
        evidence, schedule = cell.learner.evidence, cell.learner.schedule
        seeds, begin = len(self._part.seeds), 0
        for block, count in enumerate(self._counts.tolist(), start=self._low):
            stop = begin + count * seeds
            before = {
                name: column[:count].reshape(count * seeds, *column.shape[2:])
                for name, column in public.items()
            }
            votes = _drawn(cell, sums[begin:stop], before["action"], bits.part(begin, stop))
            lengths = schedule.lengths(np.full(len(votes), block))
            for name, column in evidence.fold(before, votes, lengths).items():
                public[name][:count] = column.reshape(count, seeds, *column.shape[1:])
            actions[block + 1, :count] = public["action"][:count]
            begin = stop

    def _sums(self, cell: Cell) -> Ints:
        """The sums from which each draw selects: (pairs · seeds) × K."""
        rows = self._part.rows[self._rows]
        starts = self._schedule.starts(self._blocks) - 1
        stops = self._schedule.stops(self._blocks) - 1
        sources: Sequence[CutSums] = (self._summed.sums,)
        if redraws(cell):
            sources = [self._summed.resampled[seed] for seed in self._part.seeds]
        if cell.learner.window == "random_prefix":
            windows = self._summed.rows.windows(self._schedule, rows, self._blocks)
            stops = starts[:, None] + windows[:, self._part.seeds.start : self._part.seeds.stop]
        seeds = len(self._part.seeds)
        ends = np.broadcast_to(stops.reshape(len(rows), -1), (len(rows), seeds))
        if len(sources) == 1 and cell.learner.window == "whole":
            sums = _difference(sources[0], rows, starts, stops)
            return np.repeat(sums, seeds, axis=0)
        by_seed = [
            _difference(sources[seed % len(sources)], rows, starts, ends[:, seed])
            for seed in range(seeds)
        ]
        return np.stack(by_seed, axis=1).reshape(len(rows) * seeds, -1)


def _drawn(cell: Cell, sums: Ints, in_force: Ints, bits: SharedBits) -> Ints:
    """The votes that the learner draws from these sums while these actions are in force."""
    return cell.learner.draw(ACTION, {"sums": sums}, {"action": in_force}, lambda purpose: bits)


def _difference(sums: CutSums, rows: Ints, starts: Ints, stops: Ints) -> Ints:
    return sums.at(sums.places(rows, stops)) - sums.at(sums.places(rows, starts))


def blank(blocks: int, part: GridPart, cell: Cell) -> Actions:
    """An empty array for the actions that a cell puts in force."""
    shape = (blocks + 1, len(part.rows), len(part.seeds))
    if np.prod(shape) > _MOST_ACTIONS_HELD:
        raise InvalidConfig(
            f"{cell}",
            "too many blocks for so many seeds",
            expected=f"blocks × seeds ≤ {_MOST_ACTIONS_HELD}",
            got=f"{shape[0]} × {shape[2]}",
        )
    return np.full(shape, -1, dtype=np.int32)


def _alike(cells: Sequence[Cell]) -> list[list[tuple[int, Cell]]]:
    """Groups of cells that select from the same sums."""
    groups: dict[object, list[tuple[int, Cell]]] = defaultdict(list)
    for at, cell in enumerate(cells):
        leader = cell.learner
        groups[leader.schedule, leader.window, leader.resample].append((at, cell))
    return list(groups.values())


def _stretches(counts: Ints, *, limit: int) -> Iterator[tuple[int, int]]:
    """Runs of waves with at most `limit` pairs, and at least one wave."""
    low, pairs = 0, 0
    for wave, count in enumerate(counts.tolist()):
        if pairs + count > limit and wave > low:
            yield low, wave
            low, pairs = wave, 0
        pairs += count
    if len(counts) > low:
        yield low, len(counts)


def _pairs(counts: Ints, low: int) -> tuple[Ints, Ints]:
    """The rows and blocks of waves, wave by wave, by the number of rows in each."""
    blocks = np.repeat(np.arange(low, low + len(counts)), counts)
    rows = np.arange(len(blocks)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, blocks
