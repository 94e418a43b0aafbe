"""Does an engine tell its draws priors that follow from its own releases alone, however it ran?"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamdp as sd
from streamdp.core.engine import CrowdStanding, Rebuilding
from streamdp.core.engine.machine import Engine
from streamdp.core.events import OPENING, After, Carried, LossBatch
from streamdp.core.evidence.crowd import POINT
from streamdp.core.evidence.groups import NO_GROUPS, Groups
from tests.support.crowd_logs import HOUR, dated, pieces
from tests.support.crowded import Outsider, crowded
from tests.support.recorder import Recorder, charged
from tests.support.remembering import remembering
from tests.support.strategies import ACTIONS, cut, logs, part

pytestmark = pytest.mark.usefixtures("priors_are_made_once")

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
ONE = 1 << POINT


GROUPS = Groups(((b"f", b"\xff"), (b"de", b"new b")))
"""Of the keys of `logs`, the null key and the empty one are in none."""


def leader(
    schedule: str = "geometric 5/2 to 5", *, remembers: bool = False, groups: Groups = NO_GROUPS
) -> sd.Leader:
    """A learner with a crowd, whose blocks are short."""
    learner = sd.incumbent_leader(actions=ACTIONS, epsilon="2", schedule=schedule)
    return crowded(remembering(learner) if remembers else learner, groups=groups)


def engine(learner: sd.Leader, *, limit: int = 1000, seed: int = 7, **more: object) -> Engine:
    """A seeded engine of this learner."""
    return Engine(
        stream="home", partition=3, learner=learner, budget="5", limit=limit,
        randomness=sd.SeededRandomness(seed),
        estimates=[sd.estimate("block_regret", epsilon="1/4", min_length=2)],
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def state(machine: Engine) -> tuple[object, ...]:
    """All that the next steps depend on."""
    machine._bank.first_unsaved[: len(machine)] = 0
    return dict(machine.save()), machine.crowd(), charged(machine), machine.position


@pytest.mark.slow
@settings(max_examples=10 * TIMES)
@given(
    logs(),
    st.lists(st.integers(0, 100), max_size=8),
    st.booleans(),
    st.integers(1, 5),
    st.sampled_from([NO_GROUPS, GROUPS]),
)
def test_does_how_records_were_cut_into_batches_change_nothing(
    log: LossBatch, places: list[int], remembers: bool, limit: int, groups: Groups
) -> None:
    """Priors are made behind records, wherever a batch ends: releases and rows are the same."""
    learner = leader(remembers=remembers, groups=groups)
    whole, cuts, single = (engine(learner, limit=limit) for _ in range(3))
    together = whole.apply_batch(log)
    parts = [cuts.apply_batch(batch) for batch in cut(log, places)]
    ones = [single.apply_batch(batch) for batch in cut(log, list(range(len(log.offsets))))]
    for batches in (parts, ones):
        assert [release for released in batches for release in released] == list(together)
        assert tuple(p for released in batches for p in released.priors) == together.priors
    assert state(cuts) == state(whole) == state(single)


@pytest.mark.slow
@settings(max_examples=10 * TIMES)
@given(
    logs(),
    st.lists(st.integers(0, 100), max_size=8),
    st.lists(st.integers(0, 30), min_size=1),
    st.sampled_from([NO_GROUPS, GROUPS]),
)
def test_can_an_outsider_make_every_prior_again(
    log: LossBatch, places: list[int], rests: list[int], groups: Groups
) -> None:
    """From releases alone, also where keys leave and come back: no sum, no clock, no view."""
    learner = leader(remembers=True, groups=groups)
    machine, outsider = engine(learner, idle=24 * HOUR), Outsider(learner)
    for batch in pieces(dated(log, rests), places):
        released = machine.apply_batch(batch)
        outsider.read(released)
        assert all(release.prior in outsider.priors for release in released if release.kind in (
            OPENING, "action"))  # fmt: skip
    standing = machine.crowd()
    assert standing is not None
    assert standing == CrowdStanding(outsider.votes, tuple(outsider.priors.values())[1:])


@pytest.mark.slow
@settings(max_examples=10 * TIMES)
@given(
    logs(),
    st.lists(st.integers(0, 100), max_size=8),
    st.lists(st.integers(0, 3), min_size=10, max_size=10),
    st.integers(0, 9),
    st.none() | st.lists(st.integers(0, 30), min_size=1),
)
def test_is_a_rebuilt_crowd_the_one_that_was(
    log: LossBatch, places: list[int], saves: list[int], crash: int, rests: list[int] | None
) -> None:
    """Any saves, any cut, any crash point: the same priors are told ever after, bit for bit."""
    more = {} if rests is None else {"idle": 24 * HOUR}
    recorder = Recorder(engine(leader(remembers=True), **more))
    batches = pieces(log if rests is None else dated(log, rests), places)
    for batch, most in zip(batches[:crash], saves, strict=False):
        recorder.step(batch, saves=most)
    machine = recorder.machine
    position, low, ages = machine.position, machine.low_water(), machine.ages()
    log = log if rests is None else dated(log, rests)
    begin, end = (int(np.searchsorted(log.offsets, at)) for at in (low, position))
    rebuilding = Rebuilding(
        engine(leader(remembers=True), **more),
        rows=list(recorder.rows.items()),
        releases=recorder.releases,
        ages=ages,
        crowd=machine.crowd(),
    )
    again = replace(
        part(log, begin, end), times=None if log.times is None else log.times[begin:end]
    )
    rebuilding.feed(again)
    rebuilt = rebuilding.finish(position=position, rows=machine.rows)
    assert rebuilt.crowd() == machine.crowd()
    for batch in batches[crash:]:
        one, other = rebuilt.apply_batch(batch), machine.apply_batch(batch)
        assert list(one) == list(other)
        assert one.priors == other.priors
    assert rebuilt.crowd() == machine.crowd()


def crowd_of_one_mind(*, seed: int = 7) -> Engine:
    """An engine after thirty keys have learned that action 1 is best."""
    machine = engine(leader("geometric 5/2 to 50"), seed=seed)
    keys = [b"%d" % key for key in range(30)]
    losses = np.tile(np.array([1, 0, 1], np.float32), (30 * 120, 1))
    index = np.tile(np.arange(30), 120)
    machine.apply_batch(LossBatch(keys, index, losses, np.arange(30 * 120)))
    return machine


def test_do_new_keys_open_with_what_the_crowd_knows() -> None:
    """The opening is drawn from the prior alone: mostly the crowd's favourite."""
    machine = crowd_of_one_mind()
    standing = machine.crowd()
    assert standing is not None
    newest = standing.priors[-1]
    assert (newest.bonuses[1] - newest.bonuses[[0, 2]]).min() > 2.5 * ONE
    losses = np.zeros((400, 3), np.float32)
    keys = [b"new %d" % key for key in range(400)]
    opened = machine.apply_batch(LossBatch(keys, np.arange(400), losses, 10_000 + np.arange(400)))
    openings = [release for release in opened if release.kind == OPENING]
    assert Counter(release.epsilon for release in openings) == {Fraction(0): 400}
    known = {prior.number for prior in (*standing.priors[-1:], *opened.priors)}
    assert {release.prior for release in openings} <= known
    law = np.exp(leader().log_probabilities(np.zeros(3, np.int64), in_force=0, prior=newest))
    assert law[1] > 0.88
    assert sum(release.value == 1 for release in openings) > 340


