"""Arithmetic that gives the same bits on every machine: tables, and sums in a fixed order.

Rules: numpy's elementwise +, −, ×, ÷ and √ are correctly rounded, one operation at a time. Its sums
and products over an axis are not used on floats, because numpy chooses their order. Φ, 2**−x and
log₂ come from tables that are computed once, with integers and with `decimal` (whose arithmetic is
specified to the last digit), and rounded to doubles: no maths library is involved.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from functools import cache

import numpy as np

from streamdp.core.arrays import Floats

_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN)
_STEPS = 256  # entries of Φ's table in one standard deviation
_REACH = 6  # standard deviations on either side; the tails beyond are below one part in 2**24
_HALVES = 1024  # entries of the table of 2**-x in one halving
_MOST_HALVINGS = 64  # below 2**-64 a weight is 0
_MANTISSAS = 2048  # entries of the table of log2 in [0, 1), of which those from 1/2 on are used
_BITS = 128  # of the fixed point in which Φ's table is made
_PHI_0 = Decimal("0.39894228040143267793994605993438186847585863116493465766592583")  # 1/√(2π)


def ordered_sum(values: Floats) -> Floats:
    """Sums over the first axis, always in the same order: by halves.

    >>> ordered_sum(np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]))
    array([ 6., 15.])
    """
    return _folded(values, np.add)


def ordered_product(values: Floats) -> Floats:
    """Products over the first axis, always in the same order: by halves.

    >>> ordered_product(np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]))
    array([  6., 120.])
    """
    return _folded(values, np.multiply)


def _folded(values: Floats, operation: Callable[[Floats, Floats], Floats]) -> Floats:
    while len(values) > 1:
        half = len(values) // 2
        folded = operation(values[:half], values[half : 2 * half])
        if len(values) % 2:
            folded[0] = operation(folded[0], values[-1])
        values = folded
    total: Floats = values[0]
    return total


def normal_cdf(points: Floats, means: Floats, deviations: Floats) -> Floats:
    """Φ((point − mean)/deviation) from its table, in steps of 1/256 of a deviation.

    The error is below .0008. The value is never 0 or 1: beyond 6 deviations it is that at 6.

    >>> normal_cdf(np.array([0.0, -1.0, 1.0, -40.0]), np.zeros(4), np.ones(4)).round(6)
    array([0.5     , 0.158655, 0.841345, 0.      ])
    """
    table, steps = _normal_table(), _STEPS / deviations
    places = points * steps
    places -= means * steps - (_REACH * _STEPS + 0.5)
    np.clip(places, 0, 2 * _REACH * _STEPS, out=places)
    return table.take(places.astype(np.intp), mode="clip")


def power_of_half(exponents: Floats) -> Floats:
    """2**−x for x ≥ 0 from its table, at the nearest 1/1024: right up to a factor of 1 ± .0004.

    >>> power_of_half(np.array([0.0, 1.0, 1.5, 1000.0])).round(6)
    array([1.      , 0.5     , 0.353553, 0.      ])
    """
    places = np.rint(np.clip(exponents, 0, _MOST_HALVINGS) * _HALVES).astype(np.int64)
    return _halves_table().take(places)


def log2(values: Floats) -> Floats:
    """log₂ of positive numbers from its table, at the nearest 1/2048 of the mantissa: ± .0008.

    >>> log2(np.array([1.0, 8.0, 0.75, 2.0**-300])).round(6)
    array([   0.      ,    3.      ,   -0.415037, -300.      ])
    """
    mantissas, exponents = np.frexp(values)  # exact
    places = np.rint(mantissas * _MANTISSAS).astype(np.intp) - _MANTISSAS // 2
    logarithms: Floats = _logarithms_table().take(places) + exponents
    return logarithms


@cache
def logarithm(of: Fraction | int, *, base: int | None = None) -> float:
    """The logarithm of a positive number, to the nearest double; without a base the natural one.

    >>> logarithm(Fraction(1, 1024), base=2), logarithm(2)
    (-10.0, 0.6931471805599453)
    """
    value = _CONTEXT.ln(_CONTEXT.divide(Decimal(of.numerator), Decimal(of.denominator)))
    return float(value if base is None else _CONTEXT.divide(value, _CONTEXT.ln(Decimal(base))))


@cache
def _logarithms_table() -> Floats:
    """log2(k/2048) for k/2048 in [1/2, 1]."""
    places = range(_MANTISSAS // 2, _MANTISSAS + 1)
    return np.array([logarithm(Fraction(k, _MANTISSAS), base=2) for k in places])


@cache
def _normal_table() -> Floats:
    """Φ(k/256) for k/256 in [−6, 6]: Φ(z) = 1/2 + φ(z)·(z + z³/3 + z⁵/15 + …), all terms positive.

    φ(k/256) = φ(0)·q^(k²) with q = exp(−1/(2·256²)), by two products a step.
    """
    whole, half = 1 << _BITS, 1 << (_BITS - 1)
    factor = _fixed(_CONTEXT.divide(Decimal(-1), Decimal(2 * _STEPS**2)))  # q^(2k + 1)
    square = factor * factor >> _BITS
    density, upper = _fixed(None), [half]
    for k in range(1, _REACH * _STEPS + 1):
        density = density * factor >> _BITS
        factor = factor * square >> _BITS
        upper.append(half + (density * _odd_series(k) >> _BITS))
    lower = [(whole - value) / whole for value in upper[:0:-1]]
    return np.array([*lower, *(value / whole for value in upper)])  # int / int rounds correctly


def _odd_series(k: int) -> int:
    """z + z³/3 + z⁵/15 + … for z = k/256."""
    term = total = (k << _BITS) // _STEPS
    odd = 1
    while term:
        odd += 2
        term = term * k * k // (_STEPS * _STEPS * odd)
        total += term
    return total


def _fixed(exponent: Decimal | None) -> int:
    """e**exponent as an integer over 2**_BITS; without an exponent φ(0) = 1/√(2π)."""
    value = _PHI_0 if exponent is None else _CONTEXT.exp(exponent)
    return int(_CONTEXT.multiply(value, Decimal(1 << _BITS)))


@cache
def _halves_table() -> Floats:
    """2**(−k/1024) for k/1024 in [0, 64), and 0 at the end."""
    root = _CONTEXT.power(Decimal(2), _CONTEXT.divide(Decimal(-1), Decimal(_HALVES)))
    value, first = Decimal(1), []
    for _ in range(_HALVES):
        first.append(float(value))
        value = _CONTEXT.multiply(value, root)
    powers = [np.array(first) * 0.5**halving for halving in range(_MOST_HALVINGS)]
    return np.append(np.concatenate(powers), 0.0)
