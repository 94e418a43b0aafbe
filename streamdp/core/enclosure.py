"""Certified enclosures of ln V for a V in (0, 1) of which only the leading binary digits are known.

Floats propose, enclosures decide. A draw that floats leave open is settled here, with more and more
digits of V and more and more decimals, until one outcome remains. An enclosure always contains the
true value, so the law of a draw is exact whatever the quality of the floats.

Why the enclosures are valid: sums, quotients and conversions are rounded outwards. `decimal` rounds
ln correctly but only half-even, so its result is widened by one unit in the last place, which is at
least twice the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import NamedTuple

from streamdp.core.errors import StateMismatch
from streamdp.core.randomness import WORD_BITS, Bits

_SPARE_DIGITS = 4  # beyond those of V, because the arithmetic loses some; each adds to ln's time
_NARROW = Decimal("1e-15")  # (b − a)/a exceeds ln b − ln a by less than this part of itself
_MOST_LEVELS = 32  # a healthy source leaves a draw open after 2048 bits with probability 2**-1980


class Interval(NamedTuple):
    """Two decimals with the true value between them; an end may be infinite."""

    low: Decimal
    high: Decimal

    def plus(self, shift: Fraction, precision: Precision) -> Interval:
        """Both ends moved by an exact rational."""
        least = precision.floor.divide(Decimal(shift.numerator), Decimal(shift.denominator))
        most = precision.ceiling.divide(Decimal(shift.numerator), Decimal(shift.denominator))
        return Interval(
            precision.floor.add(self.low, least), precision.ceiling.add(self.high, most)
        )

    def times(self, factor: Fraction, precision: Precision) -> Interval:
        """A non-negative interval times a positive exact rational."""
        low, high = precision.floor, precision.ceiling
        up, down = Decimal(factor.numerator), Decimal(factor.denominator)
        return Interval(
            low.divide(low.multiply(self.low, up), down),
            high.divide(high.multiply(self.high, up), down),
        )

    def clipped(self) -> Interval:
        """The part at or above 0, for a value known to be there: widening may reach below."""
        return Interval(max(self.low, Decimal(0)), self.high)

    def negated(self) -> Interval:
        """The interval of the negative: exact."""
        return Interval(self.high.copy_negate(), self.low.copy_negate())


@dataclass(frozen=True, slots=True)
class Precision:
    """Two decimal contexts of one precision: one rounds down, one rounds up."""

    floor: Context
    ceiling: Context

    @classmethod
    def of_bits(cls, size: int) -> Precision:
        """Enough decimals that `size` known bits of V, not the arithmetic, limit an enclosure."""
        digits = _SPARE_DIGITS + size * 31 // 100  # log10(2) < 0.31
        traps = [InvalidOperation]
        return cls(
            Context(prec=digits, rounding=ROUND_FLOOR, traps=traps),
            Context(prec=digits, rounding=ROUND_CEILING, traps=traps),
        )

    def logarithm(self, of: Interval) -> Interval:
        """ln of an interval in [0, ∞], widened because `decimal` rounds ln half-even.

        ln is concave: ln b ≤ ln a + (b − a)/a. For a narrow interval this bound replaces a second
        ln, which takes most of an enclosure's time.
        """
        least = self.floor.ln(of.low)
        if of.low > 0:
            step = self.ceiling.divide(self.ceiling.subtract(of.high, of.low), of.low)
            if step < _NARROW:
                most = self.ceiling.add(self.ceiling.next_plus(least), step)
                return Interval(self.floor.next_minus(least), most)
        most = self.ceiling.next_plus(self.ceiling.ln(of.high))
        return Interval(self.floor.next_minus(least), most)

    def fraction(self, numerator: int, size: int) -> Interval:
        """[numerator, numerator + 1] / 2**size."""
        scale = Decimal(1 << size)
        return Interval(
            self.floor.divide(Decimal(numerator), scale),
            self.ceiling.divide(Decimal(numerator + 1), scale),
        )


@dataclass(slots=True, repr=False)
class Digits:
    """The leading binary digits of one V: `numerator` of them, `size` in number."""

    row: int
    position: int
    numerator: int
    size: int
    level: int = 0

    @classmethod
    def of_word(cls, bits: Bits, *, row: int, position: int, word: int) -> Digits:
        """The digits of V that a level-0 word gives."""
        return cls(row, position, word >> (WORD_BITS - bits.width), bits.width)

    def extend(self, bits: Bits) -> None:
        """Read 64 further digits; refuse a source that never decides."""
        self.level += 1
        if self.level == _MOST_LEVELS:
            got = f"{self.size} digits that leave a draw open"
            raise StateMismatch("randomness", "broken", expected="random bits", got=got)
        self.numerator = self.numerator << WORD_BITS | bits.more(
            self.row, self.position, self.level
        )
        self.size += WORD_BITS
