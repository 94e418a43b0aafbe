"""Is a batch cut and summed as a dictionary of slots would, however it is laid out?"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdp as sd
from streamdp.core import grid, segments
from streamdp.core.arrays import Ints
from streamdp.core.grid import quantise
from streamdp.core.segments import Adder, Segments, cut, group
from tests.support.strategies import SCHEDULES


def by_hand(
    schedule: sd.Schedule, index: Ints, taken: dict[int, int]
) -> dict[tuple[int, int], list[int]]:
    """The places of each (key, block), slot by slot."""
    slots, places = dict(taken), defaultdict(list)
    for place, key in enumerate(index.tolist()):
        slots[key] = slots.get(key, 0) + 1
        places[key, schedule.block_of(slots[key])].append(place)
    return places


def check_cut(
    schedule: sd.Schedule, index: Ints, taken: dict[int, int]
) -> tuple[segments.Grouped, Segments]:
    """Cut a batch, and compare every column with the dictionary."""
    grouped = group(index, int(index.max()) + 1)
    before = np.array([taken.get(key, 0) for key in grouped.touched.tolist()], dtype=np.int64)
    pieces = cut(schedule, grouped, before)
    wanted = by_hand(schedule, index, taken)
    waves: dict[int, int] = defaultdict(int)
    for at, ((key, block), places) in enumerate(sorted(wanted.items())):
        seen = taken.get(key, 0) + sum(
            len(wanted[key, b]) for k, b in wanted if k == key and b < block
        )
        rows = slice(pieces.begin[at], pieces.begin[at] + pieces.length[at])
        assert grouped.places(np.arange(len(index)))[rows].tolist() == places
        assert (grouped.touched[pieces.of[at]], pieces.block[at]) == (key, block)
        assert pieces.into[at] == seen + 1 - schedule.start(block)
        assert pieces.closes[at] == (seen + len(places) + 1 == schedule.stop(block))
        assert pieces.wave[at] == waves[key]
        waves[key] += 1
    assert len(pieces.of) == len(wanted)
    return grouped, pieces


@given(
    st.sampled_from(SCHEDULES),
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.dictionaries(st.integers(0, 4), st.integers(0, 2**40)),
)
def test_is_a_batch_cut_where_keys_and_blocks_change(
    schedule: sd.Schedule, index: list[int], taken: dict[int, int]
) -> None:
    check_cut(schedule, np.array(index), taken)


def layouts() -> dict[str, Ints]:
    """Batches that are summed in different ways."""
    generator = np.random.default_rng(1)
    return {
        "one key": np.zeros(3000, dtype=np.int64),
        "two halves": np.repeat([1, 0], 700),
        "mixed": generator.integers(0, 7, 2000),
        "many keys": generator.integers(0, 900, 1000),
        "frames": np.repeat(generator.integers(0, 5, 60), 33),
        "runs among others": np.concatenate(
            [generator.integers(0, 3, 50), np.full(400, 1), generator.integers(0, 3, 50)]
        ),
        "one slot": np.zeros(1, dtype=np.int64),
    }


@pytest.mark.parametrize("keys", [1 << 16, (1 << 16) + 1])
def test_are_slots_ordered_by_key_however_many_keys_a_batch_has(keys: int) -> None:
    """Numbers of two bytes are sorted in another way: the largest of them, and the next."""
    index = np.random.default_rng(3).choice([0, 1, keys - 2, keys - 1], size=200)
    order = group(index, keys).order
    assert order is not None
    assert order.tolist() == sorted(range(200), key=lambda slot: index[slot])


@pytest.mark.parametrize("actions", [2, 9, 130])
@pytest.mark.parametrize("name", list(layouts()))
@pytest.mark.parametrize("small", [True, False], ids=["small memory", "usual memory"])
def test_are_the_sums_those_of_each_slot_alone(
    name: str, actions: int, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole segments and prefixes of them, streamed, gathered or both; bad rows among good ones.

    With little working memory and short runs streamed, small batches take every way.
    """
    if small:
        monkeypatch.setattr(grid, "_CHUNK_BYTES", 4 * actions * 40)
        monkeypatch.setattr(segments, "_LONG_RUN", 5 * actions)
    index = layouts()[name]
    generator = np.random.default_rng(actions)
    losses = generator.random((len(index), actions), dtype=np.float32)
    losses[generator.random(len(index)) < 0.05] = np.nan
    wanted, bad = quantise(losses)
    grouped = group(index, int(index.max()) + 1)
    before = generator.integers(0, 90, len(grouped.touched))
    cuts = cut(sd.geometric("2.5"), grouped, before)
    for length in (cuts.length, generator.integers(0, cuts.length + 1), cuts.length * 0):
        sums, nulls = Adder(actions).sums(losses, grouped, cuts.begin, length)
        for begin, rows, summed in zip(cuts.begin, length, sums, strict=True):
            places = grouped.places(np.arange(begin, begin + rows))
            np.testing.assert_array_equal(summed, wanted[places].sum(axis=0))
            np.testing.assert_array_equal(nulls[places], bad[places])


@pytest.mark.parametrize("actions", [9000, 70_000, 300_000])
def test_are_rows_summed_that_are_wider_than_working_memory(actions: int) -> None:
    """So many actions that fewer than 32 rows, and then only one, fit a chunk."""
    losses = np.random.default_rng(2).random((70, actions), dtype=np.float32)[: 10**7 // actions]
    index = np.arange(len(losses)) // 3 % 2
    grouped = group(index, 2)
    cuts = cut(sd.capped(20), grouped, np.array([0, 5]))
    sums, _ = Adder(actions).sums(losses, grouped, cuts.begin, cuts.length)
    for begin, rows, summed in zip(cuts.begin, cuts.length, sums, strict=True):
        places = grouped.places(np.arange(begin, begin + rows))
        np.testing.assert_array_equal(summed, quantise(losses[places])[0].sum(axis=0))


def test_does_an_adder_remember_nothing() -> None:
    """Its working memory is reused: a batch must not show in the next."""
    adder, fresh = Adder(3), Adder(3)
    generator = np.random.default_rng(3)
    index = generator.integers(0, 50, 500)
    grouped = group(index, 50)
    cuts = cut(sd.dyadic(), grouped, np.zeros(len(grouped.touched), np.int64))
    for turn in range(3):
        losses = generator.random((500, 3), dtype=np.float32) + turn
        first, _ = adder.sums(losses, grouped, cuts.begin, cuts.length)
    again, _ = fresh.sums(losses, grouped, cuts.begin, cuts.length)
    np.testing.assert_array_equal(first, again)
