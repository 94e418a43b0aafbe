"""Does the noise on sums follow the discrete Laplace law exactly, at every scale?"""

from __future__ import annotations

from fractions import Fraction
from math import exp, floor, log, tanh

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.grid import UNIT
from streamdp.core.noise import discrete_laplace, standard_deviation
from streamdp.core.randomness import Bits, SeededRandomness
from streamdp.lab.audit.sampler import chi2
from streamdp.lab.kits.selection import CoarseBits
from tests.support.scripted_bits import Scripted

LARGE = Fraction(2 * UNIT * 10)  # a block's regret at ε = 1/10


def draws(rows: int, *, seed: int = 1) -> Bits:
    source = SeededRandomness(seed)
    tags = np.frombuffer(source.tag("s", 0, b"k", 1, 0) * rows, np.uint8).reshape(rows, 16)
    return source.bits("s", 4, tags, np.arange(rows))


def log_probability(scale: Fraction, value: int) -> float:
    """ln P(Y = value): the normaliser (1 − q)/(1 + q) is tanh(1/(2·scale))."""
    return log(tanh(1 / (2 * scale))) - float(abs(value) / scale)


def law(scale: Fraction, most: int) -> NDArray[np.float64]:
    """The probabilities of −most … most, and of everything beyond."""
    inside = np.exp([log_probability(scale, value) for value in range(-most, most + 1)])
    return np.append(inside, max(0.0, 1 - inside.sum()))


@pytest.mark.parametrize("width", [64, 6])
@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(1), Fraction(7, 3), Fraction(9)])
def test_the_noise_follows_the_law(scale: Fraction, width: int) -> None:
    """χ² at 10⁻⁹, also where 6 random bits a word leave nearly every draw to the decimals."""
    rows = 100_000 if width == 64 else 4_000
    noise = discrete_laplace(scale, CoarseBits(draws(rows, seed=5), width=width))
    most = floor(scale * 12)
    cells = np.where(np.abs(noise) <= most, noise + most, 2 * most + 1)
    counts = np.bincount(cells, minlength=2 * most + 2)
    assert chi2(counts, law(scale, most) * rows).passed


def test_large_noise_follows_the_law() -> None:
    """χ² at 10⁻⁹ over 40 equal cells of the continuous limit, which differs by less than 10⁻⁷."""
    noise = discrete_laplace(LARGE, draws(100_000, seed=6)) / float(LARGE)
    quantiles = np.where(
        noise < 0, np.exp(np.minimum(noise, 0)) / 2, 1 - np.exp(-noise.clip(0)) / 2
    )
    cells = np.minimum((quantiles * 40).astype(np.int64), 39)
    assert chi2(np.bincount(cells, minlength=40), np.full(40, 2_500.0)).passed


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(5), LARGE, Fraction(10**40, 3**60)])
def test_the_law_sums_to_one_and_has_its_spread(scale: Fraction) -> None:
    """Against the closed forms in 50 digits."""
    with mp.workdps(50):
        q = mp.exp(-mp.mpf(scale.denominator) / scale.numerator)
        for value in (0, 1, -7, 10**6):
            exact = mp.log((1 - q) / (1 + q)) - abs(value) * mp.mpf(scale.denominator) / (
                scale.numerator
            )
            assert log_probability(scale, value) == pytest.approx(float(exact), rel=1e-13)
        spread = (2 * q) ** 0.5 / (1 - q)
        assert standard_deviation(scale) == pytest.approx(float(spread), rel=1e-13)


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1), Fraction(3)])
def test_a_moved_sum_costs_epsilon(epsilon: Fraction) -> None:
    """Sensitivity Δ at scale Δ/ε: no output's log-probability moves by more than ε, and some do."""
    sensitivity = 2 * UNIT
    scale = sensitivity / epsilon
    moved = [
        log_probability(scale, value) - log_probability(scale, value - sensitivity)
        for value in range(-3 * UNIT, 5 * UNIT, UNIT // 3)
    ]
    assert max(map(abs, moved)) == pytest.approx(float(epsilon), abs=1e-9)


def test_half_the_scale_is_caught() -> None:
    """The mutant: noise for sensitivity 1 where it is 2 costs 2ε."""
    scale = UNIT / Fraction(1)
    worst = log_probability(scale, 0) - log_probability(scale, 2 * UNIT)
    assert worst > 1.9


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(1, 2**64 - 1), min_size=2, max_size=2),
    st.fractions(Fraction(1, 1000), 2**50, max_denominator=10**9),
    st.integers(0, 2**64 - 1),
)
def test_a_draw_is_a_function_of_the_bits(words: list[int], scale: Fraction, rest: int) -> None:
    """⌊scale·(−ln V)⌋ less the same for the second word, in 80 digits, whatever floats say."""
    drawn = int(discrete_laplace(scale, Scripted([words], rest, 2**63))[0])
    with mp.workdps(80):
        size = 192
        parts = []
        for word in words:
            v = mp.mpf((word << 128) | (rest << 64) | 2**63) / (1 << size)
            parts.append(int(-mp.log(v) * scale.numerator / scale.denominator))
    assert drawn == parts[0] - parts[1]


def test_extreme_words_go_to_the_exact_path() -> None:
    """No warning and no infinity: many zero bits are a large value, ones are zero."""
    ones = 2**64 - 1
    noise = discrete_laplace(Fraction(10), Scripted([[0, ones], [ones, 0], [0, 0]], 0, 1 << 63))
    most = floor(10 * 129 * 0.6931471805599453)
    assert noise.tolist() == [most, -most, 0]


def test_a_source_that_never_decides_is_refused() -> None:
    with pytest.raises(StateMismatch, match="randomness"):
        discrete_laplace(Fraction(1), Scripted([[0, 0]], 0))


def test_thousands_of_rows_at_the_largest_scale_are_settled_exactly() -> None:
    """Beyond 2⁴⁰ floats leave most draws open; the decimals take them, in one call."""
    scale = Fraction(1 << 50)
    noise = discrete_laplace(scale, draws(2000, seed=8))
    assert 0.875 < np.std(noise) / standard_deviation(scale) < 1.125  # 5 standard deviations
    assert len(np.unique(noise)) == 2000


def test_positions_and_rows_draw_apart() -> None:
    """Two estimates of one block, or two blocks, never share noise; the same address does."""
    bits = draws(50, seed=9)
    first, second = discrete_laplace(LARGE, bits), discrete_laplace(LARGE, bits, position=2)
    assert np.array_equal(first, discrete_laplace(LARGE, bits))
    assert np.array_equal(first[7:9], discrete_laplace(LARGE, bits.part(7, 9)))
    assert len({*first.tolist(), *second.tolist()}) == 100


def test_tiny_noise_is_almost_always_zero() -> None:
    scale = Fraction(1, 1 << 400)
    assert not discrete_laplace(scale, draws(100)).any()
    assert standard_deviation(scale) == 0
    assert standard_deviation(Fraction(1, 3)) == pytest.approx((2 * exp(-3)) ** 0.5 / (1 - exp(-3)))


@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1), 1.5, 3, Fraction((1 << 50) + 1)])
def test_a_scale_that_is_not_exact_is_refused(scale: object) -> None:
    with pytest.raises(InvalidConfig, match="not a scale"):
        discrete_laplace(scale, draws(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="not a scale"):
        standard_deviation(scale)  # type: ignore[arg-type]
