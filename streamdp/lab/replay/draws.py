"""Seeded bits for many selections at once, shared by all learners and budgets.

The bits of a selection are addressed by seed, key and block, not by learner or ε. So every cell of
a grid reads the same words: these common random numbers make differences between cells less noisy
than the cells, and are drawn only once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.randomness import (
    WORD_BITS,
    Bits,
    Purpose,
    SeededRandomness,
    uniform_integers,
)
from streamdp.lab.replay.cuts import Rows


class SharedBits:
    """The words of many draws under several seeds: draw number = pair · seeds + seed."""

    __slots__ = ("_numbers", "_sources", "_words")

    width = WORD_BITS

    def __init__(self, words: NDArray[np.uint64], numbers: Ints, sources: Sequence[Bits]) -> None:
        self._words = words  # actions × draws, as the race reads them
        self._numbers = numbers
        self._sources = sources

    @property
    def rows(self) -> int:
        """The number of draws."""
        return len(self._numbers)

    def words(self, start: int, count: int) -> NDArray[np.uint64]:
        """Draws × `count` words of level 0."""
        return self._words[start : start + count].T

    def more(self, row: int, position: int, level: int) -> int:
        """The 64 bits that continue a word, from the draw's own source."""
        pair, seed = divmod(int(self._numbers[row]), len(self._sources))
        return self._sources[seed].more(pair, position, level)

    def part(self, start: int, stop: int) -> SharedBits:
        """The draws [start, stop) alone."""
        return SharedBits(self._words[:, start:stop], self._numbers[start:stop], self._sources)

    def pick(self, draws: Ints) -> SharedBits:
        """The draws with these (rising) numbers."""
        if len(draws) and draws[-1] - draws[0] + 1 == len(draws):
            return self.part(int(draws[0]), int(draws[-1]) + 1)
        return SharedBits(self._words[:, draws], self._numbers[draws], self._sources)


class Dealer:
    """Deals the bits of some seeds."""

    __slots__ = ("_rows", "_seeds", "_sources", "_stream")

    def __init__(
        self, rows: Rows, sources: Sequence[SeededRandomness], *, stream: str, seeds: range
    ) -> None:
        self._rows = rows
        self._sources = [sources[seed] for seed in seeds]
        self._seeds = seeds
        self._stream = stream

    def openings(self, rows: Ints, *, actions: int) -> Ints:
        """The opening action of each row under each seed."""
        count = np.full(len(rows), actions)
        actions_by_seed = [
            uniform_integers(bits, count)
            for bits in self._bits(Purpose.OPENING, rows, np.zeros(len(rows), dtype=np.int64))
        ]
        return np.stack(actions_by_seed, axis=1)

    def selections(self, rows: Ints, blocks: Ints, *, actions: int) -> SharedBits:
        """The bits of the selection at the end of each (row, block) under each seed."""
        sources = self._bits(Purpose.SELECTION, rows, blocks)
        words = np.empty((actions, len(rows), len(sources)), dtype=np.uint64)
        for seed, bits in enumerate(sources):
            words[:, :, seed] = bits.words(0, actions).T
        draws = len(rows) * len(sources)
        return SharedBits(words.reshape(actions, draws), np.arange(draws), sources)

    def _bits(self, purpose: Purpose, rows: Ints, indices: Ints) -> list[Bits]:
        return [
            source.bits(self._stream, purpose, self._rows.tags(rows, seed=seed), indices)
            for source, seed in zip(self._sources, self._seeds, strict=True)
        ]
