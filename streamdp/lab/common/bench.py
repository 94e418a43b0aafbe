"""Seeds, and the keys of a log: they address bits as a live stream does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.events import Key
from streamdp.core.kinds.losses import prefixes
from streamdp.core.randomness import TAG_BYTES, Purpose, SeededRandomness, identity_of
from streamdp.core.schedule import Schedule
from streamdp.lab.common.mapped import grown, let_go

_TAGS = 1 << 16  # that are made together


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


class KeyNumbers:
    """Numbers the keys of partitions in the order in which they appear, as `core.events` does."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: defaultdict[tuple[int, Key], int] = defaultdict(count().__next__)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._numbers)

    @property
    def keys(self) -> list[tuple[int, Key]]:
        """The partition and key of each number."""
        return list(self._numbers)

    def of(self, keys: Sequence[tuple[int, Key]]) -> tuple[Ints, Ints]:
        """The numbers of some different keys, and the places of those that are new."""
        known = len(self)
        numbers = np.fromiter(map(self._numbers.__getitem__, keys), np.int64, len(keys))
        return numbers, np.flatnonzero(numbers >= known)


class Rows:
    """The learners of a log: one for each (partition, key), in the order in which they appear."""

    __slots__ = ("_bench", "_numbers", "every_tag")

    def __init__(self, bench: Bench) -> None:
        self._bench, self._numbers = bench, KeyNumbers()
        # of all rows, and room for more: mapped where they are many
        self.every_tag: NDArray[np.uint8] = np.empty(
            (1, len(bench.seeds), TAG_BYTES), dtype=np.uint8
        )

    def __len__(self) -> int:
        """The number of learners."""
        return len(self._numbers)

    @property
    def keys(self) -> list[tuple[int, Key]]:
        """The partition and key of each row."""
        return self._numbers.keys

    def find(self, keys: Sequence[tuple[int, Key]], born: Ints) -> Ints:
        """The row of each of some different keys of partitions; a new one is born at its offset."""
        rows, new = self._numbers.of(keys)
        self.every_tag = grown(self.every_tag, len(self))
        step = max(1, _TAGS // len(self._bench.seeds))
        for first in range(0, len(new), step):
            some = new[first : first + step]
            named = [keys[at] for at in some.tolist()]
            self.every_tag[rows[some]] = self._bench.tags(named, born[some])
            let_go(self.every_tag)
        return rows

    def tags(self, rows: Ints) -> NDArray[np.uint8]:
        """The tags that address the bits of some rows: rows × seeds × 16 bytes."""
        return np.asarray(self.every_tag[rows])
