"""The slots at which the cumulative sums of a log are needed: the union of all cells' cuts.

A block learner looks only at sums over windows, so a whole grid needs of a log only its cumulative
sums after certain slots of each key: where a block of some schedule ends, where a random prefix
window ends, and where the report has a point. These are known before the losses are read: blocks
follow from slot numbers, and windows are drawn from the seed's bits (purpose WINDOW, index = block)
as the engine draws them when a block begins.

"After slot t" is the cut t; the cut 0 is the empty sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.events import Key
from streamdp.core.kinds.losses import prefixes
from streamdp.core.randomness import Purpose, SeededRandomness
from streamdp.core.schedule import Schedule

POINTS_AN_OCTAVE = 16
EVEN_POINTS = 200
EVERY_SEED = slice(None)


@dataclass(frozen=True, slots=True)
class Bench:
    """The sources of randomness: seeds, and names that address their bits as in a live stream."""

    seeds: tuple[int, ...]
    stream: str = "replay"
    epoch: int = 1

    def randomness(self) -> list[SeededRandomness]:
        """One source for each seed."""
        return [SeededRandomness(seed) for seed in self.seeds]

    def windows(self, schedule: Schedule, tags: NDArray[np.uint8], blocks: Ints) -> Ints:
        """The prefix window of each block of a key under each seed, by the tags of keys × seeds."""
        lengths = schedule.lengths(blocks)
        drawn = [
            prefixes(lengths, source.bits(self.stream, Purpose.WINDOW, tags[:, seed], blocks))
            for seed, source in enumerate(self.randomness())
        ]
        return np.stack(drawn, axis=1)


class Rows:
    """The learners of a log: one for each (partition, key), in the order in which they appear."""

    __slots__ = ("_bench", "_places", "_sources", "_tags", "keys", "partitions")

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._places: dict[tuple[int, Key], int] = {}
        self._sources = bench.randomness()
        self._tags = np.empty((1, len(bench.seeds), 16), dtype=np.uint8)
        self.keys: list[Key] = []
        self.partitions: list[int] = []

    def __len__(self) -> int:
        """The number of learners."""
        return len(self.keys)

    def find(self, keys: Sequence[tuple[int, Key]], born: Ints) -> Ints:
        """The row of each key of a partition; a new key is born at its offset."""
        rows = np.empty(len(keys), dtype=np.int64)
        for at, key in enumerate(keys):
            row = self._places.get(key)
            rows[at] = self._add(*key, int(born[at])) if row is None else row
        return rows

    def _add(self, partition: int, key: Key, born: int) -> int:
        row = len(self.keys)
        self._places[partition, key] = row
        self.keys.append(key)
        self.partitions.append(partition)
        bench = self._bench
        tags = b"".join(
            source.tag(bench.stream, partition, key, bench.epoch, born) for source in self._sources
        )
        if row == len(self._tags):
            self._tags = np.concatenate([self._tags, np.empty_like(self._tags)])
        self._tags[row] = np.frombuffer(tags, dtype=np.uint8).reshape(-1, 16)
        return row

    def tags(self, rows: Ints, *, seed: int | slice = EVERY_SEED) -> NDArray[np.uint8]:
        """The tags that address the bits of some rows under the seed at this place, or under all.

        With all seeds: rows × seeds × 16 bytes.
        """
        tags: NDArray[np.uint8] = self._tags[rows, seed]
        return tags

    def windows(self, schedule: Schedule, rows: Ints, blocks: Ints) -> Ints:
        """The prefix window of each (row, block) under each seed: pairs × seeds."""
        return self._bench.windows(schedule, self.tags(rows), blocks)


@dataclass(frozen=True, slots=True)
class CutPlan:
    """What cuts a log: schedules, those with prefix windows, and the report's points."""

    whole: tuple[Schedule, ...]
    prefix: tuple[Schedule, ...]
    points: Ints

    def cuts(
        self, bench: Bench, tags: NDArray[np.uint8], first: Ints, last: Ints
    ) -> tuple[Ints, Ints]:
        """The cuts in [first, last] of each of some keys: key and slot."""
        pairs = [_between(self.points, first, last)]
        pairs += [block_ends(schedule, first, last) for schedule in self.whole]
        for schedule in self.prefix:
            begin = schedule.blocks_of(first)
            at, blocks = _spread(begin, schedule.blocks_of(last) + 1 - begin)
            windows = bench.windows(schedule, tags[at], blocks)
            ends = schedule.starts(blocks)[:, None] - 1 + windows
            inside = (ends >= first[at][:, None]) & (ends <= last[at][:, None])
            pairs.append((at[np.nonzero(inside)[0]], ends[inside]))
        keys, cuts = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
        return keys, cuts


def block_ends(schedule: Schedule, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The last slots of blocks that lie in [first, last] of each row."""
    begin = schedule.blocks_of(first)
    count = schedule.blocks_of(last + 1) - begin
    at, blocks = _spread(begin, count)
    return at, schedule.stops(blocks) - 1


def report_points(slots: int) -> Ints:
    """The slots at which a report has points: nearly even on logarithmic and linear axes.

    >>> report_points(5).tolist()
    [1, 2, 3, 4, 5]
    """
    steps = int(np.ceil(np.log2(max(2, slots)) * POINTS_AN_OCTAVE)) + 1
    growing = np.floor(2 ** (np.arange(steps) / POINTS_AN_OCTAVE)).astype(np.int64)
    even = np.linspace(1, slots, min(slots, EVEN_POINTS)).astype(np.int64)
    points = np.unique(np.concatenate([growing, even, [slots]]))
    return np.asarray(points[points <= slots], dtype=np.int64)


def _between(points: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    begin = np.searchsorted(points, first)
    at, which = _spread(begin, np.searchsorted(points, last, side="right") - begin)
    return at, points[which]


def _spread(begin: Ints, count: Ints) -> tuple[Ints, Ints]:
    """The numbers begin, begin + 1, … for each place, and the place of each number."""
    at = np.repeat(np.arange(len(begin)), count)
    return at, np.arange(len(at)) - np.repeat(np.cumsum(count) - count - begin, count)
