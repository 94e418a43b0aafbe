"""Does a new epoch begin with what is public of the one before, and with nothing else?

A key opens with the action that was in force, known again by its name, at the length that its
blocks had reached. What `ledger verify` computes from published lines alone must agree, through
crashes, and broken variants of the rules must be caught by it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from typing import Any, cast

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.errors import StateMismatch
from streamdp.core.kinds.recipe import config_of
from streamdp.core.learners.feedback.policy_weights import policy_weights
from streamdp.core.learners.recipes import kind_of
from streamdp.ports import Administrator, Published, StreamTopics, Taken, Value, Verdict
from streamdp.service import diagnosis
from streamdp.service.charges_by_others import ALONE, alone
from streamdp.service.saved_entries import SavedEntries
from streamdp.service.settings import Pace
from streamdp.service.spec import StreamSpec
from streamdp.service.taking import carried_entries_at, open_partition
from streamdp.testing.judge import judge
from streamdp.wire.formats import configure
from streamdp.wire.lines import CarriedOver, EpochMark
from streamdp.wire.published import decode_ledger
from tests.bench.bench_carrying import World, compared
from tests.service.test_contexts_service import shown as shown_in_cells
from tests.service.test_contexts_service import spec as spec_of_contexts
from tests.support.carrying import (
    ALL,
    LEADERS,
    MORE,
    charges,
    follows,
    in_force,
    last_open,
    leader,
    live,
    openings,
    policies,
    store_of,
    stream,
    through_crashes,
    verified,
)
from tests.support.protocol_model import HOME, Store, evidence, restore, settle
from tests.support.streams import ACTIONS, spec


@pytest.mark.parametrize("made", LEADERS)
def test_does_a_key_open_with_the_action_that_was_in_force(
    made: Callable[..., sd.Leader],
) -> None:
    """By its name, at the length reached, charged nothing; and outsiders compute the same."""
    first, second = stream(made()), stream(made(MORE), epoch=2)
    store = store_of(made())
    live(store, first, 60)
    before = in_force(store, 1)
    live(store, second, 120)
    opened = openings(store, 2)
    assert opened.keys() == before.keys() == {b"fr", b"de", None}
    assert {key: line.action for key, line in opened.items()} == before
    for line in opened.values():
        first_block = made().schedule.first_as_long(3)
        assert (line.mechanism, line.charge) == ("carried", Fraction(0))
        assert line.start == made().schedule.start(first_block) > 1
        assert isinstance(line.carried, CarriedOver)
        assert (line.carried.epoch, line.carried.first_block) == (1, first_block)
    assert verified(store, second) == []
    assert judge(evidence(store)) == []
    lengths = {line.stop - line.start for line in charges(store) if line.epoch == 2}
    assert lengths == {0, 3}  # openings, and no short block again


@pytest.mark.parametrize("after", [policies, follows])
@pytest.mark.parametrize("before", [policies, follows])
def test_does_an_arm_that_stays_keep_its_history(
    before: Callable[..., Any], after: Callable[..., Any]
) -> None:
    """The released sums of before make the policy that a key of a feedback stream opens with.

    From one recipe that keeps a posterior to another, too.
    """
    first, second = stream(before()), stream(after(MORE), epoch=2)
    store = store_of(before())
    live(store, first, 60)
    live(store, second, 120)
    assert verified(store, second) == []
    assert judge(evidence(store)) == []
    for line in openings(store, 2).values():
        assert isinstance(line.carried, CarriedOver)
        assert isinstance(line.carried.history, str)
        history = np.frombuffer(__import__("base64").b64decode(line.carried.history), "<f8")
        weights = history.reshape(2, 4)[0]
        assert weights[0] == 0  # the new one
        assert (weights[1:] > 0).all()


@pytest.mark.parametrize("made", ALL)
def test_is_the_option_recorded_in_the_mark_of_the_epoch(made: Callable[..., Any]) -> None:
    """`carries` in the mark of an epoch that carries; without it no line says so."""
    with_it, without = store_of(made()), store_of(made())
    for store, carry in ((with_it, True), (without, False)):
        live(store, stream(made(), carry=carry), 60)
        live(store, stream(made(MORE), epoch=2, carry=carry), 120)
    (mark,) = (line for line in map(decode_ledger, (e.value for e in with_it.ledger))
               if isinstance(line, EpochMark))  # fmt: skip
    assert mark.carries.kept == [(2, 0, 2), (1, 2, 1)]  # type: ignore[union-attr]
    assert mark.carries.removed == []  # type: ignore[union-attr]
    assert not any(b"carrie" in record.value for record in without.ledger)
    assert {line.mechanism for line in openings(without, 2).values()} == {"uniform"}
    assert verified(without, stream(made())) == []


UNCARRIED = {
    "leader": "9a6801802cd9625e8f1732c1a5fb6c89",
    "remembers": "f598257b5bb600de8d2d6f377be6cc2d",
    "policies": "ea8c7abc157258d49662fcef41d5cabd",
}
"""Digests of all that such a story leaves where nothing is carried over."""


def digest_of(store: Store) -> str:
    """Of everything that is durable, but for rows, what they mean, and the version."""
    durable = [*(line.value for line in store.ledger), *(line.value for line in store.actions)]
    state = {at: value for at, value in store.state.items() if b'"learner",' not in at}
    durable += [value for at, value in sorted(state.items()) if b'"row"' not in at]
    durable += sorted(state)
    version = f'"version":"{sd.__version__}"'.encode()
    return sha256(b"\n".join(durable).replace(version, b"")).hexdigest()[:32]


@pytest.mark.parametrize("made", [*LEADERS, policies])
def test_does_nothing_change_without_the_option(made: Callable[..., Any]) -> None:
    """Ledger, actions and state through an epoch are the recorded bytes."""
    store = store_of(made())
    live(store, stream(made(), carry=False), 60)
    live(store, stream(made(MORE), epoch=2, carry=False), 120)
    assert digest_of(store) == UNCARRIED[made.__name__]


@pytest.mark.slow
@pytest.mark.parametrize("made", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_is_an_epoch_that_carries_the_same_through_any_crash(
    made: Callable[..., Any], seed: int
) -> None:
    """Crashes before and after commits, at any point: the same ledger, byte for byte."""
    first, second = stream(made()), stream(made(MORE), epoch=2)
    quiet, crashing = store_of(made()), store_of(made())
    for store in (quiet, crashing):
        live(store, first, 60)
    live(quiet, second, 120)
    crashes = through_crashes(crashing, second, seed)
    assert crashes > 5
    assert [record.value for record in crashing.ledger] == [record.value for record in quiet.ledger]
    assert crashing.actions == quiet.actions
    assert judge(evidence(crashing)) == []
    assert verified(crashing, second) == []
    assert not any(b'"row",1' in place or b'"release",1' in place for place in crashing.state)


@pytest.mark.parametrize("made", ALL)
def test_is_a_key_that_was_away_for_an_epoch_carried_from_the_one_before(
    made: Callable[..., Any],
) -> None:
    """Its row stays readable until it comes back; then nothing of the older epochs is left."""
    store = store_of(made(), 160)
    store.input[60:100] = [(b"fr", value) for _, value in store.input[60:100]]
    live(store, stream(made()), 60)
    live(store, stream(made(MORE), epoch=2), 100)
    assert {line.identity.key for line in openings(store, 2).values()} == {b"fr"}
    assert any(b'"row",1' in place for place in store.state)
    third = stream(made((*MORE, "newer")), epoch=3)
    live(store, third, 160)
    origins = {key: line.carried.epoch for key, line in openings(store, 3).items()}  # type: ignore[union-attr]
    assert origins == {b"fr": 2, b"de": 1, None: 1}
    assert verified(store, third) == []
    live(store, third, 160)
    assert not any(f',{old},"' in place.decode() for place in store.state for old in (1, 2))
    assert {place for place in store.state if b"learner" in place} == {b'["home",0,"learner",3]'}


def test_does_a_key_whose_action_is_gone_open_like_a_new_one() -> None:
    """Nothing tells which of the others is good for it."""
    store = store_of(leader())
    live(store, stream(leader()), 60)
    before = in_force(store, 1)
    gone = before[b"fr"]
    rest = [name for name in MORE if name != gone]
    second = stream(leader(rest), epoch=2)
    live(store, second, 120)
    for key, line in openings(store, 2).items():
        kept = before[key] != gone
        assert (line.mechanism == "carried", line.start) == (kept, 4 if kept else 1)
    assert verified(store, second) == []


def test_do_keys_open_anew_where_histories_mean_something_else() -> None:
    """Exponential weights keep sums that only their own rates can read."""
    weights = policy_weights(actions=ACTIONS, epsilon="1/2", schedule="capped 3")
    store = store_of(weights)
    live(store, stream(weights), 60)
    live(store, stream(policies(MORE), epoch=2), 120)
    assert {line.mechanism for line in openings(store, 2).values()} == {"uniform"}
    assert verified(store, stream(policies(MORE), epoch=2)) == []


@pytest.mark.parametrize("played", ["header", "value"])
def test_do_keys_open_anew_after_a_version_that_computed_something_else(
    played: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote its learner otherwise. This version goes on from it, through any crash, and carries
    nothing over; whoever verifies the lines before is told that another version wrote them."""
    records, headers = shown_in_cells(played, 120)
    store, first = Store(records, headers=headers), spec_of_contexts(played)
    first = replace(first, topics=replace(first.topics, stream="home"))
    with monkeypatch.context() as patch:
        patch.setattr("streamdp.core.learners.feedback.policy_contexts.UP_TO", "")
        options = {**config_of(first.learner.recipe), "interactions": "all"}
        before = kind_of(options, actions=first.learner.actions)
        live(store, replace(first, learner=before), 60)
    second = replace(first, epoch=2)
    assert through_crashes(store, second, seed=1) > 5
    assert {line.mechanism for line in openings(store, 2).values()} == {"uniform"}
    violations = verified(store, second)
    assert any("of another version of streamdp" in text for text in violations), violations


