"""Are the bits addressed, fresh or reproducible, and never shared between two purposes?"""

from __future__ import annotations

import json
import os
from inspect import signature
from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig
from streamdp.core.randomness import (
    Bits,
    Purpose,
    Randomness,
    SeededRandomness,
    SystemRandomness,
    uniform_integers,
)
from streamdp.lab.audit.sampler import chi2
from streamdp.lab.kits.selection import CoarseBits
from tests import golden_draws
from tests.support.scripted_bits import Scripted

Tags = NDArray[np.uint8]


def tags_of(randomness: Randomness, keys: list[bytes | None], *, stream: str = "s") -> Tags:
    made = [randomness.tag(stream, 0, key, 1, 0) for key in keys]
    return np.frombuffer(b"".join(made), np.uint8).reshape(-1, 16)


def seeded(rows: int, *, seed: int | bytes | str = 7, purpose: int = Purpose.SELECTION) -> Bits:
    source = SeededRandomness(seed)
    tags = tags_of(source, [str(row).encode() for row in range(rows)])
    return source.bits("s", purpose, tags, np.arange(rows))


def fresh(rows: int) -> Bits:
    source = SystemRandomness()
    return source.bits("s", Purpose.SELECTION, tags_of(source, [b"k"] * rows), np.arange(rows))


@pytest.mark.parametrize("make", [seeded, fresh])
@pytest.mark.parametrize("rows", [1, 3, 400])
def test_the_same_address_holds_the_same_word(make: object, rows: int) -> None:
    """However it is read: at once, from an odd start, past the ready-made counters, by row."""
    bits = make(rows)  # type: ignore[operator]
    whole = bits.words(0, 41)
    assert whole.shape == (rows, 41)
    assert np.array_equal(bits.words(0, 41), whole)
    for start, count in ((0, 1), (1, 1), (3, 17), (8, 33), (40, 1)):
        assert np.array_equal(bits.words(start, count), whole[:, start : start + count])
    last = rows - 1
    assert np.array_equal(bits.part(last, rows).words(5, 9), whole[last:, 5:14])
    assert bits.part(last, rows).rows == 1
    far = (1 << 14) - 3
    assert np.array_equal(bits.words(far, 6)[:, 4:], bits.words(far + 4, 2))
    assert bits.more(last, 5, 1) == bits.more(last, 5, 1) == bits.part(last, rows).more(0, 5, 1)


@pytest.mark.parametrize("make", [seeded, fresh])
def test_no_two_addresses_share_bits(make: object) -> None:
    """2⁻⁶⁴ for each of about 3·10⁶ pairs: a false alarm is rarer than 10⁻¹²."""
    bits = make(20)  # type: ignore[operator]
    words = bits.words(0, 100).ravel().tolist()
    deeper = [bits.more(r, p, level) for r in range(5) for p in range(20) for level in (1, 2, 3)]
    assert len({*words, *deeper}) == len(words) + len(deeper)


def test_no_word_of_many_system_rows_comes_twice() -> None:
    """120,000 rows of one batch, two words each, and as many of the next: 2⁻⁶⁴ for each of 10¹¹
    pairs, so a false alarm is rarer than 10⁻⁸."""
    words = np.concatenate([fresh(120_000).words(0, 2), fresh(120_000).words(0, 2)])
    assert len(np.unique(words)) == words.size


