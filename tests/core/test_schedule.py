"""Are block boundaries a function of the slot number alone, and the same however they are asked?"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import streamdp as sd
from streamdp.core.grid import UNIT
from streamdp.core.schedule import LAST_SLOT, dyadic, geometric, restarting, schedule_of

SCHEDULES = [
    sd.dyadic(),
    sd.geometric("2.5"),
    sd.geometric("11/10"),
    sd.geometric(3),
    sd.geometric(1000),
    sd.geometric(2, 16),
    sd.geometric("2.5", 1),
    sd.geometric("2.5", 100),
    sd.geometric(1000, LAST_SLOT - 1),
    sd.capped(1),
    sd.capped(4),
    sd.capped(7),
    sd.capped(7, first=3),
    sd.capped(LAST_SLOT - 1),
    sd.restarting(1),
    sd.restarting(7),
    sd.restarting(8),
    sd.restarting(LAST_SLOT - 1),
]


def ids(schedule: sd.Schedule) -> str:
    """A schedule in a test's name."""
    return f"{schedule.name} {schedule.parameter or ''}".strip()


@pytest.mark.parametrize(
    ("schedule", "lengths"),
    [
        (sd.dyadic(), [1, 2, 4, 8, 16, 32]),
        (sd.geometric("2.5"), [1, 3, 7, 16, 40, 98]),
        (sd.geometric("4/3"), [1, 2, 2, 3, 4, 5]),
        (sd.geometric("2.5", 30), [1, 3, 7, 16, 30, 30]),
        (sd.geometric("2.5", 16), [1, 3, 7, 16, 16, 16]),
        (sd.geometric(2, 16), [1, 2, 4, 8, 16, 16]),
        (sd.capped(1), [1, 1, 1, 1, 1, 1]),
        (sd.capped(4), [1, 2, 4, 4, 4, 4]),
        (sd.capped(5), [1, 2, 4, 5, 5, 5]),
        (sd.capped(7, first=3), [3, 6, 7, 7, 7, 7]),
        (sd.capped(4, first=4), [4, 4, 4, 4, 4, 4]),
        (sd.restarting(1), [1, 1, 1, 1, 1, 1]),
        (sd.restarting(7), [1, 2, 4, 1, 2, 4]),
        (sd.restarting(9), [1, 2, 4, 2, 1, 2]),
    ],
    ids=lambda value: ids(value) if isinstance(value, sd.Schedule) else "",
)
def test_are_the_first_blocks_as_written(schedule: sd.Schedule, lengths: list[int]) -> None:
    assert schedule.lengths(np.arange(6)).tolist() == lengths


@pytest.mark.parametrize("schedule", SCHEDULES, ids=ids)
def test_do_blocks_tile_the_slots(schedule: sd.Schedule) -> None:
    """From slot 1 on, each block begins where the one before stops, and no block is empty."""
    blocks = np.arange(40)
    starts, stops = schedule.starts(blocks), schedule.stops(blocks)
    exist = starts <= LAST_SLOT
    assert starts[0] == 1
    assert (starts[1:] == stops[:-1])[exist[1:]].all()
    assert (stops > starts)[exist].all()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=ids)
def test_does_every_slot_know_its_block(schedule: sd.Schedule) -> None:
    """Slot by slot for the first, around boundaries for the last."""
    walked = [(block, slot) for block in range(12) for slot in block_slots(schedule, block)]
    slots = np.array([slot for _, slot in walked])
    assert schedule.blocks_of(slots).tolist() == [block for block, _ in walked]
    last = schedule.block_of(LAST_SLOT)
    assert schedule.start(last) <= LAST_SLOT < schedule.stop(last)
    assert schedule.block_of(schedule.start(last) - 1) == last - 1
    assert schedule.block_of(schedule.start(last)) == last


def block_slots(schedule: sd.Schedule, block: int) -> list[int]:
    """The first and last slots of a block, all of them if it is short."""
    start, stop = schedule.start(block), min(schedule.stop(block), LAST_SLOT + 1)
    if stop - start < 200:
        return list(range(start, stop))
    return [start, start + 1, stop - 2, stop - 1]


@given(st.sampled_from(SCHEDULES), st.integers(1, LAST_SLOT))
def test_is_a_slot_within_its_block(schedule: sd.Schedule, slot: int) -> None:
    block = schedule.block_of(slot)
    assert schedule.start(block) <= slot < schedule.stop(block)


