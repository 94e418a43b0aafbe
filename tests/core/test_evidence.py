"""Is what is in force a function of releases alone, and the vote where nothing is remembered?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdp as sd
from streamdp.core.events import Batch
from streamdp.core.evidence import NEWEST, Ints, Memory, Standing, VoteFilter, named
from streamdp.core.kinds.recipe import config_of
from streamdp.core.releases import Releases
from tests.support.batches import loss_batch
from tests.support.remembering import TwiceInARow, remembering
from tests.support.strategies import ACTIONS, cut, logs

PLAIN = sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule="capped 2")


@dataclass(frozen=True, slots=True)
class Next:
    """Puts the action after the vote in force."""

    name: str = "next"
    width: int = 0
    since: int = 1

    def after(self, standing: Standing, votes: Ints, lengths: Ints) -> Standing:
        return Standing((votes + 1) % 3, standing.remembered)

    def sure_of(self, actions: Ints, lengths: Ints) -> Ints:
        return np.zeros((len(actions), 0), dtype=np.int64)


VOTES = st.lists(st.integers(0, 2), min_size=1, max_size=20)


def engine(learner: sd.Leader, **options: object) -> sd.Engine:
    return sd.Engine(
        stream="home", partition=0, learner=learner, budget="1",
        randomness=sd.SeededRandomness(1), **options,  # type: ignore[arg-type]
    )  # fmt: skip


def recomputed(memory: Memory, releases: Releases) -> list[int]:
    """What was in force after each release, from what the releases say and nothing else."""
    known: dict[object, Standing] = {}
    standings = []
    for release in releases:
        if release.kind == "opening":
            nothing = np.zeros((1, memory.width), np.int64)
            known[release.key] = Standing(np.array([release.value]), nothing)
        else:
            length = np.array([release.stop - release.start])
            known[release.key] = memory.after(known[release.key], np.array([release.value]), length)
        standings.append(int(known[release.key].in_force[0]))
    return standings


@given(VOTES)
def test_is_the_newest_vote_in_force_where_nothing_is_remembered(votes: list[int]) -> None:
    standing = Standing(np.array([0]), np.zeros((1, 0), np.int64))
    for vote in votes:
        standing = NEWEST.after(standing, np.array([vote]), np.array([4]))
        assert standing.in_force.tolist() == [vote]
    assert (NEWEST.width, PLAIN.remembers, "memory" in config_of(PLAIN)) == (0, False, False)


def test_does_a_release_say_only_its_value_where_nothing_is_remembered() -> None:
    releases = engine(PLAIN).apply_batch(_log())
    assert releases.in_force is None
    assert all(
        release.in_force is None and release.standing == release.value for release in releases
    )


@pytest.mark.slow
@given(logs(), st.lists(st.integers(0, 100), max_size=8))
def test_is_what_is_in_force_a_function_of_the_releases(log: Batch, places: list[int]) -> None:
    """However the log was cut into batches; and engine and releases say the same."""
    learner = remembering(PLAIN)
    machine = engine(learner)
    for batch in cut(log, places):
        releases = machine.apply_batch(batch)
        known = {release.key: release for release in releases if release.kind == "action"}
        assert all(machine.action(key) == ACTIONS[known[key].standing] for key in known)
    whole = engine(learner).apply_batch(log)
    assert [release.standing for release in whole] == recomputed(TwiceInARow(), whole)


def test_does_the_next_draw_favour_what_is_in_force_and_not_the_vote() -> None:
    """With an overwhelming bonus every vote is for the action in force, whatever the losses say."""
    sure = sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule="capped 2", bonus=1000)
    releases = engine(replace(sure, memory=Next())).apply_batch(_log())
    votes = [release.value for release in releases if release.key == b"fr"]
    assert votes == [votes[0], *((votes[0] + at) % 3 for at in range(len(votes) - 1))]


def test_do_two_memories_have_two_digests() -> None:
    """And rows of a learner with a memory are wider."""
    learner = remembering(PLAIN)
    assert learner.recipe.digest != PLAIN.recipe.digest
    assert engine(learner).layout.size == engine(PLAIN).layout.size + 2 * 4


@pytest.mark.parametrize("learner", [PLAIN, remembering(PLAIN)], ids=["newest", "memory"])
def test_do_estimates_tell_of_the_action_that_was_in_force(learner: sd.Leader) -> None:
    """An estimate is about the block that ended; what is in force after it is no part of it."""
    estimates = [sd.estimate("mean_loss", epsilon="1/4", min_length=1)]
    releases = engine(learner, estimates=estimates).apply_batch(_log())
    assert {release.in_force for release in releases if release.kind == "mean_loss"} == {None}


# -- the filter of votes --------------------------------------------------------------------------

FILTER = VoteFilter(actions=3, since=4, hazard=Fraction(1, 250))


def followed(memory: Memory, votes: Sequence[int], length: int = 4) -> list[int]:
    """What is in force after each of these votes."""
    standing, actions = Standing(np.array([0]), np.zeros((1, memory.width), np.int64)), []
    for vote in votes:
        standing = memory.after(standing, np.array([vote]), np.array([length]))
        assert standing.remembered.max() < 2**31
        assert standing.remembered.min() >= 0
        actions.append(int(standing.in_force[0]))
    return actions


def plainly(
    memory: VoteFilter, votes: Sequence[int], divide: Callable[[Any, Any], Any]
) -> tuple[list[int], list[Any], list[Any]]:
    """The filter by its description: one key, numbers without a width, another way to divide."""
    one, K = 1 << 24, memory.actions

    def begun(of_vote: int) -> list[Any]:
        rest = (one - of_vote) // (K - 1)
        return [of_vote if action == votes[0] else rest for action in range(K)]

    w, p, course = begun(one * 9 // 10), begun(one * 7 // 10), [votes[0]]
    chance = (memory.hazard.numerator << 16) // memory.hazard.denominator
    latest = pair = votes[0]
    for vote in votes[1:]:
        w = [x - divide(x * chance, 1 << 16) - (-(chance << 8) // K) for x in w]
        first, second = sorted(p)[:-3:-1]
        f = min(max(divide(first * 256, max(second, 1)), 307), 64 * 256)
        w[vote] = divide(w[vote] * f, 256)
        total = sum(w)
        w = [divide(x * one, total) for x in w]
        course.append(course[-1] if w[course[-1]] == max(w) else w.index(max(w)))
        p = [x - divide(x, 50) for x in p]
        p[vote] += one // 50
        before, pair = pair, vote if vote == latest else pair
        p[before], p[pair], latest = p[pair], p[before], vote
    return course, w, p


def whole(x: int, y: int) -> int:
    return x // y


@pytest.mark.slow
@pytest.mark.parametrize("actions", [2, 3, 40])
def test_is_the_filter_what_it_is_described_as(actions: int) -> None:
    """Bit for bit, over votes that drift, dissent and tie; and floats would not be the same."""
    memory = VoteFilter(actions, 4, Fraction(1, 250))
    rng = np.random.default_rng(actions)
    likely = np.repeat(rng.integers(0, actions, 40), 25)
    votes = np.where(rng.random(1000) < 0.6, likely, rng.integers(0, actions, 1000)).tolist()
    standing = Standing(np.array([0]), np.zeros((1, memory.width), np.int64))
    for vote in votes:
        standing = memory.after(standing, np.array([vote]), np.array([4]))
    expected, weights, shares = plainly(memory, votes, whole)
    assert followed(memory, votes) == expected
    assert standing.remembered[0, 2:].tolist() == [*weights, *shares]
    assert standing.remembered[0, :2].min() >= 1
    assert plainly(memory, votes, lambda x, y: x / y)[1:] != (weights, shares)


def test_does_one_dissent_change_nothing_and_a_run_of_them_everything() -> None:
    assert followed(FILTER, [1] * 30 + [2] + [1] * 5) == [1] * 36
    actions = followed(FILTER, [1] * 30 + [2] * 4)
    assert (actions[30], actions[-1]) == (1, 2)


def test_do_many_changes_not_make_the_filter_slow() -> None:
    """Ten sure votes for one action, then for another, for ever: it follows within three."""
    votes = [action for _ in range(60) for action in (0, 1, 0, 2) for _ in range(10)]
    actions = followed(FILTER, votes)
    assert sum(one != other for one, other in zip(actions, votes, strict=True)) <= 3 * 240


def test_does_a_close_rival_not_make_the_filter_restless() -> None:
    """Two of three votes for one, one for another: the first stays in force."""
    votes = np.where(np.random.default_rng(3).random(3000) < 2 / 3, 0, 1).tolist()
    actions = followed(FILTER, votes)
    assert sum(actions[100:]) <= 0.02 * len(votes)
    assert sum(votes[100:]) > 0.3 * len(votes)


def test_is_the_vote_in_force_while_blocks_grow() -> None:
    """Each block then knows more than all before it together; nothing is remembered of them."""
    assert followed(FILTER, [1, 2, 0, 2], length=3) == [1, 2, 0, 2]
    standing = Standing(np.array([0]), np.zeros((1, FILTER.width), np.int64))
    assert not FILTER.after(standing, np.array([1]), np.array([3])).remembered.any()


@given(st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), max_size=12))
def test_do_keys_not_meet(votes: list[list[int]]) -> None:
    """Five keys at once are what each is alone, at whatever block it is."""
    rows = Standing(np.zeros(5, np.int64), np.zeros((5, FILTER.width), np.int64))
    actions: list[list[int]] = [[] for _ in range(5)]
    for together in votes:
        rows = FILTER.after(rows, np.array(together), np.full(5, 4))
        for key, action in enumerate(rows.in_force.tolist()):
            actions[key].append(action)
    assert actions == [followed(FILTER, [block[key] for block in votes]) for key in range(5)]


@pytest.mark.parametrize(
    ("actions", "since", "hazard"),
    [(1, 4, Fraction(1, 9)), (3, 0, Fraction(1, 9)), (3, 4, Fraction(2, 3)), (3, 4, Fraction(0)),
     (10**6 + 1, 4, Fraction(1, 9)), (3, 2**43, Fraction(1, 9)), (3, 4, Fraction(1, 10**6))],
)  # fmt: skip
def test_is_what_is_no_filter_refused(actions: int, since: int, hazard: Fraction) -> None:
    with pytest.raises(sd.InvalidConfig, match="memory: out of range"):
        VoteFilter(actions, since, hazard)


def test_is_a_filter_read_back_from_its_name() -> None:
    """That is how the ledger's reader gets it, and what it does not know it refuses."""
    assert named(FILTER.name) == FILTER
    for name in ("", "twice in a row", FILTER.name + "0/1", FILTER.name.replace("3", "x")):
        with pytest.raises(sd.InvalidConfig, match="memory: unknown"):
            named(name)


def _log() -> Batch:
    slots = np.arange(60)
    losses = (slots[:, None] * 37 + np.arange(3) * 61 + slots[:, None] ** 2) % 101 / 100
    return loss_batch([b"fr", None], slots % 2, losses.astype(np.float32), slots)
