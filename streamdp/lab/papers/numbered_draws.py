"""The random bits of an engine without keys: its draws are numbered, and the number is an address.

Such an engine is not saved and rebuilt, so that counting the draws is enough to never use an
address twice.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from streamdp.core.randomness import Bits, Purpose, Randomness
from streamdp.lab.papers.learners.chance import BitsChance


class NumberedDraws:
    """Bits for one draw after the other."""

    __slots__ = ("_count", "_randomness", "_stream", "_tag")

    def __init__(self, randomness: Randomness, stream: str) -> None:
        self._randomness, self._stream = randomness, stream
        self._tag = np.frombuffer(randomness.tag(stream, 0, None, 0, 0), np.uint8)[None]
        self._count = 0

    def bits(self, purpose: Purpose) -> Bits:
        """The bits of the next draw."""
        self._count += 1
        return self._bits_of(purpose, self._count)

    def chance(self, purpose: Purpose) -> BitsChance:
        """Public draws at the next address, which counts whether a course reads it or not."""
        self._count += 1
        return BitsChance(partial(self._bits_of, purpose, self._count))

    def _bits_of(self, purpose: Purpose, draw: int) -> Bits:
        return self._randomness.bits(self._stream, purpose, self._tag, np.array([draw]))
