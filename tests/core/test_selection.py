"""Does every selection follow its exact law, whatever the floats, the bits and the scores?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamdp.core.enclosure import Digits, Interval, Precision
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.grid import UNIT
from streamdp.core.randomness import Bits, SeededRandomness, SystemRandomness
from streamdp.core.selection import (
    Exponential,
    Mechanism,
    NoisyMaxLaplace,
    PermuteAndFlip,
    Prior,
    laws,
    race,
)
from streamdp.lab.kits.selection import CoarseBits, check_selection
from tests.support import laws_by_hand
from tests.support.scripted_bits import Scripted

Ours = Exponential | PermuteAndFlip | NoisyMaxLaplace
KINDS: tuple[type[Ours], ...] = (Exponential, PermuteAndFlip, NoisyMaxLaplace)
every_kind = pytest.mark.parametrize("kind", KINDS)
HALF = Fraction(1, 2)
DRAWS = 40_000


def draws(rows: int, *, seed: int = 1) -> Bits:
    source = SeededRandomness(seed)
    tags = np.frombuffer(source.tag("s", 0, b"k", 1, 0) * rows, np.uint8).reshape(rows, 16)
    return source.bits("s", 1, tags, np.arange(rows))


def fresh(rows: int) -> Bits:
    return SystemRandomness().bits("s", 1, np.zeros((rows, 16), np.uint8), np.arange(rows))


# The conformance kit, on what is shipped and on what is broken


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("rate", [HALF, Fraction(3), Fraction(1, 20)])
def test_what_ships_passes_the_kit(kind: type[Ours], rate: Fraction) -> None:
    """Law, price, χ² of 40,000 draws at K = 2, 5, 50 near, far and with priors, coarse words, exact
    path. A false alarm: at most 10⁻⁶ for each mechanism and rate; the seed is fixed."""
    check_selection(kind(rate), draws=DRAWS if rate == HALF else 10_000)


@dataclass(frozen=True)
class Broken:
    """A mechanism with something wrong, made of a good one."""

    law: Mechanism
    draw: Mechanism
    rate: Fraction = HALF
    name: str = "broken"

    def select(
        self, sums: NDArray[np.int64], bits: Bits, prior: Prior | None = None
    ) -> NDArray[np.int64]:
        return self.draw.select(sums, bits, prior)

    def log_probabilities(
        self, sums: NDArray[np.int64], prior: Prior | None = None
    ) -> NDArray[np.float64]:
        return self.law.log_probabilities(sums, prior)


GOOD = PermuteAndFlip(HALF)


class FloatSoftmax(Broken):
    """The mutant: probabilities in floats, zero where exp underflows."""

    def log_probabilities(
        self, sums: NDArray[np.int64], prior: Prior | None = None
    ) -> NDArray[np.float64]:
        keys = -(sums - sums.min()) * float(self.rate) / UNIT
        if prior is not None:
            keys += np.array(prior.numerators_of(row=0, actions=np.arange(len(sums)))) / (
                prior.denominator
            )
        weights = np.exp(keys)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(weights / weights.sum()))


class NoPrior(Broken):
    """The mutant: a prior is not looked at."""

    def select(
        self, sums: NDArray[np.int64], bits: Bits, prior: Prior | None = None
    ) -> NDArray[np.int64]:
        return self.draw.select(sums, bits)


class FloatsDecide(Broken):
    """The mutant: the leading digits decide, further bits are never read."""

    def select(
        self, sums: NDArray[np.int64], bits: Bits, prior: Prior | None = None
    ) -> NDArray[np.int64]:
        cells = (bits.words(0, sums.shape[1]) >> np.uint64(64 - min(53, bits.width))) + 0.5
        keys = np.log(cells) + sums * (float(self.rate) / UNIT)
        if prior is not None:
            prior.subtract_columns(keys.T)
        return np.asarray(keys.argmin(axis=1))


class Together(Broken):
    """The mutant: a row's winner depends on the batch it is in."""

    def select(
        self, sums: NDArray[np.int64], bits: Bits, prior: Prior | None = None
    ) -> NDArray[np.int64]:
        return self.draw.select(sums, bits, prior)[::-1]


