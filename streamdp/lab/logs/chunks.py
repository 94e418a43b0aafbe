"""Rows of a log to be written elsewhere: losses with keys, partitions and offsets.

Finite losses outside [0, 1] are clipped, whatever kind of log they are from, and counted; a null
row is NaN throughout, which every reader takes for one that is intended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.events import Key
from streamdp.lab.logs.clipping import rows_outside
from streamdp.lab.logs.log import Portion


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one partition."""

    first: int  # the number of the first row
    losses: NDArray[np.float32]
    keys: list[Key]
    offsets: NDArray[np.int64]
    partition: int
    clipped: int = 0  # rows that were clipped to [0, 1]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.keys)

    def __repr__(self) -> str:
        """The number of rows, never their content."""
        return f"Chunk({len(self)} rows from {self.first} of partition {self.partition})"

    @property
    def stop(self) -> int:
        """The number of the row after the last."""
        return self.first + len(self.keys)

    @property
    def plain(self) -> bool:
        """Whether losses say everything: one null key, partition 0, offsets as numbered."""
        numbered = np.arange(self.first, self.stop)
        return (
            self.partition == 0
            and all(key is None for key in set(self.keys))
            and bool((self.offsets == numbered).all())
        )

    def nulls(self) -> NDArray[np.bool_]:
        """Which rows are null losses."""
        return nulls(self.losses)


def nulls(losses: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows are null losses: those with a NaN or an infinity."""
    return ~np.asarray(np.isfinite(losses).all(axis=1), dtype=np.bool_)


def chunks(portions: Iterable[Portion]) -> Iterator[Chunk]:
    """Portions as rows to write, numbered from 0."""
    first = 0
    for portion in portions:
        batch = portion.batch
        keys = [batch.keys[at] for at in batch.index.tolist()]
        losses, clipped = _repaired(batch.content["losses"])
        chunk = Chunk(
            first, losses, keys, batch.offsets, portion.partition, portion.clipped + clipped
        )
        yield chunk
        first = chunk.stop


def _repaired(losses: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """Rows of losses in [0, 1] or of NaN, and how many were clipped."""
    if losses.size and losses.min() >= 0 and losses.max() <= 1:  # NaN is neither
        return losses, 0
    whole = np.where(nulls(losses)[:, None], np.float32(np.nan), np.clip(losses, 0, 1))
    return whole, rows_outside(losses)
