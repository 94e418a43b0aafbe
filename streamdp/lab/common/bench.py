"""Seeds, and the keys of a log: they address bits as a live stream does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.events import Key
from streamdp.core.kinds.losses import prefixes
from streamdp.core.randomness import TAG_BYTES, Purpose, SeededRandomness, identity_of
from streamdp.core.schedule import Schedule
from streamdp.lab.common.mapped import grown, let_go


@dataclass(frozen=True, slots=True)
class Bench:
    """The sources of randomness: seeds, and names that address their bits as in a live stream."""

    seeds: tuple[int, ...]
    stream: str = "replay"
    epoch: int = 1

    def randomness(self) -> list[SeededRandomness]:
        """One source for each seed."""
        return [SeededRandomness(seed) for seed in self.seeds]

    def tags(self, keys: Sequence[tuple[int, Key]], born: Ints) -> NDArray[np.uint8]:
        """What addresses the bits of keys of partitions under each seed: keys × seeds × 16."""
        identities = [
            identity_of(self.stream, partition, key, self.epoch, first)
            for (partition, key), first in zip(keys, born.tolist(), strict=True)
        ]
        sources = self.randomness()
        tags = b"".join(source.tag_of(of) for of in identities for source in sources)
        return np.frombuffer(tags, np.uint8).reshape(-1, len(sources), TAG_BYTES)

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

    __slots__ = ("_bench", "_places", "every_tag")

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._places: dict[tuple[int, Key], int] = {}
        # of all rows, and room for more: mapped where they are many
        self.every_tag: NDArray[np.uint8] = np.empty(
            (1, len(bench.seeds), TAG_BYTES), dtype=np.uint8
        )

    def __len__(self) -> int:
        """The number of learners."""
        return len(self._places)

    @property
    def keys(self) -> list[tuple[int, Key]]:
        """The partition and key of each row."""
        return list(self._places)

    def find(self, keys: Sequence[tuple[int, Key]], born: Ints) -> Ints:
        """The row of each of some different keys of partitions; a new one is born at its offset."""
        known, places = len(self), self._places
        rows = np.array([places.setdefault(key, len(places)) for key in keys], dtype=np.int64)
        new = np.flatnonzero(rows >= known)
        self.every_tag = grown(self.every_tag, len(places))
        self.every_tag[rows[new]] = self._bench.tags([keys[at] for at in new.tolist()], born[new])
        let_go(self.every_tag)
        return rows

    def tags(self, rows: Ints) -> NDArray[np.uint8]:
        """The tags that address the bits of some rows: rows × seeds × 16 bytes."""
        return np.asarray(self.every_tag[rows])