class Drawn(Broken):
    """The mutant: other bits than those given."""

    def select(
        self, sums: NDArray[np.int64], bits: Bits, prior: Prior | None = None
    ) -> NDArray[np.int64]:
        return self.draw.select(sums, fresh(bits.rows), prior)


class Rotated(Broken):
    """The mutant: an exact path that is another function of the bits."""

    def select_exactly(
        self, sums: NDArray[np.int64], bits: Bits, prior: Prior | None = None
    ) -> NDArray[np.int64]:
        return np.asarray((self.draw.select(sums, bits, prior) + 1) % sums.shape[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (FloatSoftmax(GOOD, Exponential(HALF)), "no action has probability 0"),
        (Broken(Exponential(HALF), GOOD), "draws follow the law"),
        (Broken(GOOD, PermuteAndFlip(Fraction(51, 100))), "draws follow the law"),
        (Broken(PermuteAndFlip(Fraction(1)), PermuteAndFlip(Fraction(1))), "costs twice the rate"),
        (NoPrior(GOOD, GOOD), "draws follow the law"),
        (FloatsDecide(GOOD, GOOD), "draws of coarse words follow the law"),
        (Together(GOOD, GOOD), "a row alone wins as in a batch"),
        (Drawn(GOOD, GOOD), "the same bits give the same winners"),
        (Rotated(GOOD, GOOD), "floats and decimals agree"),
    ],
)
def test_the_kit_refuses_what_is_broken(broken: Broken, promise: str) -> None:
    """By no more draws than what ships passes with."""
    with pytest.raises(AssertionError, match=promise):
        check_selection(broken, draws=DRAWS)


