"""Exact sums of the stretches between cuts, at about the speed of a plain float sum.

Replay is offline: it may look at the losses to go faster, which the live path may not. A chunk
whose shifted values all lie in [8, 9] needs no repair, so its bits are summed as they are. Any
other chunk takes the core's own path, which clips and nulls, and so do the next few chunks, since
bad values seldom come alone. Both give the core's sums exactly (`core.grid` says why the bits of x
+ 8 are grid values, and why a sum of at most 4095 rows may wrap).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.grid import Quantiser, grid_sums
from streamdp.core.segments import Adder, Grouped
from streamdp.lab.replay.clipping import rows_outside

_EIGHT = np.float32(8)
_LOW, _HIGH = 0x41000000, 0x41100000  # the bits of float32(8) and float32(9)
_MOST_ROWS = 4095  # as in `core.grid`: a chunk's sums are exact modulo 2**32
_WIDE = 512  # losses side by side, likewise
_DISTRUST = 16  # chunks after a bad one that skip the fast path


class StretchSums:
    """Adds the slots of consecutive stretches; keeps its working memory between calls."""

    __slots__ = ("_adder", "_distrust", "_fold", "_quantiser", "_shifted", "clipped", "nulls")

    def __init__(self, actions: int) -> None:
        self._adder = Adder(actions)
        self._quantiser = Quantiser(actions)
        rows = min(self._quantiser.chunk, _MOST_ROWS)
        self._fold = min(rows, max(1, _WIDE // actions))  # narrow rows are added side by side
        rows -= rows % self._fold
        self._shifted = np.empty((rows, actions), dtype=np.float32)
        self._distrust = 0  # chunks that will still skip the fast path
        self.nulls = 0
        self.clipped = 0  # rows of finite numbers, not all in [0, 1]

    def sums(
        self, losses: NDArray[np.float32], grouped: Grouped, begin: Ints, length: Ints
    ) -> Ints:
        """Exact sums of each stretch; the stretches cover all rows, in their grouped order."""
        if grouped.order is not None:
            sums, nulls = self._adder.sums(losses, grouped, begin, length)
            self.nulls += int(nulls.sum())
            self.clipped += rows_outside(losses)
            return sums
        with np.errstate(invalid="ignore", over="ignore"):
            return self._streamed(losses, (begin + length).tolist())

    def _streamed(self, losses: NDArray[np.float32], ends: list[int]) -> Ints:
        """Chunk by chunk, each shifted once and then cut where stretches end."""
        sums = np.zeros((len(ends), losses.shape[1]), dtype=np.int64)
        stretch, step = 0, len(self._shifted)
        for first in range(0, len(losses), step):
            part = losses[first : first + step]
            shifted = self._shift(part)
            rows = len(shifted)
            if rows == step and ends[stretch] >= first + step:
                sums[stretch] += self._whole(shifted)
                stretch += ends[stretch] == first + step
                continue
            at = 0
            while at < rows:
                stop = min(ends[stretch] - first, rows)
                sums[stretch] += grid_sums(shifted[at:stop])
                at = stop
                stretch += ends[stretch] == first + stop
        return sums

    def _whole(self, shifted: NDArray[np.float32]) -> NDArray[np.uint32]:
        """`grid_sums` of a full chunk, in fewer steps."""
        rows, actions = shifted.shape
        bits = shifted.view(np.uint32).reshape(-1, self._fold * actions)
        wide = np.add.reduce(bits, axis=0, dtype=np.uint32)
        narrow = wide.reshape(self._fold, actions)
        wrapped: NDArray[np.uint32] = np.add.reduce(narrow, axis=0, dtype=np.uint32)
        wrapped -= np.uint32(rows * _LOW % 2**32)
        return wrapped

    def _shift(self, part: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._distrust:
            shifted = self._shifted[: len(part)]
            np.add(part, _EIGHT, out=shifted)
            bits = shifted.view(np.uint32)
            if bits.max() <= _HIGH and bits.min() >= _LOW:
                return shifted
            self._distrust = _DISTRUST
        self._distrust -= 1
        shifted, null = self._quantiser.shift(part)
        self.nulls += int(np.count_nonzero(null))
        self.clipped += rows_outside(part)
        return shifted
