"""The random bits of an engine without keys: its draws are numbered, and the number is an address.

Such an engine is not saved and rebuilt, so that counting the draws is enough to never use an
address twice.

`BitsChance` makes public random draws of them, for posterior sampling and random play. They are not
secret, so floats are good enough: a uniform draw is the middle of one of 2^52 cells, and a beta
draw is a ratio of gamma draws by rejection.

Reference: Marsaglia & Tsang 2000, for shapes ≥ 1
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from streamdp.core.arrays import Floats
from streamdp.core.randomness import Bits, Purpose, Randomness


class BitsChance:
    """Draws from one row of bits, in the order of the calls.

    The bits are asked for by the first draw: most slots are played without one.
    """

    __slots__ = ("_at", "_bits", "_source")

    def __init__(self, source: Callable[[], Bits]) -> None:
        self._source = source
        self._bits: Bits | None = None
        self._at = 0

    def uniform(self, *shape: int) -> Floats:
        """Uniform draws in (0, 1)."""
        count = int(np.prod(shape))
        if self._bits is None:
            self._bits = self._source()
        words = self._bits.words(self._at, count)[0]
        self._at += count
        cells = np.right_shift(words, np.uint64(12)).astype(np.float64)
        uniform: Floats = ((cells + 0.5) * 2.0**-52).reshape(shape)
        return uniform

    def beta(self, alpha: Floats, beta: Floats) -> Floats:
        """A draw of each Beta(α, β); α, β ≥ 1."""
        one = self._gamma(np.asarray(alpha, dtype=np.float64))
        other = self._gamma(np.asarray(beta, dtype=np.float64))
        draws: Floats = one / (one + other)
        return draws

    def _gamma(self, shape: Floats) -> Floats:
        """A draw of each Gamma(shape), shape ≥ 1."""
        d = (shape - 1 / 3).ravel()
        out = np.empty_like(d)
        open_ = np.arange(len(d))
        while len(open_):
            u = self.uniform(3, len(open_))
            normal = np.sqrt(-2 * np.log(u[0])) * np.cos(2 * np.pi * u[1])
            scale = d[open_]
            v = (1 + normal / np.sqrt(9 * scale)) ** 3
            with np.errstate(invalid="ignore", divide="ignore"):
                accepted = (v > 0) & (np.log(u[2]) < 0.5 * normal**2 + scale * (1 - v + np.log(v)))
            out[open_[accepted]] = (scale * v)[accepted]
            open_ = open_[~accepted]
        return out.reshape(shape.shape)


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
