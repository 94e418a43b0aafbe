"""Bernoulli resampling: each loss becomes 1 with its own probability, else 0, before it is summed.

Reference: Wu & Wang 2026, Theorem 3

A loss on the grid is g/2**20 with an integer g, and 20 random bits, read as an integer, are below g
with exactly that probability. Three coordinates share a word; the words are addressed by learner
and slot, so that neither order nor batches matter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamdp.core.grid import GRID_BITS, quantise
from streamdp.core.randomness import Bits

_PER_WORD = 64 // GRID_BITS
_MASK = np.uint64((1 << GRID_BITS) - 1)


def resampled(losses: NDArray[np.float32], bits: Bits) -> NDArray[np.float32]:
    """Losses as exact Bernoulli draws; `bits` has a row for each slot."""
    n, actions = losses.shape
    grid, _ = quantise(losses)
    words = bits.words(0, -(-actions // _PER_WORD))
    shifts = (np.arange(_PER_WORD) * GRID_BITS).astype(np.uint64)
    drawn = ((words[:, :, None] >> shifts) & _MASK).reshape(n, -1)[:, :actions]
    return (drawn < grid.astype(np.uint64)).astype(np.float32)
