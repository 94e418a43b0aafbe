"""Random bits as a test writes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Scripted:
    """Words as written; deeper levels as written, the last one for ever."""

    width = 64

    def __init__(self, words: list[list[int]], *further: int) -> None:
        self.given = np.array(words, np.uint64)
        self.further = further

    @property
    def rows(self) -> int:
        return len(self.given)

    def words(self, start: int, count: int) -> NDArray[np.uint64]:
        return self.given[:, start : start + count]

    def more(self, row: int, position: int, level: int) -> int:
        return self.further[min(level, len(self.further)) - 1]

    def part(self, start: int, stop: int) -> Scripted:
        return Scripted(self.given[start:stop].tolist(), *self.further)
