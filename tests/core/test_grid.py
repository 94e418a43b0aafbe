"""Is the fast way of putting losses on the grid the definition, for every float32?"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig
from streamdp.core.grid import (
    GRID_BITS,
    NULL,
    UNIT,
    Quantiser,
    as_float32,
    as_vector,
    centred_gain,
    centred_gains,
    column_sums,
    grid_sums,
    quantise,
    share_of,
    shares_of,
)

ONE_AS_BITS = int(np.float32(1).view(np.uint32))
HOSTILE = np.array(
    [
        0x00000000, 0x80000000,  # zeros of both signs
        0x00000001, 0x007FFFFF, 0x80000001,  # subnormals
        0x00800000,  # the smallest normal
        0x3F7FFFFF, 0x3F800000, 0x3F800001,  # around 1
        0x40E00000, 0x41000000, 0xC1000000, 0xC1100000,  # around ±8, where the fast path adds
        0x7F7FFFFF, 0xFF7FFFFF,  # huge
        0x7F800000, 0xFF800000,  # infinities
        0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC12345,  # NaN, any payload
    ],
    dtype=np.uint32,
).view(np.float32)  # fmt: skip


def fast(losses: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Grid and nulls by the fast path, row by row."""
    quantiser = Quantiser(losses.shape[1])
    grid, nulls = [], []
    for begin in range(0, len(losses), quantiser.chunk):
        shifted, null = quantiser.shift(losses[begin : begin + quantiser.chunk])
        grid.append(shifted.view(np.uint32).astype(np.int64) - 0x41000000)
        nulls.append(null)
    return np.concatenate(grid), np.concatenate(nulls)


def equal(losses: NDArray[np.float32]) -> None:
    """The fast path gives what the definition gives."""
    for given_, wanted in zip(fast(losses), quantise(losses), strict=True):
        np.testing.assert_array_equal(given_, wanted)


def test_is_the_definition_the_rounded_and_clipped_loss() -> None:
    """Against exact fractions: round half to even of clip(x)·2**20, 1/2 for what is not finite."""
    generator = np.random.default_rng(1)
    some = generator.integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32)
    for loss in [*HOSTILE.tolist(), *some.tolist(), 0.5 / UNIT, 1.5 / UNIT, 2.5 / UNIT]:
        grid, null = quantise(np.array([[loss, 0.0]], dtype=np.float32))
        if np.isfinite(np.float32(loss)):
            assert grid[0, 0] == round(min(max(Fraction(loss), Fraction(0)), Fraction(1)) * UNIT)
            assert (grid[0, 1], null.tolist()) == (0, [False])
        else:
            assert grid.tolist() == [[NULL, NULL]]
            assert null.tolist() == [True]


