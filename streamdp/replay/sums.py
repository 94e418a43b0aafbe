"""Exact sums of the stretches between cuts, at about the speed of a plain float sum.

Replay is offline: it may look at the losses to go faster, where the live path may not. A chunk
whose shifted values all lie in [8, 9] needs no repair, and its bits are summed as they are; any
other chunk takes the core's own path, which clips and nulls. Both give the core's sums exactly
(`core.grid` says why the bits of x + 8 are grid values).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamdp.core.grid import Quantiser, grid_sums
from streamdp.core.segments import Adder, Grouped

Ints = NDArray[np.int64]

_EIGHT = np.float32(8)
_LOW, _HIGH = 0x41000000, 0x41100000  # the bits of float32(8) and float32(9)
_MOST_ROWS = 4095  # as in `core.grid`: a chunk's sums are exact modulo 2**32


class StretchSums:
    """Adds the slots of consecutive stretches; keeps its working memory between calls."""

    __slots__ = ("_adder", "_quantiser", "_shifted", "nulls")

    def __init__(self, actions: int) -> None:
        self._adder = Adder(actions)
        self._quantiser = Quantiser(actions)
        rows = min(self._quantiser.chunk, _MOST_ROWS)
        self._shifted = np.empty((rows, actions), dtype=np.float32)
        self.nulls = 0

    def sums(
        self, losses: NDArray[np.float32], grouped: Grouped, begin: Ints, length: Ints
    ) -> Ints:
        """Exact sums of each stretch; the stretches cover all rows, in their grouped order."""
        if grouped.order is not None:
            sums, nulls = self._adder.sums(losses, grouped, begin, length)
            self.nulls += int(nulls.sum())
            return sums
        return self._streamed(losses, (begin + length).tolist())

    def _streamed(self, losses: NDArray[np.float32], ends: list[int]) -> Ints:
        """Chunk by chunk, each shifted once and then cut where stretches end."""
        sums = np.zeros((len(ends), losses.shape[1]), dtype=np.int64)
        stretch, step = 0, len(self._shifted)
        for first in range(0, len(losses), step):
            part = losses[first : first + step]
            shifted = self._shift(part)
            at = 0
            while at < len(part):
                stop = min(ends[stretch] - first, len(part))
                sums[stretch] += grid_sums(shifted[at:stop])
                at = stop
                stretch += ends[stretch] == first + stop
        return sums

    def _shift(self, part: NDArray[np.float32]) -> NDArray[np.float32]:
        shifted = self._shifted[: len(part)]
        with np.errstate(invalid="ignore", over="ignore"):
            np.add(part, _EIGHT, out=shifted)
        bits = shifted.view(np.uint32)
        if bits.max() <= _HIGH and bits.min() >= _LOW:
            return shifted
        shifted, null = self._quantiser.shift(part)
        self.nulls += int(np.count_nonzero(null))
        return shifted
