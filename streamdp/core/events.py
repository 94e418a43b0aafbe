"""What crosses the core's boundary: batches of losses in, releases out. Frozen values only.

A *slot* is one time step of one learner, numbered from 1. A *block* is a run of consecutive
slots, numbered from 0. A release is named by its *identity* (stream, partition, key, epoch,
born, block, kind) everywhere: in ledger, state, seed, ETag and judge.

Kinds: ``opening`` (block 0, no slots, drawn when a key appears, charge 0), ``action`` (drawn at
the end of a block from that block's losses, in force from the next slot) and the names of the
estimates that a stream is configured to release.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Key = bytes | None
"""A record's key. The null key is a key like others."""

OPENING = "opening"
ACTION = "action"


class Identity(NamedTuple):
    """What names a release, for good: two releases of one identity are the same release."""

    stream: str
    partition: int
    key: Key
    epoch: int
    born: int
    block: int
    kind: str


@dataclass(frozen=True, slots=True)
class LossBatch:
    """Slots in the order of their records: row i of `losses` is a slot of `keys[index[i]]`.

    `losses` is float32, n×K. A row with a value that is not finite is a null loss (P1).
    `offsets` never falls; the rows of one frame share their record's offset.
    """

    keys: Sequence[Key]  # distinct
    index: NDArray[np.int64]  # n
    losses: NDArray[np.float32]  # n × K
    offsets: NDArray[np.int64]  # n

    @classmethod
    def by_key(
        cls, keys: Sequence[Key], losses: NDArray[np.float32], offsets: NDArray[np.int64]
    ) -> LossBatch:
        """A batch from the key of each slot.

        >>> batch = LossBatch.by_key([b"fr", b"de", b"fr"], np.zeros((3, 2), "f4"), np.arange(3))
        >>> batch.keys, batch.index
        ([b'fr', b'de'], array([0, 1, 0]))
        """
        return cls(*numbered(keys), losses, offsets)

    def __repr__(self) -> str:
        """Say how much, never what."""
        return f"LossBatch({len(self.offsets)} slots of {len(self.keys)} keys)"


def numbered(keys: Sequence[Key]) -> tuple[list[Key], NDArray[np.int64]]:
    """The distinct keys in the order of their first places, and the number of each in them.

    A dictionary that counts what it does not know yet looks each key up once: 36 ns a key.
    """
    numbers: defaultdict[Key, int] = defaultdict(count().__next__)
    index = np.fromiter(map(numbers.__getitem__, keys), dtype=np.int64, count=len(keys))
    return list(numbers), index


@dataclass(frozen=True, slots=True)
class Release:
    """What leaves: an action or an estimate, with its block and charge."""

    identity: Identity
    value: int  # the action's index, or an estimate in units of 2**-20 loss
    start: int  # the slots [start, stop) that were charged
    stop: int
    first_offset: int  # the records that were read
    last_offset: int
    epsilon: Fraction  # the charge on each of the slots

    @property
    def kind(self) -> str:
        """`opening`, `action` or an estimate's name."""
        return self.identity.kind

    @property
    def key(self) -> Key:
        """The key whose learner released this."""
        return self.identity.key


@dataclass(frozen=True, slots=True)
class Releases(Sequence[Release]):
    """Many releases of one partition as columns; a `Release` is made when one is asked for."""

    stream: str
    partition: int
    epoch: int
    kinds: tuple[str, ...]  # what the codes in `kind` mean
    charges: tuple[Fraction, ...]  # the charge of each kind
    keys: Sequence[Key]  # one per release
    born: NDArray[np.int64]
    block: NDArray[np.int64]
    kind: NDArray[np.uint8]
    value: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    first_offset: NDArray[np.int64]
    last_offset: NDArray[np.int64]

    def __len__(self) -> int:
        """How many releases."""
        return len(self.block)

    def __getitem__(self, at: int) -> Release:  # type: ignore[override]  # no slices
        """The release at one place, as a value of its own."""
        code = int(self.kind[at])
        name = self.kinds[code]
        return Release(
            identity=Identity(
                self.stream,
                self.partition,
                self.keys[at],
                self.epoch,
                int(self.born[at]),
                int(self.block[at]),
                name,
            ),
            value=int(self.value[at]),
            start=int(self.start[at]),
            stop=int(self.stop[at]),
            first_offset=int(self.first_offset[at]),
            last_offset=int(self.last_offset[at]),
            epsilon=self.charges[code],
        )

    def __iter__(self) -> Iterator[Release]:
        """Each release in the order in which its block ended."""
        return (self[at] for at in range(len(self)))

    def __repr__(self) -> str:
        """Say how many, not what."""
        return f"Releases({self.stream}/{self.partition}, {len(self)})"