def test_is_the_fast_path_the_definition_all_over_the_unit_interval() -> None:
    """Every 509th float32 in [0, 1] (from 0 up, subnormals too), and all around ties and ends."""
    sampled = np.arange(0, ONE_AS_BITS + 1, 509, dtype=np.uint32)  # a prime: every last digit
    ends = np.concatenate([np.arange(5000), ONE_AS_BITS - np.arange(5000)]).astype(np.uint32)
    ties = ((np.arange(0, UNIT, 37) + 0.5) / UNIT).astype(np.float32).view(np.uint32)
    ties = np.concatenate([ties - 1, ties, ties + 1]).astype(np.uint32)
    points = [(np.arange(UNIT + 1) / UNIT).astype(np.float32).view(np.uint32)]
    bits = np.concatenate([sampled, ends, ties, *points])
    equal(bits[: len(bits) // 8 * 8].view(np.float32).reshape(-1, 8))


def test_is_the_fast_path_the_definition_on_hostile_values() -> None:
    """Every pair of hostile values in a row, and random bits."""
    left, right = np.meshgrid(HOSTILE, HOSTILE)
    equal(np.stack([left.ravel(), right.ravel()], axis=1))
    generator = np.random.default_rng(2)
    equal(generator.integers(0, 2**32, (50_000, 3), dtype=np.uint32).view(np.float32))


@pytest.mark.parametrize("actions", [2, 3, 10, 100, 512, 513, 1000])
@pytest.mark.parametrize("rows", [0, 1, 2, 255, 4095, 4096, 5000])
def test_are_fast_sums_the_sums_of_the_definition(actions: int, rows: int) -> None:
    """Any shape, with bad rows among good ones; the sums of a chunk may fill all 32 bits."""
    generator = np.random.default_rng(actions + rows)
    losses = np.ones((rows, actions), dtype=np.float32)
    losses[::2] = generator.random((len(losses[::2]), actions), dtype=np.float32) * 1.2 - 0.1
    losses[generator.random(rows) < 0.01, actions // 2] = np.inf
    sums, nulls = column_sums(Quantiser(actions), losses)
    grid, null = quantise(losses)
    np.testing.assert_array_equal(sums, grid.sum(axis=0))
    np.testing.assert_array_equal(nulls, null)


def test_do_the_most_rows_of_ones_fit_a_sum() -> None:
    """4095 rows of 1 are below 2**32; one more would not be."""
    shifted, _ = Quantiser(2).shift(np.ones((4095, 2), dtype=np.float32))
    assert grid_sums(shifted).tolist() == [4095 << GRID_BITS] * 2
    assert 4096 << GRID_BITS == 2**32


def test_are_more_actions_than_a_chunk_holds_summed_too() -> None:
    """At the most actions a chunk is a single row."""
    quantiser = Quantiser(10**6)
    assert quantiser.chunk == 1
    losses = np.random.default_rng(3).random((2, 10**6), dtype=np.float32)
    sums, _ = column_sums(quantiser, losses)
    np.testing.assert_array_equal(sums, quantise(losses)[0].sum(axis=0))


def test_does_a_bad_row_null_only_itself() -> None:
    """P1, judged row by row, wherever in the row the bad value stands."""
    losses = np.tile(np.array([0.25, 0.75, 1.0], dtype=np.float32), (9, 1))
    losses[[2, 4, 6], [0, 1, 2]] = [np.nan, np.inf, -np.inf]
    grid, null = fast(losses)
    assert np.flatnonzero(null).tolist() == [2, 4, 6]
    assert (grid[null] == NULL).all()
    assert (grid[~null] == [UNIT // 4, 3 * UNIT // 4, UNIT]).all()


def test_is_arithmetic_that_misses_bad_values_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """P3 rests on 0·∞ being NaN: where a build of numpy skips it, nothing is added at all."""
    monkeypatch.setattr(np, "einsum", lambda subscripts, rows, zeros: np.zeros(len(rows)))
    with pytest.raises(InvalidConfig, match="not that of IEEE 754; expected 0·∞ to be NaN"):
        Quantiser(3)


@pytest.mark.parametrize("actions", [2, 7, 16, 33, 100])
def test_is_a_bad_value_seen_wherever_it_stands(actions: int) -> None:
    """In every column and in every lane of wide instructions, one bad value a row."""
    columns = np.tile(np.arange(actions), 3)
    losses = np.ones((len(columns), actions), dtype=np.float32)
    losses[np.arange(len(columns)), columns] = np.repeat([np.nan, np.inf, -np.inf], actions)
    grid, null = fast(losses)
    assert null.all()
    assert (grid == NULL).all()


@given(st.lists(st.floats(width=32), min_size=2, max_size=5))
def test_does_a_loss_depend_on_its_own_vector_alone(row: list[float]) -> None:
    """P2: the same vector between any others is the same on the grid."""
    alone = quantise(np.array([row], dtype=np.float32))[0]
    around = np.full((3, len(row)), 1e30, dtype=np.float32)
    around[1] = row
    np.testing.assert_array_equal(fast(around)[0][1], alone[0])


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ([0.25, 1], [[0.25, 1]]),
        ([[0.25, 1], [0, 2]], [[0.25, 1], [0, 1]]),
        (np.array([1e300, -1e300]), [[1, 0]]),
        ([np.nan, 0.5], [[np.nan, 0.5]]),
        ([10**400, 0], [[np.nan, np.nan]]),
        ([1, 2, 3], [[np.nan, np.nan]]),
        ("text", [[np.nan, np.nan]]),
        (None, [[np.nan, np.nan]]),
        ([[[0, 0]]], [[np.nan, np.nan]]),
        ([1j, 0], [[np.nan, np.nan]]),
        (["0.25", "1"], [[np.nan, np.nan]]),
        ([b"0.25", b"1"], [[np.nan, np.nan]]),
        ([None, 1], [[np.nan, 1]]),
        ([[0.5, 1], [0.5]], [[np.nan, np.nan]]),
        ([Fraction(1, 4), 1], [[0.25, 1]]),
    ],
)
def test_does_anything_become_rows_of_float32(losses: object, wanted: object) -> None:
    """What fits is clipped and rounded to float32 once; what does not is rows of NaN."""
    rows = as_float32(losses, actions=2)
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, np.array(wanted, dtype=np.float32))


@pytest.mark.parametrize("losses", [[0.25, 7], (0, 1), np.array([1e300, -1e300]), [np.nan, 0]])
def test_is_a_vector_one_row(losses: object) -> None:
    """One event's losses become what they become among others."""
    np.testing.assert_array_equal(as_vector(losses, actions=2), as_float32(losses, actions=2))


@given(st.one_of(st.floats(), st.floats(-0.1, 1.1), st.sampled_from([2.0**-21, 3 * 2.0**-21])))
def test_one_gain_is_what_it_is_in_an_array(loss: float) -> None:
    (expected,) = centred_gains(as_float32([loss], actions=1)[:, 0])
    assert centred_gain(loss) == expected


@given(st.lists(st.floats(width=32), min_size=1, max_size=9))
def test_a_single_row_is_quantised_like_many(losses: list[float]) -> None:
    row = np.array([losses], dtype=np.float32)
    grid, null = quantise(row)
    alone, bad = Quantiser(len(losses)).single(row)
    assert (alone.tolist(), bad.tolist()) == (grid.tolist(), null.tolist())


@pytest.mark.parametrize("bits", HOSTILE.view(np.uint32).tolist())
def test_a_hostile_number_alone_is_quantised_without_a_warning(bits: int) -> None:
    """Numpy warns of a NaN that signals: in a log, that would tell of one event's content."""
    row = np.array([[bits, ONE_AS_BITS]], dtype=np.uint32).view(np.float32)
    grid, null = quantise(row)
    alone, bad = Quantiser(2).single(row)
    assert (alone.tolist(), bad.tolist()) == (grid.tolist(), null.tolist())
    again, _ = quantise(as_float32(row, actions=2))
    assert again.tolist() == grid.tolist()


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(1e-6, 1e6))
def test_one_share_of_the_largest_reward_is_what_it_is_in_an_array(
    reward: float, most: float
) -> None:
    """Within [0, 1], whatever was earned."""
    assert np.float32(share_of(reward, most)) == shares_of([reward], most)[0]
