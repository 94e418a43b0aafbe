"""Exact discrete Laplace noise for sums on the integer grid.

Privacy: adding noise of scale Δ/ε to an integer of sensitivity Δ is ε-DP, exactly: the law is
P(Y = y) ∝ exp(−|y|/scale) on all integers (Canonne, Kamath & Steinke 2020, Definition 3 and §5).
Sensitivity: the caller's; see `core.calibration`.
Why: two outcomes at distance Δ differ in probability by the factor e^ε at most.

Differs from the paper: its sampler rejects, so its time depends on what is drawn. Here
Y = ⌊scale·E⌋ − ⌊scale·E'⌋ with E = −ln V: P(⌊scale·E⌋ ≥ k) = P(E ≥ k/scale) = exp(−k/scale), so
both parts are geometric and their difference has the law above. It stays private because the law
is the same: V is the real number whose digits are the draw's bits, floats only propose an interval
for scale·E, and an interval that contains an integer is settled with more bits and directed
decimals. Every draw reads two words and, rarely, more.
"""

from __future__ import annotations

from fractions import Fraction
from math import exp, expm1, floor, log, sqrt, tanh

import numpy as np

from streamdp.core.arrays import Floats, Ints, Words
from streamdp.core.enclosure import Digits, Precision
from streamdp.core.errors import InvalidConfig
from streamdp.core.randomness import Bits

_FLOAT_BITS = 53
_MARGIN = 2.0**-48  # relative: ln within 4 ulp, scale and product within 1/2 ulp each
_LARGEST_SCALE = Fraction(1 << 50)  # |Y| < 2**62 would need a V below 2**-4096
_SMALLEST_SCALE = Fraction(1, 1 << 500)


def discrete_laplace(scale: Fraction, bits: Bits, *, position: int = 0) -> Ints:
    """One draw per row of `bits`, from the words at `position` and the next.

    >>> from streamdp.core.randomness import SeededRandomness
    >>> tags, slots = np.zeros((5, 16), np.uint8), np.arange(5)
    >>> discrete_laplace(Fraction(3), SeededRandomness(1).bits("s", 4, tags, slots)).dtype
    dtype('int64')
    """
    return discrete_laplaces(scale, bits, 1, position=position)[:, 0]


def discrete_laplaces(scale: Fraction, bits: Bits, count: int, *, position: int = 0) -> Ints:
    """`count` independent draws per row of `bits`, from 2·`count` words each; rows × `count`."""
    _check(scale)
    parts = _geometric(scale, bits, bits.words(position, 2 * count), position)
    draws: Ints = parts[:, 0::2] - parts[:, 1::2]
    return draws


def log_probabilities(scale: Fraction, values: Ints) -> Floats:
    """ln P(Y = y) for each of these values: the law of a draw, for audits and tests.

    >>> log_probabilities(Fraction(1), np.array([0, -2])).round(4)
    array([-0.7719, -2.7719])
    """
    _check(scale)  # P(Y = y) = (1 − q)/(1 + q) · q^|y| with q = e^(−1/scale)
    return log(tanh(float(1 / scale / 2))) - np.abs(values).astype(np.float64) * float(1 / scale)


def standard_deviation(scale: Fraction) -> float:
    """The standard deviation of Y; public, and shown beside each estimate."""
    _check(scale)
    q = exp(-1 / scale)
    return sqrt(2 * q) / -expm1(-1 / scale)


def _check(scale: Fraction) -> None:
    """Refuse a scale that is not exact or that floats cannot bound."""
    if not isinstance(scale, Fraction) or not _SMALLEST_SCALE <= scale <= _LARGEST_SCALE:
        expected = "a Fraction between 2**-500 and 2**50 grid units"
        raise InvalidConfig("scale", "not a scale", expected=expected, got=repr(scale))


def _geometric(scale: Fraction, bits: Bits, words: Words, position: int) -> Ints:
    """⌊scale·(−ln V)⌋ for the V that begins with each word; rows × positions from `position` on."""
    known = min(bits.width, _FLOAT_BITS)
    cells = np.right_shift(words, np.uint64(64 - known)).astype(np.float64)
    c, unit = float(scale), 2.0**-known
    with np.errstate(divide="ignore"):
        least = np.floor(-np.log((cells + 1.0) * unit) * (c * (1 - _MARGIN)))
        most = np.floor(-np.log(cells * unit) * (c * (1 + _MARGIN)))
    settled = least == most
    out = np.where(settled, least, 0.0).astype(np.int64)
    for row, at in np.argwhere(~settled).tolist():
        word = int(words[row, at])
        digits = Digits.of_word(bits, row=row, position=position + at, word=word)
        out[row, at] = _draw_exactly(scale, bits, digits)
    return out


def _draw_exactly(scale: Fraction, bits: Bits, digits: Digits) -> int:
    """The draw, by enclosures that shrink until they contain no integer's edge."""
    while True:
        precision = Precision.of_bits(digits.size)
        tail = precision.logarithm(precision.fraction(digits.numerator, digits.size))
        value = tail.negated().clipped().times(scale, precision)
        if value.high.is_finite() and floor(value.low) == floor(value.high):
            return floor(value.low)
        digits.extend(bits)
