"""Does what is said of a lift hold, and is nothing said where nothing can be?"""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from streamdp.core.arrays import Floats
from streamdp.core.evidence.block_tables import BlockTables, Coarse
from streamdp.core.evidence.lift import Earned, Lift
from streamdp.core.evidence.policy_posterior import NoiseVariance
from tests.support.lift_logs import Setting, logs, told

RUNS = 120


def earned(gains: Floats, shown: Floats, **options: object) -> Earned:
    lift = Lift(shown.shape[1])
    lift.add(gains, shown, noise=2.0, **options)  # type: ignore[arg-type]
    found = lift.earned()
    assert found is not None
    return found


@pytest.mark.parametrize(
    "of", [Setting(shows=16_000), Setting(20, 32_000, 0.02, world="jump", late=True)], ids=str
)
def test_intervals_hold_and_lean_to_no_side(of: Setting) -> None:
    """All of a log's at once, in learners' own draws; `tests/bench/bench_lift.py` has more logs.

    A false alarm where coverage is 95 % has a probability below 10⁻⁶, of each of the four.
    """
    log = logs(of, RUNS)
    least = next(n for n in range(RUNS) if _below(n) > 1e-6)
    for each in zip(*(told(log, run) for run in range(RUNS)), strict=True):
        held, off, wide = 0, 0.0, 0.0
        for said in each:
            both = list(zip(said.intervals, said.truths, strict=True))
            held += all(found.low <= truth <= found.high for found, truth in both)
            off += sum(found.mean - truth for found, truth in both)
            wide += sum(found.high - found.low for found, _ in both) / 2
        assert held >= least, each[0].name
        assert abs(off) < 0.2 * wide, each[0].name


def _below(held: int) -> float:
    """How likely at most so many of the runs' intervals hold."""
    return sum(comb(RUNS, n) * 0.95**n * 0.05 ** (RUNS - n) for n in range(held + 1))


def test_a_level_that_changes_is_compared_in_the_same_blocks() -> None:
    """Rewards fall to a fifth while the better action is shown more: it earns as much more."""
    shown = np.array([[5e4, 5e4], [9e4, 1e4]])
    rates = np.array([[0.5, 0.3], [0.1, 0.06]])
    found = earned(shown * (rates - 0.5), shown)
    assert found.alike is not None
    assert found.reward.mean == pytest.approx((0.4 + 0.096) / 2)
    assert found.alike.reward.mean == pytest.approx((0.4 + 0.08) / 2)
    assert found.alike.more.mean == pytest.approx(0.016 / 2)
    assert [of and round(of.reward.mean, 6) for of in found.always] == [0.3, 0.18]
    assert (found.alike.blocks, found.alike.shows, found.shows) == (2, 200_000, 200_000)


def test_blocks_that_hardly_showed_an_action_say_nothing_of_it() -> None:
    """Nor does one that never did; the others count, and what they earned stands beside."""
    shown = np.array([[500.0, 500.0], [9999.0, 1.0], [1000.0, 0.0]])
    found = earned(np.array([-0.3, -0.4]) * shown, shown)
    assert found.alike is not None
    assert (found.blocks, found.alike.blocks, found.alike.shows) == (3, 1, 1000)
    assert found.alike.reward.mean == pytest.approx(0.15)
    assert found.always[0] is not None
    assert found.always[0].shows == 12_000
    assert found.always[1] is not None
    assert found.always[1].blocks == 1


def test_blocks_that_widen_an_interval_a_little_count() -> None:
    shown = np.array([[500.0, 500.0], [1700.0, 300.0]])
    found = earned(-0.4 * shown, shown)
    assert found.alike is not None
    assert found.alike.blocks == 2


def test_nothing_is_said_where_nothing_can_be() -> None:
    """Before any show, and of what was never shown; what was shown once is said to be unsure."""
    assert Lift(2).earned() is None
    never = earned(np.array([[-400.0, 0.0]]), np.array([[1000.0, 0.0]]))
    assert (never.alike, never.always[1]) == (None, None)
    once = earned(np.array([[-400.0, -0.5]]), np.array([[1000.0, 1.0]])).always[1]
    assert once is not None
    assert (once.reward.low, once.reward.high, once.more.low, once.more.high) == (0, 1, -1, 1)


