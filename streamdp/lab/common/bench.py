"""Seeds, and the keys of a log: they address bits as a live stream does."""

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
