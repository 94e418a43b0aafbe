"""Does a control group learn alone, and are both sides compared by what no bonus has steered?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamdp as sd
from streamdp.core.engine import CrowdStanding, Rebuilding
from streamdp.core.engine.crowding import PartitionCrowd, Side
from streamdp.core.engine.machine import Engine
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import ACTION, OPENING, LossBatch
from streamdp.core.evidence.control import NO_CONTROL, PLAIN_ONE_IN, Agreement, Control
from streamdp.core.evidence.crowd import Crowd, named
from streamdp.core.evidence.groups import Groups
from streamdp.core.learners.leader import crowded
from tests.support.recorder import Recorder
from tests.support.strategies import cut

pytestmark = pytest.mark.usefixtures("priors_are_made_once")

HALF = Control(Fraction(1, 2))
KEYS = [b"%d" % number for number in range(12)]
APART = [key for key in KEYS if HALF.holds(key)]


def engine(control: Control, *, seed: int = 3) -> Engine:
    """Blocks of 1, 2 and then 3 slots."""
    learner = sd.incumbent_leader(actions=("a", "b", "c"), epsilon=2, schedule="capped 3")
    return Engine(
        stream="home", partition=0, learner=crowded(learner, control=control), budget="2",
        randomness=sd.SeededRandomness(seed),
    )  # fmt: skip


def log(*, seed: int = 5, keys: list[bytes] = KEYS, slots: int = 500) -> LossBatch:
    """Action 1 is the best for all."""
    rng = np.random.default_rng(seed)
    losses = np.clip(rng.normal([0.6, 0.3, 0.6], 0.2, (slots, 3)), 0, 1).astype(np.float32)
    return LossBatch(keys, rng.integers(0, len(keys), slots), losses, np.arange(slots))


def test_is_which_key_and_which_block_a_function_of_their_names_alone() -> None:
    """The same on every platform and for ever, near the share that was asked for."""
    some = Control(Fraction(1, 20))
    assert [key for key in range(60) if some.holds(b"%d" % key)] == [22, 23, 36]
    assert [block for block in range(200) if some.plain(b"fr", 17, block)] == [
        85,
        105,
        109,
        118,
        153,
        168,
        172,
        173,
    ]
    assert [control.holds(None) for control in (some, HALF)] == [False, True]
    keys = [b"%d" % number for number in range(20_000)]
    held = sum(map(some.holds, keys))
    assert abs(held - 1000) < 6 * sqrt(20_000 * 0.05 * 0.95)
    plain = sum(some.plain(b"fr", 17, block) for block in range(20_000))
    assert abs(plain - 20_000 / PLAIN_ONE_IN) < 6 * sqrt(20_000 * 0.05 * 0.95)
    assert sum(map(Control(Fraction(1, 2)).holds, keys)) > held
    assert all(Control(Fraction(1, 2)).holds(key) for key in keys if some.holds(key))
    assert not any(NO_CONTROL.holds(key) or NO_CONTROL.plain(key, 0, 1) for key in keys[:100])


@pytest.mark.parametrize("share", ["-1/20", "2/3"])
def test_is_a_share_that_is_none_refused(share: str) -> None:
    with pytest.raises(InvalidConfig, match="control: out of range"):
        Control(Fraction(share))


def test_is_a_bonus_that_no_float_holds_refused() -> None:
    """The likelihood of a vote has e to its power."""
    with pytest.raises(InvalidConfig, match=r"crowd: out of range; .* a bonus of at most 100"):
        Crowd(3, Fraction(1, 4), Fraction(101), Fraction(1, 20))


def test_are_groups_of_keys_that_donate_to_one_pool_refused() -> None:
    """A vote of the pool is of no group."""
    groups = Groups.of({"de-": "europe", "us-": "america"})
    with pytest.raises(InvalidConfig, match="no donation where keys are in groups"):
        Crowd(3, Fraction(1, 4), Fraction(1), Fraction(1, 20), donates=8, groups=groups)


def test_does_the_ledger_s_name_say_the_control_group() -> None:
    crowd = Crowd(3, Fraction(1, 4), Fraction(1), Fraction(1, 20), control=Control(Fraction(1, 20)))
    assert crowd.name.endswith("floor 1/20 control 1/20")
    assert named(crowd.name) == crowd
    assert named(crowd.name.removesuffix(" control 1/20")) == replace(crowd, control=NO_CONTROL)


def test_does_a_key_of_the_control_group_learn_as_if_there_were_no_others() -> None:
    """Its draws are told nothing of others; those of other keys are, but for plain votes."""
    together, alone = engine(HALF), engine(HALF)
    released = list(together.apply_batch(log()))
    rows = log()
    own = np.array([KEYS[at] in APART for at in rows.index])
    (key, *_) = APART
    mine = rows.index == KEYS.index(key)
    only = LossBatch(
        [key], np.zeros(int(mine.sum()), np.int64), rows.losses[mine], rows.offsets[mine]
    )
    assert [release for release in released if release.key == key] == list(alone.apply_batch(only))
    assert own.any()
    drawn = {
        (
            release.key in APART,
            HALF.plain(release.key, release.identity.born, release.identity.block),
            release.prior,
        )
        for release in released
        if release.kind == ACTION
    }
    assert {prior for apart, _, prior in drawn if apart} == {0}
    assert {prior for _, plain, prior in drawn if plain} == {0}
    steered = [prior for apart, plain, prior in drawn if not (apart or plain)]
    assert len(steered) > 20
    openings = [
        release.prior for release in released if release.kind == OPENING and release.key in APART
    ]
    assert set(openings) == {0}


def test_would_a_control_group_that_is_told_priors_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: the hash is not asked. Then what others vote moves a key of the control group."""

    def everybody(self: PartitionCrowd, rows: np.ndarray, kind: str):  # type: ignore[no-untyped-def]
        yield Side.TOLD, np.arange(len(rows))

    right = list(engine(HALF).apply_batch(log()))
    monkeypatch.setattr(PartitionCrowd, "sides", everybody)
    wrong = list(engine(HALF).apply_batch(log()))
    of_control = [[release for release in some if release.key in APART] for some in (right, wrong)]
    assert of_control[0] != of_control[1]