def test_do_new_keys_open_with_what_their_group_knows() -> None:
    """Two groups of fifteen keys with different best actions; who is in none knows both."""
    groups = Groups(((b"f",), (b"new f",), (b"d", b"new d")))  # the longest prefix decides
    machine = engine(leader("geometric 5/2 to 250", groups=groups))
    keys = [b"%s %d" % (name, key) for name in (b"new f", b"d") for key in range(15)]
    best = np.repeat([0, 2], 15)[np.tile(np.arange(30), 420)]
    losses = 1 - np.eye(3, dtype=np.float32)[best]
    machine.apply_batch(LossBatch(keys, np.tile(np.arange(30), 420), losses, np.arange(30 * 420)))
    standing = machine.crowd()
    assert standing is not None
    nobody, first, second, third = standing.priors[-1].bonuses.reshape(4, 3)
    assert first.tolist() == nobody.tolist(), "no key has voted in it"
    assert np.abs(nobody[0] - nobody[2]) < ONE / 2 < nobody[0] - nobody[1]
    assert second[0] - second[2] > ONE < third[2] - third[0]
    new = [b"%s x%d" % (name, key) for name in (b"new f", b"new d") for key in range(100)]
    zeros = np.zeros((200, 3), np.float32)
    opened = machine.apply_batch(LossBatch(new, np.arange(200), zeros, 20_000 + np.arange(200)))
    actions = {release.key: release.value for release in opened if release.kind == OPENING}
    assert (
        sum(actions[key] == 0 for key in new[:100])
        > 65
        < sum(actions[key] == 2 for key in new[100:])
    )


def test_is_a_carried_opening_drawn_under_no_prior() -> None:
    """It was not drawn: it is what the key's learner before had in force."""
    held = Carried(2, 1, After(1, 0, 3))
    machine = engine(leader(), heritage={b"old": held})
    zeros = np.zeros((2, 3), np.float32)
    released = machine.apply_batch(LossBatch([b"old", b"x"], np.arange(2), zeros, np.arange(2)))
    assert released[0].value == 2
    assert released[0].prior == 0


def test_is_a_record_that_fits_no_prior_refused() -> None:
    """A release says which prior it was drawn under, or the votes of its key mean nothing."""
    recorder = Recorder(engine(leader()))
    log = LossBatch([b"k"], np.zeros(9, np.int64), np.zeros((9, 3), np.float32), np.arange(9))
    recorder.step(log, saves=0)
    standing = recorder.machine.crowd()
    assert standing is not None

    def rebuilt(crowd: CrowdStanding | None, *, number: int | None = 0) -> Engine:
        kept = {
            name: release._replace(
                prior=number if release.prior is not None and number != 0 else release.prior
            )
            for name, release in recorder.releases.items()
        }
        rebuilding = Rebuilding(engine(leader()), rows=[], releases=kept, crowd=crowd)
        rebuilding.feed(log)
        return rebuilding.finish(position=9, rows=1)

    assert rebuilt(standing).crowd() == standing
    with pytest.raises(sd.StateMismatch, match="no prior on record"):
        rebuilt(standing, number=None)
    first, *others = standing.priors
    for missing in (None, replace(standing, priors=(first, *others[:-1]))):
        with pytest.raises(sd.StateMismatch, match="a prior is missing"):
            rebuilt(missing)
    with pytest.raises(sd.StateMismatch, match="a prior is missing"):
        rebuilt(standing, number=9)
    for wrong in (
        replace(first, number=2), replace(first, after=99),
        replace(first, encoded=first.encoded[:8]),
    ):  # fmt: skip
        with pytest.raises(sd.StateMismatch, match="priors on record"):
            rebuilt(replace(standing, priors=(wrong, *others)))
