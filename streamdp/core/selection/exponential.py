"""The exponential mechanism, as a race of exponential clocks."""

from __future__ import annotations

import numpy as np

from streamdp.core.arrays import Floats, Ints, Words
from streamdp.core.enclosure import Digits, Interval, Precision
from streamdp.core.randomness import WORD_BITS
from streamdp.core.selection import laws, race
from streamdp.core.selection.prior import Prior

_DIGITS = 52  # of V: as many as the significand of a float in [1, 2) holds
_SHIFT = np.uint64(WORD_BITS - _DIGITS)
_ONE_AS_BITS = np.uint64(0x3FF0000000000000)  # float64(1): the bits of 1 + w/2^52 are this plus w


class _LogOfExponential:
    """The noise ln E, E = −ln(1 − V), of the least ln E + ρd."""

    __slots__ = ()

    def add_lower(self, keys: Floats, words: Words, width: int) -> None:
        """Add ln(−ln(1 − w/2^digits)): E grows with V, so a cell's lower end bounds it."""
        cells = words >> _SHIFT
        if width < _DIGITS:
            cells &= np.uint64(2**_DIGITS - 2 ** (_DIGITS - width))
        cells |= _ONE_AS_BITS
        rest = np.subtract(2.0, cells.view(np.float64))  # exact: 2 − (1 + w/2^52)
        np.log(rest, out=rest)
        np.negative(rest, out=rest)
        keys += np.log(rest, out=rest)

    def gap(self, words: Words, width: int) -> Floats:
        """The cell's width over the least of (1 − V)·V in it, as E ≥ V; infinite at both ends."""
        digits = min(_DIGITS, width)
        cell = (words >> np.uint64(WORD_BITS - digits)).astype(np.float64)
        return 2.0**digits / cell / (2.0**digits - 1.0 - cell)

    def enclose(self, digits: Digits, precision: Precision) -> Interval:
        """ln(−ln(1 − V))."""
        rest = (1 << digits.size) - 1 - digits.numerator
        tail = precision.logarithm(precision.fraction(rest, digits.size))
        return precision.logarithm(tail.negated().clipped())


class Exponential(race.Race):
    """The exponential mechanism at ρ noise units per unit of loss: P(i) ∝ exp(b_i − ρ·L_i).

    Wins: the least ln E_i + ρ·L_i − b_i.
    Privacy: 2ρ-DP when one loss vector in [0, 1]^K is replaced; any public prior.
    Sensitivity: a replaced vector moves each sum by at most 1, so a weight by at most e^±ρ and
    their total by as much.
    Why: clocks E_i/w_i with independent exponential E_i ring first with probability w_i/Σw.
    """

    __slots__ = ()
    name = "exponential"
    noise = _LogOfExponential()

    def log_probabilities(self, sums: Ints, prior: Prior | None = None) -> Floats:
        """The exact law: the softmax of b_i − ρ·L_i."""
        return laws.exponential(laws.handicaps(self.rate, sums, prior))
