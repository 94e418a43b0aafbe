"""Is what keys of a simulated crowd donate what they had, and does it help those that are alike?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from typer.testing import CliRunner

import streamdp as sd
from streamdp.cli import application
from streamdp.core.grid import UNIT
from streamdp.core.learners import Leader
from streamdp.core.learners.leader import donating
from streamdp.lab.replay.crowd_worlds import BESIDE, STAGGERED
from streamdp.lab.replay.crowds import CrowdOutcome, Size, regret_left, simulate_crowds
from streamdp.lab.replay.gifts import BlocksOfKeys, Gifts

SMALL = Size(keys=150, actions=5, horizon=300, runs=3, seed=1)
EPSILON = Fraction(3, 10)


def remembering(epsilon: Fraction, actions: Sequence[str]) -> Leader:
    """The default learner."""
    return sd.remembering_leader(actions=actions, epsilon=epsilon)


def played(name: str, size: Size) -> CrowdOutcome:
    """One kind at ε = .3."""
    kinds = [kind for kind in (*STAGGERED, *BESIDE) if kind.name == name]
    (outcome,) = simulate_crowds(remembering, [EPSILON], kinds=kinds, size=size)
    return outcome


@pytest.mark.slow
def test_do_keys_with_the_same_best_action_lose_less_if_they_donate() -> None:
    """Beside the same keys alone, whose losses and bits are the same."""
    kept, donated = played("same best", SMALL), played(
        "same best", replace(SMALL, donation="short blocks"))  # fmt: skip
    assert np.array_equal(kept.alone, donated.alone)
    assert regret_left([donated])[0] < 0.85 * regret_left([kept])[0]


def test_are_the_pools_slots_those_that_keys_had() -> None:
    """Each comes once, in the order of time; the pool's blocks hold them and no others."""
    generator = np.random.default_rng(1)
    lengths = np.array([1, 3, 7, 16])
    slots = np.array([2, 4, 11, 30, 0])
    had = np.clip(slots[:, None] - (np.cumsum(lengths) - lengths), 0, lengths)
    sums = generator.binomial(had[:, :, None], 0.5, (5, 4, 3)) * UNIT
    blocks = BlocksOfKeys(sums, lengths, slots, np.array([0.0, 100, 200, 300, 400]), np.ones(5))
    gifts = Gifts.of(blocks, shortest=8, generator=generator)
    assert gifts.gives.tolist() == [True, True, True, False]
    assert gifts.until.tolist() == [27, 27, 27, 27]
    assert gifts.lengths.tolist() == [1, 3, 7, 16]  # of the 28 slots that are donated
    assert gifts.ends.tolist() == [1.0, 102.0, 205.0, 310.0]
    given = had[:, :3].sum()
    assert given == 28
    all_of = sums[:, :3].sum(axis=(0, 1))
    assert (gifts.sums.sum(axis=0) <= all_of).all()
    assert (gifts.sums.sum(axis=0) >= all_of - UNIT).all()  # the last slot is in an open block
    assert (gifts.sums[:2].sum(axis=0) <= sums[:2, :2].sum(axis=(0, 1))).all()


@pytest.mark.slow
def test_do_keys_in_groups_donate_nothing() -> None:
    """A vote of the pool is of no group: the simulation is the same with it and without."""
    small = replace(SMALL, keys=16, horizon=40)
    kept, donated = (
        played("clusters that are groups", size)
        for size in (small, replace(small, donation="short blocks"))
    )
    assert np.array_equal(kept.crowd, donated.crowd)


@pytest.mark.slow
def test_can_donation_be_simulated_from_the_command_line() -> None:
    """One more flag."""
    arguments = ["--keys", "12", "--slots", "40", "--epsilon", "0.5", "--world", "same best",
                 "--actions", "5", "--runs", "2"]  # fmt: skip
    plain, donating_ = (
        CliRunner().invoke(application(), ["simulate", *arguments, "--worlds", "wide", *more])
        for more in ([], ["--donate"])
    )
    assert plain.exit_code == donating_.exit_code == 0, donating_.output
    assert plain.stdout != donating_.stdout


def test_is_a_learner_without_a_crowd_refused() -> None:
    """Its pool would tell nobody anything."""
    with pytest.raises(sd.InvalidConfig, match="cannot donate; expected a crowd"):
        donating(remembering(EPSILON, ["a", "b"]))
