"""Does a replay make the releases of the live engine and of the live service, bit for bit?"""

from __future__ import annotations

import pytest

from streamdp.lab.common.bench import Bench
from tests.support.replayed import EVERYONE, Pieces, cells, made_up, replayed
from tests.support.replayed import lived as engines

BENCH = Bench((3, 7), stream="home", epoch=2)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [1, 6])
def test_is_every_cell_the_live_engine(keys: int) -> None:
    """Every recipe, several schedules, two budgets and seeds; keys over two partitions."""
    log, asked = made_up(1500, seed=keys, keys=keys), cells()
    assert replayed(log, asked, BENCH) == engines(log.portions(), asked, BENCH)


def test_does_it_matter_how_the_log_is_cut() -> None:
    whole = made_up(700, seed=2, keys=4)
    small = Pieces(whole.losses, whole.keys, whole.partitions, step=13)
    asked = cells(EVERYONE[:2])
    assert replayed(whole, asked, BENCH) == replayed(small, asked, BENCH)


def test_would_other_bits_be_noticed() -> None:
    """Another stream, epoch or seed makes other releases: the equality above is no accident."""
    log, asked = made_up(1500, seed=1), cells(EVERYONE[:1])
    usual = list(replayed(log, asked, BENCH).values())
    for other in (Bench((3, 7), "shop", 2), Bench((3, 7), "home", 1), Bench((4, 8), "home", 2)):
        assert list(replayed(log, asked, other).values()) != usual