@pytest.mark.slow
def test_the_kit_refuses_a_race_that_forgets_other_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a runner-up whose first word ties, 16,384 actions or more away, is not seen."""
    runners = len  # whatever their keys are, one counts
    monkeypatch.setattr(race, "sum", lambda keys: min(1, runners(list(keys))), raising=False)
    with pytest.raises(AssertionError, match="many actions and rows; of 40000 actions"):
        check_selection(GOOD, draws=10_000)


def test_the_kit_refuses_a_law_that_prefers_large_sums() -> None:
    class Backwards(Broken):
        def log_probabilities(
            self, sums: NDArray[np.int64], prior: Prior | None = None
        ) -> NDArray[np.float64]:
            return self.law.log_probabilities(-sums, prior)

    with pytest.raises(AssertionError, match="smaller sums are likelier"):
        check_selection(Backwards(GOOD, GOOD))


# The laws

HANDICAPS: list[list[float]] = [
    [0, 0],
    [0, 1],
    [0, 1e-9],
    [0, 5000],
    [0, 0, 0],
    [0, 0.25, 1e-9],
    [0, 3, 700, 5000],
    [0, 0, 200, 3000.25],
    [0, 100, 100.5, 2000],
    [0, 1e-5, 60, 120, 900],
    [0] * 7,
    [0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8],
    [0.0] * 6 + [800],
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exponential", "permute_and_flip", "laplace"])
@pytest.mark.parametrize("s", HANDICAPS, ids=str)
def test_a_law_has_twelve_digits(name: str, s: list[float]) -> None:
    """Against exact algebra with enough digits for e^−5000, by probability, not by logarithm.

    Terms of size 1 leave e^−s when they cancel: s/ln 10 digits are lost, twice as many are there.
    """
    with mp.workdps(80 + int(max(s))):
        exact = getattr(laws_by_hand, name)(s)
        law = getattr(laws, name)(np.array(s))
        for ours, true in zip(law.tolist(), exact, strict=True):
            assert abs(mp.expm1(mp.mpf(ours) - true)) < 1e-12


@pytest.mark.parametrize("name", ["permute_and_flip", "laplace"])
@pytest.mark.parametrize("shape", ["equal", "dense", "spread", "one ahead", "behind a plateau"])
def test_a_law_of_many_actions_sums_to_one(name: str, shape: str) -> None:
    """Every term is positive, so a wrong panel anywhere would show in the sum; 10⁴ actions."""
    count = 10_000
    s = {
        "equal": np.zeros(count),
        "dense": np.arange(count) * 1e-3,
        "spread": np.arange(count) * 0.5,
        "one ahead": np.r_[0, np.full(count - 1, 12.0)],
        "behind a plateau": np.r_[0, 1000 + np.arange(count - 1) / count],
    }[shape]
    logs = getattr(laws, name)(s)
    assert np.exp(logs).sum() == pytest.approx(1, abs=1e-13)
    assert np.all(np.diff(logs) <= 0)


@pytest.mark.parametrize("name", ["permute_and_flip", "laplace"])
def test_is_a_law_that_is_remembered_the_one_that_was_computed(name: str) -> None:
    """Of few actions, in any order, and nobody who changes an answer changes the next one."""
    law = getattr(laws, name)
    one, another, _, last = getattr(laws, f"_{name}")(np.array([0.0, 0.0, 1.5, 3.0]))
    assert one == another
    first = law(np.array([3.0, 0.0, 1.5, 0.0]))
    assert first[[0, 1, 3]].tolist() == [last, one, one]
    first[:] = 0
    assert law(np.array([0.0, 1.5, 3.0, 0.0]))[[0, 2, 3]].tolist() == [one, last, one]


@every_kind
def test_a_law_knows_sums_and_priors_exactly(kind: type[Ours]) -> None:
    """Sums near 2⁶¹ and priors in thirds are not rounded before they are compared."""
    base = 1 << 61
    sums = np.array([base, base + UNIT // 3, base - 5], np.int64)
    prior = Prior(np.array([[1, 3, -2]]), 3)
    assert prior.numerators_of(row=0, actions=np.arange(3)) == [1, 3, -2]
    small = np.array([5, 5 + UNIT // 3, 0], np.int64)
    mechanism = kind(Fraction(1, 3))
    law = mechanism.log_probabilities(sums, prior)
    assert np.array_equal(law, mechanism.log_probabilities(small, prior))
    handicaps = [
        Fraction(1, 3) * int(small[i]) / UNIT - Fraction([1, 3, -2][i], 3) for i in range(3)
    ]
    s = [float(h - min(handicaps)) for h in handicaps]
    name = {Exponential: "exponential", PermuteAndFlip: "permute_and_flip"}.get(kind, "laplace")
    with mp.workdps(50):
        exact = getattr(laws_by_hand, name)(s)
    assert law == pytest.approx([float(x) for x in exact], rel=1e-12)


def test_permute_and_flip_never_expects_worse_than_the_exponential_mechanism() -> None:
    """McKenna & Sheldon 2020, Theorem 2, and the Laplace law in between nowhere better."""
    for gaps in ([0, 1], [0, 1, 2, 3], [0, 0, 5], list(range(20))):
        sums = np.array(gaps, np.int64) * UNIT
        loss = [float(np.exp(kind(HALF).log_probabilities(sums)) @ sums) for kind in KINDS]
        assert loss[1] <= loss[0] + 1e-6


# The race


@pytest.mark.slow
@every_kind
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_floats_and_decimals_name_the_same_winner(kind: type[Ours], data: st.DataObject) -> None:
    """Any sums, rate, prior and width of the words: the forced exact path agrees row by row."""
    rows, actions = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 6))
    most = data.draw(st.sampled_from([1, UNIT, 100 * UNIT, 1 << 61]))
    sums = data.draw(
        st.lists(
            st.lists(st.integers(-most, most), min_size=actions, max_size=actions),
            min_size=rows,
            max_size=rows,
        )
    )
    mechanism = kind(data.draw(st.fractions(Fraction(1, 1000), 1000, max_denominator=10**6)))
    bits: Bits = draws(rows, seed=data.draw(st.integers(0, 10**6)))
    width = data.draw(st.sampled_from([64, 64, 53, 54, 60, 52, 20, 6, 2]))
    if width != 64:
        bits = CoarseBits(bits, width=width)
    prior = data.draw(priors(rows, actions))
    table = np.array(sums, np.int64)
    fast = mechanism.select(table, bits, prior)
    assert np.array_equal(fast, mechanism.select_exactly(table, bits, prior))


@every_kind
def test_a_prior_counts_where_floats_leave_a_draw_open(kind: type[Ours]) -> None:
    mechanism, prior = kind(HALF), Prior.incumbent(np.zeros(20, np.int64), Fraction(1))
    table, bits = np.zeros((20, 3), np.int64), CoarseBits(draws(20), width=2)
    winners = mechanism.select(table, bits, prior)
    assert np.array_equal(winners, mechanism.select_exactly(table, bits, prior))
    assert not np.array_equal(winners, mechanism.select(table, bits))


@st.composite
def priors(draw: st.DrawFn, rows: int, actions: int) -> Prior | None:
    kind = draw(st.sampled_from(["none", "incumbent", "dense", "huge"]))
    if kind == "none":
        return None
    if kind == "incumbent":
        chosen = draw(st.lists(st.integers(0, actions - 1), min_size=rows, max_size=rows))
        return Prior.incumbent(np.array(chosen), draw(st.fractions(-3, 3, max_denominator=99)))
    most = 10 if kind == "dense" else 1 << 62
    numerators = draw(
        st.lists(
            st.lists(st.integers(-most, most), min_size=actions, max_size=actions),
            min_size=rows,
            max_size=rows,
        )
    )
    return Prior(np.array(numerators, np.int64), draw(st.sampled_from([1, 3, 1 << 20])))


@every_kind
@pytest.mark.parametrize("actions", [2, 10, 64, 65, 1024, 1025, 40_000])
def test_every_layout_names_the_same_winner(kind: type[Ours], actions: int) -> None:
    """Blocks, rows and chunks are ways to lie in memory; alone or together changes nothing."""
    rows = 5
    sums = (np.arange(rows * actions).reshape(rows, actions) * 7919) % (8 * UNIT)
    prior = Prior.incumbent(np.array([0, 1, actions - 1, actions // 2, 0]), Fraction(9))
    numerators = np.zeros((rows, actions), np.int64)
    numerators[np.arange(rows), prior.actions] = 27
    bits = draws(rows)
    mechanism = kind(Fraction(4))
    together = mechanism.select(sums, bits, prior)
    assert np.array_equal(together, mechanism.select(sums, bits, Prior(numerators, 3)))
    for row in range(rows):
        alone = slice(row, row + 1)
        own = bits.part(row, row + 1)
        assert mechanism.select(sums[alone], own, prior.part(row, row + 1)) == together[row]


@every_kind
def test_blocks_of_many_rows_join(kind: type[Ours]) -> None:
    """More rows than a block holds, and none."""
    sums = np.tile(np.arange(3) * UNIT, (25_000, 1))
    bits = draws(25_000)
    together = kind(HALF).select(sums, bits)
    halves = [kind(HALF).select(sums[:12_345], bits.part(0, 12_345))]
    halves.append(kind(HALF).select(sums[12_345:], bits.part(12_345, 25_000)))
    assert np.array_equal(together, np.concatenate(halves))
    nobody = Prior.incumbent(np.zeros(0, np.int64), Fraction(1))
    for prior in (None, nobody):
        assert kind(HALF).select(np.zeros((0, 3), np.int64), draws(0), prior).shape == (0,)


ONES = 2**64 - 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (PermuteAndFlip, [ONES >> 1, 0]),
        (Exponential, [ONES >> 1, 0]),
        (NoisyMaxLaplace, [ONES >> 2, 0]),
    ],
)
@pytest.mark.parametrize("extra", [1, 2])
def test_an_action_beyond_float_support_can_win(
    kind: type[Ours], words: list[int], extra: int
) -> None:
    """800 noise units behind, exp(−800) = 0 in floats: 1,200 zero bits in a row must still let it
    win, 600 must not. A float softmax gives it probability exactly 0."""
    units = 800
    sums = np.array([[0, 2 * units * UNIT]] * extra, np.int64)  # `extra`: by row and by block
    unlikely = Scripted([words] * extra, *[0] * 19, 1)
    assert kind(HALF).select(sums, unlikely).tolist() == [1] * extra
    close = Scripted([words] * extra, *[0] * 8, ONES)
    assert kind(HALF).select(sums, close).tolist() == [0] * extra
    assert np.exp(-units) > 0 or kind(HALF).log_probabilities(sums[0])[1] > -units - 10


@every_kind
@pytest.mark.parametrize("rows", [1, 3])
def test_extreme_words_go_to_the_exact_path(kind: type[Ours], rows: int) -> None:
    """All zeros, all ones and their neighbours: infinite gaps, no warning, the exact winner."""
    extremes = [0, ONES, 1 << 63, (1 << 63) - 1, 1 << 11, ONES - (1 << 11)]
    for first in extremes:
        for second in extremes:
            bits = Scripted([[first, second, 5 << 60]] * rows, 12345, ONES // 3)
            sums = np.array([[0, 1, UNIT]] * rows, np.int64)
            exact = kind(HALF).select_exactly(sums, bits)
            assert np.array_equal(kind(HALF).select(sums, bits), exact)


@every_kind
def test_a_source_that_never_decides_is_refused(kind: type[Ours]) -> None:
    """Two actions with the same bits for ever: a broken source, not a reason to hang."""
    with pytest.raises(StateMismatch, match="randomness"):
        kind(HALF).select(np.zeros((1, 2), np.int64), Scripted([[5 << 60, 5 << 60]], 7))


@every_kind
def test_close_keys_are_settled_by_further_bits(kind: type[Ours]) -> None:
    """Equal first words: the deeper ones decide, on either path."""

    class Apart(Scripted):
        def more(self, row: int, position: int, level: int) -> int:
            return position + 1 if level == 3 else 9

        def part(self, start: int, stop: int) -> Apart:
            return Apart(self.given[start:stop].tolist())

    for rows in (1, 2):
        sums = np.zeros((rows, 3), np.int64)
        winners = kind(HALF).select(sums, Apart([[5 << 59] * 3] * rows))
        assert winners.tolist() == [0] * rows  # the least V wins, where a leading 0 is good luck


@every_kind
def test_a_gap_bounds_the_cell(kind: type[Ours]) -> None:
    """lower + gap is above the noise at the cell's upper end, and lower below it, for words of
    every size: the certificate that the race rests on, against decimals."""
    noise = kind.noise
    precision = Precision.of_bits(128)
    words = np.array(
        [1 << k for k in range(12, 64)] + [(1 << k) - 1 for k in range(13, 64)] + [ONES - 4095],
        np.uint64,
    )
    constant = 0.0
    for width in (64, 20, 6):
        kept = words >> np.uint64(64 - width) << np.uint64(64 - width)
        lower = np.zeros(len(kept))
        with np.errstate(divide="ignore"):
            noise.add_lower(lower, kept, width)
            gaps = noise.gap(kept, width)
        if kind is PermuteAndFlip:
            constant = min(53, width) * np.log(2)
        for word, low, gap in zip(kept.tolist(), (lower - constant).tolist(), gaps, strict=True):
            true = noise.enclose(Digits(0, 0, word >> (64 - width), width), precision)
            assert float(true.low) >= low - 2.0**-42
            if np.isfinite(gap):  # extreme words promise nothing
                assert float(true.high) <= low + gap + 2.0**-42


def test_enclosures_contain_the_true_value() -> None:
    """ln of awkward rationals, against 60 digits."""
    with mp.workdps(60):
        for size in (6, 64, 120):
            precision = Precision.of_bits(size)
            for numerator in (0, 1, 3, (1 << size) // 3, (1 << size) - 2, (1 << size) - 1):
                interval = precision.logarithm(precision.fraction(numerator, size))
                high = mp.log(mp.mpf(numerator + 1) / (1 << size))
                assert mp.mpf(str(interval.high)) >= high - mp.mpf(10) ** -55
                if numerator:
                    low = mp.log(mp.mpf(numerator) / (1 << size))
                    assert mp.mpf(str(interval.low)) <= low + mp.mpf(10) ** -55
                    width = float(high - low) * (1 + 1e-6)  # as narrow as two logarithms
                    assert float(interval.high - interval.low) <= width + 10.0 ** (
                        -1 - size * 31 // 100
                    )
                else:
                    assert interval.low == Decimal("-Infinity")


def test_exact_arithmetic_on_intervals_rounds_outwards() -> None:
    precision = Precision.of_bits(64)
    third = Interval(Decimal(1), Decimal(1)).times(Fraction(1, 3), precision)
    assert Fraction(third.low) < Fraction(1, 3) < Fraction(third.high)
    sum_ = Interval(Decimal(1), Decimal(1)).plus(Fraction(1, 3), precision)
    assert Fraction(sum_.low) < Fraction(4, 3) < Fraction(sum_.high)
    assert Interval(Decimal(-1), Decimal(2)).clipped() == Interval(Decimal(0), Decimal(2))


# What is refused


@every_kind
@pytest.mark.parametrize(
    "rate", [0.5, Fraction(0), Fraction(-1), Fraction(1, 1 << 600), Fraction(1 << 600), 1]
)
def test_a_rate_that_floats_cannot_bound_is_refused(kind: type[Ours], rate: object) -> None:
    with pytest.raises(InvalidConfig, match="not a rate"):
        kind(rate)  # type: ignore[arg-type]


@every_kind
@pytest.mark.parametrize(
    "sums",
    [
        np.zeros((1, 1), np.int64),
        np.zeros((1, 3)),
        np.zeros(3, np.int64),
        np.zeros((1, 1_000_001), np.int64),
    ],
)
def test_sums_of_the_wrong_shape_are_refused(kind: type[Ours], sums: NDArray[Any]) -> None:
    with pytest.raises(InvalidConfig, match="sums: wrong array"):
        kind(HALF).select(sums, draws(1))
    with pytest.raises(InvalidConfig, match="sums: wrong array"):
        kind(HALF).log_probabilities(np.zeros((2, 2), np.int64))


@every_kind
def test_bits_for_other_rows_are_refused(kind: type[Ours]) -> None:
    with pytest.raises(InvalidConfig, match="bits: draws and rows differ"):
        kind(HALF).select(np.zeros((2, 2), np.int64), draws(3))


def test_a_prior_that_is_none_is_refused() -> None:
    good = np.zeros(2, np.int64)
    makes: tuple[Callable[[], Prior], ...] = (
        lambda: Prior(np.zeros((1, 2)), 1),  # type: ignore[arg-type]
        lambda: Prior(good, 1),
        lambda: Prior(np.zeros((1, 2), np.int64), 0),
        lambda: Prior.incumbent(good, Fraction(1 << 63)),
        lambda: Prior(good, 1, np.zeros(3, np.int64)),
        lambda: Prior(np.zeros((2, 2), np.int64), 1, good),
    )
    for make in makes:
        with pytest.raises(InvalidConfig, match="prior"):
            make()


@pytest.mark.parametrize(
    "prior",
    [
        Prior.incumbent(np.array([0, 3]), Fraction(1)),
        Prior.incumbent(np.array([0, -1]), Fraction(1)),
        Prior.incumbent(np.array([0]), Fraction(1)),
        Prior(np.zeros((2, 4), np.int64), 1),
    ],
)
def test_a_prior_for_other_sums_is_refused(prior: Prior) -> None:
    with pytest.raises(InvalidConfig, match="prior: does not fit the sums"):
        GOOD.select(np.zeros((2, 3), np.int64), draws(2), prior)


def test_mechanisms_are_values() -> None:
    """Printable, comparable, hashable by name and rate."""
    assert GOOD == PermuteAndFlip(HALF) != PermuteAndFlip(Fraction(1))
    assert repr(GOOD) == "PermuteAndFlip(rate=Fraction(1, 2))"
    assert len({kind(HALF).name for kind in KINDS}) == 3