def test_does_a_partition_carry_into_an_epoch_of_its_own() -> None:
    """As into one of the stream."""
    store = store_of(leader())
    live(store, stream(leader()), 60)
    own = replace(stream(leader()), partition_epochs={0: 2})
    live(store, own, 120)
    assert {line.mechanism for line in openings(store, 2).values()} == {"carried"}
    assert verified(store, own) == []


def test_does_a_state_that_was_rolled_back_carry_nothing() -> None:
    """Its rows are older than what was published, so keys begin anew behind it."""
    store = store_of(leader())
    work = restore(store, stream(leader()))
    work.absorb(work.read(store.records(0, 30)))
    settle(store, work)
    old = dict(store.state)
    live(store, stream(leader()), 60)
    store.state = old
    second = stream(leader(MORE), epoch=2)
    live(store, second, 120)
    assert {line.mechanism for line in openings(store, 2).values()} == {"uniform"}
    assert verified(store, second) == []


@pytest.mark.parametrize("made", ALL)
def test_does_the_option_of_the_epoch_that_begins_decide(made: Callable[..., Any]) -> None:
    """An epoch carries over from one that ran without the option; without it nothing is carried."""
    store = store_of(made(), 160)
    live(store, stream(made(), carry=False), 60)
    for epoch, stop, carry, mechanism in ((2, 110, True, "carried"), (3, 160, False, "uniform")):
        now = stream(made(MORE), epoch=epoch, carry=carry)
        live(store, now, stop)
        assert {line.mechanism for line in openings(store, epoch).values()} == {mechanism}
        assert verified(store, now) == []


