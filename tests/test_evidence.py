"""Is what is in force a function of releases alone, and the vote where nothing is remembered?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdp as sd
from streamdp.core.events import LossBatch, Releases
from streamdp.core.evidence import NEWEST, Ints, Memory, Standing
from tests.remembering import TwiceInARow, remembering
from tests.strategies import ACTIONS, cut, logs

PLAIN = sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule="capped 2")


@dataclass(frozen=True, slots=True)
class Next:
    """Puts the action after the vote in force."""

    name: str = "next"
    width: int = 0

    def after(self, standing: Standing, votes: Ints, lengths: Ints) -> Standing:
        return Standing((votes + 1) % 3, standing.remembered)


VOTES = st.lists(st.integers(0, 2), min_size=1, max_size=20)


def engine(learner: sd.Leader, **options: object) -> sd.Engine:
    return sd.Engine(
        stream="home", partition=0, learner=learner, budget="1",
        randomness=sd.SeededRandomness(1), **options,  # type: ignore[arg-type]
    )  # fmt: skip


def recomputed(memory: Memory, releases: Releases) -> list[int]:
    """What was in force after each release, from what the releases say and nothing else."""
    known: dict[object, Standing] = {}
    told = []
    for each in releases:
        if each.kind == "opening":
            nothing = np.zeros((1, memory.width), np.int64)
            known[each.key] = Standing(np.array([each.value]), nothing)
        else:
            length = np.array([each.stop - each.start])
            known[each.key] = memory.after(known[each.key], np.array([each.value]), length)
        told.append(int(known[each.key].in_force[0]))
    return told


@given(VOTES)
def test_is_the_newest_vote_in_force_where_nothing_is_remembered(votes: list[int]) -> None:
    standing = Standing(np.array([0]), np.zeros((1, 0), np.int64))
    for vote in votes:
        standing = NEWEST.after(standing, np.array([vote]), np.array([4]))
        assert standing.in_force.tolist() == [vote]
    assert (NEWEST.width, PLAIN.remembers, "memory" in PLAIN.to_config()) == (0, False, False)


def test_does_a_release_say_only_its_value_where_nothing_is_remembered() -> None:
    releases = engine(PLAIN).apply_batch(_log())
    assert releases.in_force is None
    assert all(each.in_force is None and each.standing == each.value for each in releases)


@given(logs(), st.lists(st.integers(0, 100), max_size=8))
def test_is_what_is_in_force_a_function_of_the_releases(log: LossBatch, places: list[int]) -> None:
    """However the log was cut into batches; and engine and releases say the same."""
    learner = remembering(PLAIN)
    machine = engine(learner)
    for batch in cut(log, places):
        releases = machine.apply_batch(batch)
        known = {each.key: each for each in releases if each.kind == "action"}
        assert all(machine.action(key) == ACTIONS[known[key].standing] for key in known)
    whole = engine(learner).apply_batch(log)
    assert [each.standing for each in whole] == recomputed(TwiceInARow(), whole)


def test_does_the_next_draw_favour_what_is_in_force_and_not_the_vote() -> None:
    """With an overwhelming bonus every vote is for the action in force, whatever the losses say."""
    sure = sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule="capped 2", bonus=1000)
    releases = engine(replace(sure, memory=Next())).apply_batch(_log())
    votes = [each.value for each in releases if each.key == b"fr"]
    assert votes == [votes[0], *((votes[0] + at) % 3 for at in range(len(votes) - 1))]


def test_do_two_memories_have_two_digests() -> None:
    """And rows of a learner with a memory are wider and of a newer layout, others are not."""
    learner = remembering(PLAIN)
    assert learner.digest() != PLAIN.digest()
    assert engine(learner).layout.size == engine(PLAIN).layout.size + 2 * 8
    assert (engine(learner).layout.version, engine(PLAIN).layout.version) == (2, 1)


@pytest.mark.parametrize("learner", [PLAIN, remembering(PLAIN)], ids=["newest", "memory"])
def test_do_estimates_tell_of_the_action_that_was_in_force(learner: sd.Leader) -> None:
    """An estimate is about the block that ended; what is in force after it is no part of it."""
    estimates = [sd.estimate("mean_loss", epsilon="1/4", min_length=1)]
    releases = engine(learner, estimates=estimates).apply_batch(_log())
    assert {each.in_force for each in releases if each.kind == "mean_loss"} == {None}


def _log() -> LossBatch:
    slots = np.arange(60)
    losses = (slots[:, None] * 37 + np.arange(3) * 61 + slots[:, None] ** 2) % 101 / 100
    return LossBatch([b"fr", None], slots % 2, losses.astype(np.float32), slots)