def test_is_a_plain_vote_drawn_under_no_bonus_at_all() -> None:
    """Not even that of the action in force: sums that tell nothing give a uniform vote."""
    learner = sd.incumbent_leader(
        actions=("a", "b", "c"), epsilon=2, schedule="geometric 2 to 1", bonus=90
    )
    machine = Engine(
        stream="home", partition=0, learner=crowded(learner, control=HALF), budget="2",
        randomness=sd.SeededRandomness(1),
    )  # fmt: skip
    zeros = LossBatch(KEYS, np.tile(np.arange(12), 100), np.zeros((1200, 3), np.float32),
                      np.arange(1200))  # fmt: skip
    in_force: dict[bytes | None, int] = {}
    moved = []
    for release in machine.apply_batch(zeros):
        plain = HALF.plain(release.key, release.identity.born, release.identity.block)
        if release.kind == ACTION:
            assert plain or release.value == in_force[release.key]
            moved += [release.value != in_force[release.key]] if plain else []
        in_force[release.key] = release.value
    assert 0.4 < np.mean(moved) < 0.9
    assert len(moved) > 30


def test_does_the_crowd_count_a_plain_vote_as_drawn_under_nothing() -> None:
    """It is no vote that the bonus of the action in force has helped."""
    machine = engine(HALF)
    for batch in cut(log(), list(range(500))):
        for release in machine.apply_batch(batch):
            row = machine._bank.row(release.key)
            number, what, _ = machine._bank.remembered[row, -3:].tolist()
            if release.kind == ACTION and HALF.plain(
                release.key, release.identity.born, release.identity.block
            ):
                assert (number, what % 2) == (1, 0)


@pytest.mark.slow
@settings(max_examples=6)
@given(st.lists(st.integers(0, 500), max_size=6), st.integers(0, 5), st.integers(0, 4))
def test_is_a_rebuilt_control_group_the_one_that_was(
    places: list[int], crash: int, most: int
) -> None:
    """However records are cut, and wherever a crash comes."""
    whole = list(engine(HALF).apply_batch(log()))
    recorder, batches = Recorder(engine(HALF)), cut(log(), places)
    for batch in batches[:crash]:
        recorder.step(batch, saves=most)
    machine = recorder.machine
    position, low = machine.position, machine.low_water()
    rebuilding = Rebuilding(
        engine(HALF), rows=list(recorder.rows.items()), releases=recorder.releases,
        crowd=machine.crowd() or CrowdStanding(0, ()),
    )  # fmt: skip
    rows = log()
    span = slice(low, position)
    rebuilding.feed(LossBatch(KEYS, rows.index[span], rows.losses[span], rows.offsets[span]))
    again = rebuilding.finish(position=position, rows=machine.rows)
    rest = [release for batch in batches[crash:] for release in again.apply_batch(batch)]
    assert rest == whole[len(whole) - len(rest) :]


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40))
def test_is_the_agreement_a_ratio_of_sums_over_keys(votes: list[tuple[int, bool]]) -> None:
    """Added up vote by vote, as if all were known at once; its error is between keys."""
    parts, kept = (Agreement(), Agreement()), np.zeros((5, 2), np.int64)
    for key, agreed in votes:
        parts[key % 2].add(int(kept[key, 0]), int(kept[key, 1]), again=agreed)
        kept[key] += (1, agreed)
    agreement = Agreement()
    for part in parts:  # two partitions' keys
        agreement.include(part)
    of = kept[kept[:, 0] > 0]
    assert (agreement.keys, agreement.votes, agreement.agreed) == (
        len(of),
        len(votes),
        int(kept[:, 1].sum()),
    )
    if not votes:
        assert (agreement.rate, agreement.error) == (None, None)
        return
    rate = kept[:, 1].sum() / len(votes)
    assert agreement.rate == pytest.approx(rate)
    if len(of) < 2:
        assert agreement.error is None
        return
    spread = ((of[:, 1] - rate * of[:, 0]) ** 2).sum() * len(of) / (len(of) - 1)
    assert agreement.error == pytest.approx(sqrt(spread) / len(votes), abs=1e-9)