def test_does_another_largest_reward_begin_anew() -> None:
    """Rewards were clipped, so sums of shares of 1 do not say what they are as shares of 2."""
    store, first = store_of(policies(), 180), stream(policies())
    feedback = replace(first.format.feedback, most=Fraction(2))  # type: ignore[type-var]
    in_twos = configure("json", feedback=feedback, options={})
    live(store, first, 60)
    with pytest.raises(StateMismatch, match=r"format\.most"):
        live(store, replace(first, format=in_twos), 80)
    second = replace(first, format=in_twos, epoch=2)
    assert foretold(store, second).endswith(
        "where 3 keys will open like new: another most, and what was clipped cannot be scaled"
    )
    live(store, second, 120)
    assert {line.mechanism for line in openings(store, 2).values()} == {"uniform"}
    assert verified(store, second) == []
    third = replace(second, epoch=3)
    live(store, third, 180)
    assert {line.mechanism for line in openings(store, 3).values()} == {"carried"}
    assert verified(store, third) == []


@pytest.mark.parametrize("made", ALL)
def test_is_the_same_carried_however_rows_were_read(made: Callable[..., Any]) -> None:
    """Whole, or as they come: again, damaged before, deleted, before what says what they mean."""
    store, second, chance = store_of(made()), stream(made(MORE), epoch=2), random.Random(1)
    store.input = [(b'"\xff' if key == b"de" else key, value) for key, value in store.input]
    live(store, stream(made()), 60)
    rows = [place for place in store.state if b'"row"' in place]
    for _ in range(20):
        entries = SavedEntries(second, HOME)
        log: list[tuple[bytes, Value]] = [(place, b"damaged") for place in rows]
        log += [(chance.choice(rows), chance.choice([None, b"damaged"])) for _ in range(4)]
        log += chance.sample(sorted(store.state.items()), len(store.state))
        while log:
            piece = chance.randrange(1, 5)
            entries.enter(*zip(*log[:piece], strict=True))
            del log[:piece]
        assert len(entries.earlier[1]) == len(rows) == 3
        assert not entries.earlier[1].bank.private
        told = []
        for state in (store.state, entries):
            taken = replace(store.taken(), state=state)
            decision = open_partition(second, HOME, taken, by_others=ALONE)
            assert decision.carries
            kept = carried_entries_at(second, HOME, decision)
            carried = dict(kept.carried)
            places = {key: kept.let_go(key) for key in carried}
            told.append((carried, places, sorted(kept.gone), kept.holds))
        assert told[0] == told[1]
        assert len(told[0][0]) == 3
        entries.enter([rows[0]], [b"damaged"])
        assert not open_partition(second, HOME, taken, by_others=ALONE).carries


