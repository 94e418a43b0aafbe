"""Permute-and-flip: report-noisy-max with one-sided exponential noise."""

from __future__ import annotations

import numpy as np

from streamdp.core.arrays import Floats, Ints, Words
from streamdp.core.enclosure import Digits, Interval, Precision
from streamdp.core.randomness import WORD_BITS
from streamdp.core.selection import laws, race
from streamdp.core.selection.prior import Prior

_DIGITS = 53  # of V that a float holds
_SHIFT = np.uint64(WORD_BITS - _DIGITS)


class _ExponentialNoise:
    """The noise −E = ln V of the largest E − ρd, that is, of the least ln V + ρd."""

    __slots__ = ()

    def add_lower(self, keys: Floats, words: Words, width: int) -> None:
        """Add ln w, up to a constant that all actions share: w ≤ V · 2^digits."""
        cells = _cells(words, width)
        keys += np.log(cells, out=cells)

    def gap(self, words: Words, width: int) -> Floats:
        """ln(w + 1) − ln w ≤ 1/w; infinite at w = 0."""
        return 1.0 / _cells(words, width)

    def enclose(self, digits: Digits, precision: Precision) -> Interval:
        """ln V."""
        return precision.logarithm(precision.fraction(digits.numerator, digits.size))


def _cells(words: Words, width: int) -> Floats:
    """The leading digits of V as a whole number: 53, or `width` when fewer are random."""
    shift = _SHIFT if width >= _DIGITS else np.uint64(WORD_BITS - width)
    return (words >> shift).astype(np.float64)


class PermuteAndFlip(race.Race):
    """Permute-and-flip at ρ noise units per unit of loss.

    Wins: the largest E_i − ρ·L_i + b_i.
    Privacy: 2ρ-DP when one loss vector in [0, 1]^K is replaced; any public prior.
    Sensitivity: a replaced vector moves the difference of two sums by at most 2.
    Why: it is report-noisy-max with exponential noise (McKenna & Sheldon 2020, as shown by Ding
    et al. 2021); never worse in expectation than the exponential mechanism.
    """

    __slots__ = ()
    name = "permute_and_flip"
    noise = _ExponentialNoise()

    def log_probabilities(self, sums: Ints, prior: Prior | None = None) -> Floats:
        """The exact law: w_i ∫₀¹ ∏_{j≠i} (1 − u·w_j) du, w_i = exp(b_i − ρ·L_i), largest w = 1."""
        return laws.permute_and_flip(laws.handicaps(self.rate, sums, prior))
