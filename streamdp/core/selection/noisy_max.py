"""Report-noisy-max with two-sided exponential (Laplace) noise."""

from __future__ import annotations

import numpy as np

from streamdp.core.arrays import Floats, Ints, Words
from streamdp.core.enclosure import Digits, Interval, Precision
from streamdp.core.randomness import WORD_BITS
from streamdp.core.selection import laws, race
from streamdp.core.selection.prior import Prior

_DIGITS = 53  # of V' that a float holds
_CELL = 2.0**-_DIGITS
_ONE, _SIGN, _SHIFT = np.uint64(1), np.uint64(63), np.uint64(WORD_BITS - _DIGITS)


class _LaplaceNoise:
    """The noise −X of the largest X − ρd: V's first digit is the sign, the rest is ln V'.

    A leading 0 means X = −ln V' (the key gains ln V'), a leading 1 means X = ln V'.
    """

    __slots__ = ()

    def add_lower(self, keys: Floats, words: Words, width: int) -> None:
        """Add ln w, or −ln(w + 1): the end of the cell where the key is least."""
        cells = words << _ONE
        cells >>= _drop(width)
        cells += words >> _SIGN
        logs = cells.view(np.int64).astype(np.float64)
        logs *= _CELL if width > _DIGITS else 2.0 ** (1 - width)
        np.log(logs, out=logs)
        keys -= np.copysign(logs, words.view(np.float64), out=logs)

    def gap(self, words: Words, width: int) -> Floats:
        """ln(w + 1) − ln w ≤ 1/w on either side; infinite at w = 0."""
        return 1.0 / (words << _ONE >> _drop(width)).astype(np.float64)

    def enclose(self, digits: Digits, precision: Precision) -> Interval:
        """ln V', or its negative."""
        size = digits.size - 1
        sign = digits.numerator >> size
        tail = precision.logarithm(precision.fraction(digits.numerator - (sign << size), size))
        return tail.negated() if sign else tail


def _drop(width: int) -> np.uint64:
    """The shift that turns a word without its first digit into V' as a whole number."""
    return _SHIFT if width > _DIGITS else np.uint64(WORD_BITS + 1 - width)


class NoisyMaxLaplace(race.Race):
    """Report-noisy-max with Laplace noise at ρ noise units per unit of loss.

    Wins: the largest X_i − ρ·L_i + b_i.
    Privacy: 2ρ-DP when one loss vector in [0, 1]^K is replaced; any public prior.
    Sensitivity: a replaced vector moves the difference of two sums by at most 2, not 1 as for
    monotone counts: the scale is twice what Hu et al. 2025, Algorithm 4, and Hu et al. 2021,
    Algorithm 3, print.
    Why: given the others' noise, the winner's must exceed a threshold that moves by at most 2.
    """

    __slots__ = ()
    name = "noisy_max_laplace"
    noise = _LaplaceNoise()

    def log_probabilities(self, sums: Ints, prior: Prior | None = None) -> Floats:
        """The exact law: P(X_i − ρ·L_i + b_i is the largest), by quadrature."""
        return laws.laplace(laws.handicaps(self.rate, sums, prior))