def test_does_turning_the_option_off_change_the_next_epoch_only() -> None:
    """What an epoch carries is decided where it begins; and an epoch without it forgets all."""
    store = store_of(leader(), 160)
    store.input[60:90] = [(b"fr", value) for _, value in store.input[60:90]]
    live(store, stream(leader()), 60)
    live(store, stream(leader(MORE), epoch=2), 90)
    live(store, stream(leader(MORE), epoch=2, carry=False), 130)
    assert {line.mechanism for line in openings(store, 2).values()} == {"carried"}
    live(store, stream(leader(ACTIONS), epoch=3, carry=False), 160)
    assert {line.mechanism for line in openings(store, 3).values()} == {"uniform"}
    assert not any(b",1," in place or b",2," in place for place in store.state)
    assert verified(store, stream(leader())) == []


@pytest.mark.parametrize("made", ALL)
def test_does_the_open_block_leave_no_trace(made: Callable[..., Any]) -> None:
    """P9: two inputs that differ in the last record before the epoch publish the same lines."""
    ledgers = []
    for other in (False, True):
        store = store_of(made())
        at = last_open(store, made())
        if other:
            key, _ = store.input[at]
            store.input[at] = (key, b'{"losses":{"a":1,"b":0,"c":1,"new":0},"reward":1}')
        live(store, stream(made()), 60)
        live(store, stream(made(MORE), epoch=2), 120)
        ledgers.append([record.value for record in store.ledger])
    assert ledgers[0] == ledgers[1]


def test_is_a_mark_read_by_those_who_do_not_know_it() -> None:
    """The mark of an epoch that carries nothing over has no such field."""
    line = spec().lines.epoch(partition=0, epoch=2, previous=1, next_offset=40, ordinal=9)
    mark = decode_ledger(Published(0, 0, None, line).value)
    assert isinstance(mark, EpochMark)
    assert b"carries" not in line


def test_does_adding_an_action_cost_next_to_nothing() -> None:
    """A small version of the benchmark, seeded: four events of each key after a hundred."""
    regrets = compared(World(1000, "uniform"), events=100_000, following=4000)
    assert regrets["carried over"] <= 1.1
    assert regrets["begun anew"] > 2


# -- what the doctor says of it -------------------------------------------------------------------


@dataclass
class Looking:
    """The one thing that the doctor asks here: what is durable."""

    store: Store

    async def peek(self, topics: StreamTopics, number: int, **_: object) -> Taken:
        """Look, and leave nothing behind."""
        return self.store.taken()


def foretold(store: Store, of: StreamSpec) -> str:
    """What the doctor says of a partition's state."""
    finding, *_ = asyncio.run(diagnosis.partitions(cast(Administrator, Looking(store)), of, alone))
    assert finding.verdict is Verdict.GOOD
    return finding.detail


@pytest.mark.parametrize("made", ALL)
def test_does_the_doctor_foretell_what_an_epoch_carries_over(made: Callable[..., Any]) -> None:
    """How many keys know something, and why none of them does; and it comes true."""
    store = store_of(made())
    live(store, stream(made()), 60)
    assert foretold(store, stream(made(MORE), epoch=2)) == (
        "epoch 2 would begin at record 60, with what is public of 3 of 3 keys"
    )
    others = foretold(store, stream(made(("x", "y")), epoch=2))
    assert "of 0 of 3 keys; the others open like new ones (their actions are gone" in others
    assert foretold(store, stream(made(MORE), epoch=2, carry=False)).endswith(
        "where 3 keys will open like new: carry = false"
    )
    damaged = deepcopy(store)
    row = next(at for at in damaged.state if b'"row"' in at)
    damaged.state[row] = damaged.state[row][:-1] + b"?"
    assert "damaged or another version's" in foretold(damaged, stream(made(MORE), epoch=2))
    begun = restore(store, stream(made(MORE), epoch=2))
    store.decide(begun.cut(now=0, pace=Pace(records=1000, seconds=1e9)).commit)
    assert foretold(store, stream(made(MORE), epoch=2)).endswith(
        " 0 learners, at record 60 of 120; 3 keys of earlier epochs will open with the next record"
        " of each, and carry over"
    )
    live(store, stream(made(MORE), epoch=2), store.end)
    assert {line.mechanism for line in openings(store, 2).values()} == {"carried"}