@pytest.mark.slow
@given(st.fractions(Fraction(11, 10), 50, max_denominator=1000))
def test_is_a_geometric_block_the_power_rounded_up(ratio: Fraction) -> None:
    """Exactly: no float takes part."""
    schedule = sd.geometric(ratio)
    whole = [
        -(-(ratio**r).numerator // (ratio**r).denominator) for r in range(len(schedule.prefix))
    ]
    assert list(schedule.prefix[:-1]) == whole[:-1]
    assert schedule.prefix[-1] <= whole[-1]
    assert sum(schedule.prefix) == LAST_SLOT


@given(
    st.sampled_from([2, 3, 4, 8, 1000]) | st.fractions(Fraction(11, 10), 50, max_denominator=1000),
    st.integers(1, LAST_SLOT - 1) | st.integers(0, 41).map(lambda power: 2**power),
)
@example(2, 16)
@example(3, 2**41)
def test_no_block_is_shorter_than_the_one_before_until_blocks_reach_the_longest(
    ratio: Fraction | int, longest: int
) -> None:
    """Each is the power rounded up, or `longest`; only the last slot cuts a block short."""
    schedule = sd.geometric(ratio, longest)
    power, starts = Fraction(1), [1]
    while starts[-1] <= LAST_SLOT and len(starts) < 60:
        starts.append(starts[-1] + min(math.ceil(power), longest))
        power *= ratio
    within = [start for start in starts if start <= LAST_SLOT]
    assert schedule.starts(np.arange(len(within))).tolist() == within
    if ratio == 2:
        assert schedule.prefix == sd.capped(longest).prefix


def test_is_every_dyadic_schedule_the_papers() -> None:
    """`geometric(2)` is dyadic; a cap that is never reached too."""
    assert sd.geometric(2).prefix == sd.dyadic().prefix
    long = sd.capped(2**41)
    assert [long.start(block) for block in range(42)] == [2**block for block in range(42)]


def test_can_no_sum_overflow() -> None:
    """P3: the largest sum rests on slot count and grid alone."""
    assert LAST_SLOT * UNIT <= 2**62
    assert np.iinfo(np.int64).max > 2**62
    assert all(sum(schedule.prefix) <= LAST_SLOT for schedule in SCHEDULES)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=ids)
def test_does_a_configuration_name_it_again(schedule: sd.Schedule) -> None:
    assert schedule_of(schedule.name, schedule.parameter) == schedule
    assert hash(schedule_of(schedule.name, schedule.parameter)) == hash(schedule)
    assert len(repr(schedule)) < 80


def test_are_different_schedules_different() -> None:
    assert all(one != other for one, other in pairwise(SCHEDULES))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sd.geometric(2.5), "ratio: not exact; expected a string .*, got float"),  # type: ignore[arg-type]
        (lambda: sd.geometric("1"), "out of range; expected 1.1 … 1000, got 1"),
        (lambda: sd.geometric(1001), "out of range"),
        (lambda: sd.geometric("x"), "schedule.ratio: not a number"),
        (lambda: sd.geometric("1/0"), "schedule.ratio: not a number"),
        (lambda: sd.geometric("1" + "0" * 500), "schedule.ratio: not a number"),
        (lambda: sd.capped(0), "schedule.longest: not a slot count"),
        (lambda: sd.capped(True), "schedule.longest"),
        (lambda: sd.capped(2.0), "schedule.longest"),  # type: ignore[arg-type]
        (lambda: sd.capped(LAST_SLOT), "schedule.longest"),
        (lambda: sd.restarting(-1), "schedule.every: not a slot count"),
        (lambda: schedule_of("dyadic", "2"), "schedule: unknown"),
        (lambda: schedule_of("geometric", None), "schedule: unknown"),
        (lambda: schedule_of("geometric", "5/2 to x"), "schedule: unknown"),
        (lambda: sd.geometric("5/2", 0), "schedule.longest: not a slot count"),
        (lambda: sd.capped(9, first=0), "schedule.first: not a slot count"),
        (lambda: sd.capped(4, first=9), "schedule.first: too long; expected ≤ 4 slots"),
        (lambda: schedule_of("capped", "-3"), "schedule: unknown"),
        (lambda: schedule_of("capped", "x to 9"), "schedule: unknown"),
        (lambda: schedule_of("capped", "3 to"), "schedule: unknown"),
        (lambda: schedule_of("capped", "²"), "schedule: unknown"),
        (lambda: schedule_of("restarting", "9" * 5000), "schedule: unknown"),
        (lambda: schedule_of("triadic", None), "got triadic"),
        (lambda: schedule_of("capped", " to 50"), "got capped  to 50"),
    ],
)
def test_is_what_is_no_schedule_refused_in_plain_words(make: object, said: str) -> None:
    with pytest.raises(sd.InvalidConfig, match=said):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("prefix", "tail"),
    [((3, -1), (2,)), ((0, 1), (1,)), ((1,), (0,)), ((1, 2), ()), ((), ()), ((1.5,), (1,))],
)
def test_are_blocks_that_overlap_or_leave_slots_out_refused(
    prefix: tuple[int, ...], tail: tuple[int, ...]
) -> None:
    """P4: a schedule made by hand must tile the slots too, or a slot is read twice or never."""
    with pytest.raises(sd.InvalidConfig, match="schedule mine: blocks do not tile the slots"):
        sd.Schedule("mine", None, prefix, tail)


def test_the_length_before_a_block_is_that_of_the_block_before_it() -> None:
    """Also where blocks grow for ever, and for numbers that no engine reaches."""
    for schedule in (geometric("5/2"), restarting(20), dyadic()):
        lengths = schedule.lengths(np.arange(12)).tolist()
        assert [schedule.length_before(block) for block in range(13)] == [0, *lengths]
    assert restarting(20).length_before(10**30) in restarting(20).tail
    assert dyadic().length_before(10**30) == dyadic().prefix[-1]
