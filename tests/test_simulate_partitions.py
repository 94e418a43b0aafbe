"""Do the keys of a simulated partition gain by what the other partitions tell?"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import streamdp as sd
from streamdp.lab.replay.crowd_worlds import STAGGERED
from streamdp.lab.replay.crowds import CrowdOutcome, Size, regret_left, simulate_crowds
from tests.support.calling import Streamdp

(SAME,) = [kind for kind in STAGGERED if kind.name == "same best"]


def played(size: Size) -> CrowdOutcome:
    """One kind of crowd, whose keys have the same best action."""
    (outcome,) = simulate_crowds(
        lambda epsilon, names: sd.incumbent_leader(actions=names, epsilon=epsilon),
        [Fraction(1)],
        kinds=[SAME],
        size=size,
    )
    return outcome


@pytest.mark.slow
def test_do_few_keys_in_each_partition_gain_by_what_others_tell() -> None:
    """Beside the same keys alone, and with the same losses and bits in all of them."""
    small = {"keys": 48, "actions": 6, "horizon": 600, "runs": 2}
    together, apart, across = (
        played(Size(**small, **more))  # type: ignore[arg-type]
        for more in ({}, {"partitions": 6}, {"partitions": 6, "reach": "stream"})
    )
    assert np.array_equal(together.alone, apart.alone)
    assert np.array_equal(together.alone, across.alone)
    assert regret_left([across])[0] < 0.85 * regret_left([apart])[0]
    one = played(Size(**small, reach="stream"))  # type: ignore[arg-type]
    assert np.array_equal(one.crowd, together.crowd), "there is nobody to tell"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--partitions", "7"), "keys in partitions"),
        (("--partitions", "2", "--donate"), "keys in partitions"),
        (("--crowd", "topic"), "--crowd: unknown; expected partition | stream"),
    ],
)
def test_is_a_size_that_gives_no_crowd_refused(
    streamdp: Streamdp, asked: tuple[str, ...], said: str
) -> None:
    """By the command, before anything is played."""
    result = streamdp("simulate", "--keys", "12", *asked)
    assert (result.code, said in result.err) == (2, True)