def test_every_batch_of_draws_takes_32_bytes_of_the_systems_entropy() -> None:
    """Fresh ones for each batch, and each of their 256 bits changes the words."""
    asked: list[int] = []
    entropy = bytearray(range(32))

    def given(count: int) -> bytes:
        asked.append(count)
        return bytes(entropy)

    assert signature(SystemRandomness).parameters["entropy"].default is os.urandom
    source, words = SystemRandomness(given), set()
    for bit in range(256):
        entropy[bit // 8] ^= 1 << bit % 8
        rows = np.arange(1 + bit % 3)
        words.add(
            int(source.bits("s", 1, np.zeros((len(rows), 0), np.uint8), rows).words(0, 1)[0, 0])
        )
        entropy[bit // 8] ^= 1 << bit % 8
    assert len(words) == 256
    assert asked == [32] * 256


def test_fresh_bits_are_fresh() -> None:
    """Nothing is kept from one batch of draws to the next."""
    assert not np.array_equal(fresh(3).words(0, 4), fresh(3).words(0, 4))
    assert not SystemRandomness().seeded
    assert SystemRandomness().tag("s", 0, b"k", 1, 5) == bytes(16)


def test_seeded_bits_are_a_function_of_seed_and_identity() -> None:
    """Every part of the identity, the purpose, the index and the seed changes all words."""
    words = []
    for seed in (7, "7", b"7", 8, -7):
        words.append(seeded(1, seed=seed).words(0, 2))
        assert np.array_equal(seeded(1, seed=seed).words(0, 2), words[-1])
    source = SeededRandomness(7)
    identities = [
        ("s", 0, b"0", 1, 1),
        ("t", 0, b"0", 1, 0),
        ("s", 1, b"0", 1, 0),
        ("s", 0, None, 1, 0),
        ("s", 0, b"", 1, 0),
        ("s", 0, b"0", 2, 0),
    ]
    for identity in identities:
        tags = np.frombuffer(source.tag(*identity), np.uint8).reshape(1, 16)
        words.append(source.bits("s", Purpose.SELECTION, tags, np.zeros(1, np.int64)).words(0, 2))
    tags = tags_of(source, [b"0"])
    for stream, purpose, index in (("t", 1, 0), ("s", 0, 0), ("s", 7, 0), ("s", 1, 1)):
        words.append(source.bits(stream, purpose, tags, np.full(1, index)).words(0, 2))
    assert not any(np.intersect1d(a, b).size for a, b in combinations(words, 2))
    assert source.seeded


def test_an_encoding_is_unambiguous() -> None:
    """Streams and keys that read alike when glued together stay apart."""
    source = SeededRandomness(1)
    assert source.tag("ab", 1, b"c", 1, 0) != source.tag("a", 1, b"bc", 1, 0)
    assert source.tag("a", 11, b"", 1, 0) != source.tag("a", 1, b"1", 1, 0)
    assert source.tag("a", 1, b"", 11, 0) != source.tag("a", 1, b"", 1, 10)


def test_numpy_integers_name_the_same_learner() -> None:
    """Where an offset comes from must not change the draw."""
    source = SeededRandomness(1)
    assert source.tag("a", np.int64(3), b"k", np.int64(1), np.int64(9)) == source.tag(  # type: ignore[arg-type]
        "a", 3, b"k", 1, 9
    )


@pytest.mark.parametrize("seed", [1.5, True, None, ["a"]])
def test_a_seed_that_is_none_is_refused(seed: object) -> None:
    with pytest.raises(InvalidConfig, match="not a seed"):
        SeededRandomness(seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(("position", "level"), [(0, 0), (0, 1 << 24), (1 << 40, 1), (-1, 1)])
def test_an_address_that_would_repeat_is_refused(position: int, level: int) -> None:
    with pytest.raises(ValueError, match="no such address"):
        fresh(1).more(0, position, level)


def test_no_draws_at_all_are_fine() -> None:
    assert fresh(0).words(0, 5).shape == (0, 5)
    assert uniform_integers(fresh(0), np.zeros(0, np.int64)).shape == (0,)


def test_half_of_all_bits_are_ones() -> None:
    """Each of 64 places within 6 standard deviations: a false alarm once in 8 million seeds."""
    words = seeded(1, seed=11).words(0, 100_000)[0]
    ones = [int((words >> np.uint64(place) & np.uint64(1)).sum()) for place in range(64)]
    assert max(abs(count - 50_000) for count in ones) < 6 * sqrt(25_000)


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 2**62)), min_size=1, max_size=5),
    st.integers(0, 2**64 - 1),
)
def test_a_uniform_integer_is_the_floor_of_n_times_v(
    draws: list[tuple[int, int]], further: int
) -> None:
    """Whatever n and the bits: exact arithmetic on 128 known digits never contradicts."""
    words, ns = zip(*draws, strict=True)
    integers = uniform_integers(
        Scripted([[word] for word in words], further), np.array(ns, np.int64)
    )
    for word, n, value in zip(words, ns, integers.tolist(), strict=True):
        known = word << 64 | further
        assert (n * known) >> 128 <= value <= (n * (known + 1) - 1) >> 128


@pytest.mark.parametrize(("further", "integer"), [(0, 0), (2**64 - 1, 1)])
def test_a_word_that_leaves_a_uniform_integer_open_is_not_the_last(
    further: int, integer: int
) -> None:
    """One third, as far as 64 digits say."""
    third = Scripted([[(2**64 - 1) // 3]], further)
    assert uniform_integers(third, np.array([3])).tolist() == [integer]


@pytest.mark.parametrize("n", [1, 2, 7, 1 << 32, (1 << 32) + 1, 3 << 60])
def test_extreme_words_stay_in_range(n: int) -> None:
    ends = Scripted([[0], [2**64 - 1]], 0, 2**64 - 1)
    assert uniform_integers(ends, np.full(2, n)).tolist() == [0, n - 1]


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 40, 6])
def test_uniform_integers_are_uniform(width: int) -> None:
    """χ² at 10⁻⁹, for words of any width, n that divides nothing and different n per row."""
    bits = CoarseBits(seeded(70_000, seed=3), width=width)
    n = np.where(np.arange(70_000) % 2 == 0, 7, 3)
    integers = uniform_integers(bits, n)
    for size in (7, 3):
        counts = np.bincount(integers[n == size], minlength=size)
        assert chi2(counts, np.full(size, 35_000 / size)).passed


@pytest.mark.parametrize("n", [0, -1, (1 << 62) + 1])
def test_a_range_that_is_none_is_refused(n: int) -> None:
    with pytest.raises(InvalidConfig, match="out of range"):
        uniform_integers(fresh(1), np.array([n]))


def test_seeded_draws_are_those_of_the_golden_file() -> None:
    """Words, winners and noise under a seed are what they always were, on every platform. To be
    made anew only for a reason that the commit states: `python -m tests.golden draws`."""
    golden = json.loads(golden_draws.GOLDEN.read_text())
    current = json.loads(json.dumps(golden_draws.current()))
    assert current.keys() == golden.keys()
    for part, draws in golden.items():
        assert current[part] == draws, part