def test_noise_on_what_was_never_shown_is_in_no_mean() -> None:
    """It would move what was earned, and widen its interval, for nothing."""
    two, three = np.array([[60.0, 40.0]]), np.array([[60.0, 40.0, 0.0]])
    alone = earned(np.array([[-6.0, -12.0]]), two)
    beside = earned(np.array([[-6.0, -12.0, 30.0]]), three)
    assert alone.reward == beside.reward


def test_noise_may_take_means_below_nothing() -> None:
    """Or above all: an interval's ends are rewards all the same."""
    shown = np.array([[40.0, 40.0]])
    for gains, earned_all in ((-0.55, False), (0.55, True)):
        found = earned(gains * shown, shown)
        assert found.alike is not None
        assert found.alike.reward.mean == pytest.approx(0.5 + gains)
        assert 0 <= found.alike.reward.low <= found.alike.reward.high <= 1
        assert (found.alike.reward.high == 1) == earned_all


def test_what_may_not_be_shown_has_no_share() -> None:
    """All alike are those that the block's policy might show; a late show of another is earned."""
    shown = np.array([[4000.0, 4000.0, 10.0]])
    found = earned(
        np.array([-0.3, -0.4, 0.5]) * shown, shown, allowed=np.array([[True, True, False]])
    )
    assert found.alike is not None
    assert found.alike.reward.mean == pytest.approx(0.15)
    assert found.alike.more.mean == pytest.approx(10 * 0.85 / 8010)
    assert found.always[2] is None


def test_with_contexts_entries_are_blocks_where_policies_were_alike() -> None:
    """Blocks of all cells, of both together, and of both together where policies differed."""
    shown = np.array([[[900.0, 300.0], [300.0, 900.0]]] * 3)
    rates = np.array([[0.4, 0.2], [0.1, 0.3]])
    coarse = Coarse(
        (np.array([0, 0]), np.array([0, 1])), np.array([1, 0, 0]),
        np.array([[np.inf, 0.0], [0.005, np.inf], [0.02, np.inf]]),
    )  # fmt: skip
    tables = BlockTables(shown * (rates - 0.5), shown, NoiseVariance(2.0), coarse)
    found = Lift.of_tables(tables, [None] * 3).earned()
    assert found is not None
    assert found.alike is not None
    assert (found.blocks, found.shows, found.alike.blocks, found.alike.shows) == (3, 7200, 2, 4800)
    mixed = (0.4 * 900 + 0.1 * 300 + 0.2 * 300 + 0.3 * 900) / 2400
    assert found.alike.reward.mean == pytest.approx((0.25 + mixed) / 2)
    one = Lift.of_tables(tables, [None, np.array([True, False]), None]).earned()
    assert one is not None
    assert one.always[1] is not None
    assert one.always[1].shows == 2400
    plain = BlockTables(tables.gains[:, :1], shown[:, :1], NoiseVariance(2.0))
    each = Lift.of_tables(plain, [None] * 3).earned()
    assert each is not None
    assert each.alike is not None
    assert each.alike.reward.mean == pytest.approx(0.3)


def test_blocks_of_several_lifts_are_blocks_of_one() -> None:
    rng = np.random.default_rng(3)
    shown = rng.integers(100, 900, (6, 3)).astype(float)
    gains = shown * -0.4 + rng.laplace(0, 1, shown.shape)
    whole, parts = Lift(3), [Lift(3), Lift(3)]
    whole.add(gains, shown, noise=2.0)
    for part, some in zip(parts, (slice(0, 2), slice(2, 6)), strict=True):
        part.add(gains[some], shown[some], noise=2.0)
    one, other = whole.earned(), parts[0].joined(parts[1]).earned()
    assert one is not None
    assert other is not None
    assert (one.alike and one.alike.blocks) == (other.alike and other.alike.blocks)
    assert one.reward.mean == pytest.approx(other.reward.mean)
    for each, same in zip((one.alike, *one.always), (other.alike, *other.always), strict=True):
        assert each is not None
        assert same is not None
        assert each.reward.low == pytest.approx(same.reward.low)
        assert each.more.high == pytest.approx(same.more.high)
