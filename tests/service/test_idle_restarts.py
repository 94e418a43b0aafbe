"""Does a partition whose keys go idle come back as it was, from any saves, settings and records?

Beside `test_idle`: here are restarts from states that partial sweeps, new settings and unusual
records leave behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.engine import Ages, Rebuilding, plan
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import Key
from streamdp.core.releases import Release
from streamdp.ports import Records
from streamdp.service.settings import Pace
from streamdp.testing.judge import judge
from tests.support.carrying import ALL, charges, leader, live, verified
from tests.support.idling import HOUR, dated, folded, idles, of_two, openings_of
from tests.support.protocol_model import HOME, evidence, restore

Logged = Sequence[tuple[Key, int]]
"""The key and the time of each record, in milliseconds."""


def engine(*, idle: int | None = 1000, seed: int = 1) -> sd.Engine:
    """An engine whose keys leave after a second or two."""
    return sd.Engine(
        stream="home", partition=0, learner=leader(), budget="1/2", idle=idle,
        randomness=sd.SeededRandomness(seed),
    )  # fmt: skip


def batch(log: Logged, start: int, stop: int, *, of: sd.Engine) -> sd.Batch:
    """Some records of a log."""
    losses = np.full((stop - start, 3), 0.25, dtype=np.float32)
    loss_batch = sd.Batch.of_losses(
        [key for key, _ in log[start:stop]], losses, np.arange(start, stop, dtype=np.int64)
    )
    if of.idleness is None:
        return loss_batch
    return replace(
        loss_batch, times=np.array([time for _, time in log[start:stop]], dtype=np.int64)
    )


@dataclass
class Kept:
    """What is durable of an engine, and the engine in life."""

    log: Logged
    living: sd.Engine = field(default_factory=engine)
    rows: dict[Key, bytes] = field(default_factory=dict)
    releases: list[Release] = field(default_factory=list)
    ages: Ages | None = None
    low: int = 0
    count: int = 0

    def read(self, stop: int) -> None:
        """Records up to here."""
        drawn = self.living.apply_batch(batch(self.log, self.living.position, stop, of=self.living))
        self.releases += list(drawn)

    def commit(self, *, most: int) -> None:
        """Some rows are saved; releases that they are past are let go."""
        for key, row in self.living.save(most=most):
            self.rows[key] = row
            self.releases = [release for release in self.releases if release.identity.key != key]
        self.ages, self.low, self.count = (
            self.living.ages(), self.living.low_water(), self.living.rows,
        )  # fmt: skip

    def rebuilt(self, *, idle: int | None = 1000, step: int = 5) -> sd.Engine:
        """The engine again."""
        new = engine(idle=idle)
        rebuilding = Rebuilding(
            new, rows=list(self.rows.items()), releases=self.releases,
            ages=self.ages,
        )  # fmt: skip
        end = self.living.position
        for start in range(self.low, end, step):
            rebuilding.feed(batch(self.log, start, min(start + step, end), of=new))
        return rebuilding.finish(position=end, rows=self.count)


def state(of: sd.Engine) -> dict[str, Any]:
    """All that an engine is, by key."""
    bank, held = of._bank, of._bank.columns()
    columns = ("born", "slots", "block", "action", "sums", "seen", "first_offset")
    members: dict[str, Any] = {
        name: {key: held[name][row].tolist() for row, key in enumerate(bank.keys)}
        for name in columns
    }
    assert of.idleness is not None
    members["away"] = of.idleness.away
    members["carried"] = {key: carried.after for key, carried in of._heritage.items()}
    members["leaving"] = {key: row[:2] for key, row in of._going_idle.items()}
    return members


def a_log(chance: random.Random, *, records: int) -> Logged:
    """Keys with pauses of many lengths between them; times fall back a little now and then."""
    now, log = 10, []
    for _ in range(records):
        now += chance.choice([0, 0, 0, 0, 0, 0, 0, 50, 100, 300, 2500, 2500])
        log.append((chance.choice([b"a", b"b", b"c", b"d"]), max(1, now - chance.choice([0, 40]))))
    return log


@pytest.mark.slow
def test_is_a_rebuilt_engine_the_one_that_was_whenever_keys_left_and_came_back() -> None:
    """Many small stories: of a key two learners may be recorded, and none or either be saved."""
    twice = going_idle = 0
    for seed in range(15):
        chance = random.Random(seed)
        kept = Kept(a_log(chance, records=80))
        while kept.living.position < 80:
            kept.read(min(80, kept.living.position + chance.randint(1, 25)))
            kept.commit(most=chance.choice([1, 1, 2]))
            twice += two_learners(kept)
            going_idle += kept.living.rows > len(kept.living)
            again = kept.rebuilt(step=chance.randint(1, 9))
            assert state(again) == state(kept.living), seed
            if chance.random() < 0.3:
                kept.living = again
    assert twice > 10
    assert going_idle > 10


def two_learners(kept: Kept) -> bool:
    """Whether a key without any saved row that is told of has openings of two learners."""
    keys = {release.identity.key for release in kept.releases}
    openings = [release.identity.key for release in kept.releases if release.kind == "opening"]
    return not keys & kept.rows.keys() and len(set(openings)) < len(openings)


# -- a whole partition leaves at once ------------------------------------------------------------


@pytest.mark.parametrize("made", ALL)
@pytest.mark.parametrize("then", ["stays", "is taken out"])
def test_does_no_cut_hold_more_rows_than_its_share_when_everybody_leaves(
    made: Callable[..., Any], then: str
) -> None:
    """A commit of any size fails in the end, and would again: dropped rows take turns too.

    Between the cuts it is killed; whoever takes it again knows as much, also without `idle`.
    """
    keys = [b"key %d" % at for at in range(30)]
    hours = [10 + at * 0.001 for at in range(60)] + [13.0, 16.0, 16.1]
    store = dated(made(), hours, [*keys, *keys, None, None, keys[7]])
    of, now = idles(made()), 0.0
    work, pace = restore(store, of), Pace(bytes_a_cut=5 * idles(made()).row_bytes)
    work.absorb(work.read(store.records(0, 62)))
    held = []
    while work.urgent or work.behind:
        now += 60
        commit = work.cut(now=now, pace=pace).commit
        rows = [key for key, value in commit.state if value is not None and is_row(key)]
        held.append(len(rows))
        store.decide(commit)
        if len(held) % 2:
            work = restore(store, of)
            assert work.engine._bank.keys == [None]
            assert work.engine.idleness is not None
            assert work.engine.idleness.away == {*keys}
    assert max(held) == 5
    assert sum(held) == 31
    later = of if then == "stays" else replace(of, idle=None)
    live(store, later, store.end)
    assert judge(evidence(store)) == []
    assert verified(store, later) == []
    assert then != "stays" or folded(store, of) == []
    born = {line.born for line in charges(store) if line.identity.key == keys[7]}
    assert born == ({7, 62} if then == "stays" else {7})


@pytest.mark.parametrize("cuts", [1, 3])
def test_do_keys_that_leave_go_on_where_idle_is_taken_out_before_they_are_saved(cuts: int) -> None:
    """As if they had never left, whether a save holds them by then or their records do."""
    keys = [b"key %d" % at for at in range(9)]
    hours = [10 + at * 0.001 for at in range(18)] + [13.0, 13.5]
    store = dated(leader(), hours, [*keys, *keys, None, None])
    of = idles(leader())
    work, pace = restore(store, of), Pace(bytes_a_cut=2 * of.row_bytes)
    work.absorb(work.read(store.records(0, 20)))
    for _ in range(cuts):
        store.decide(work.cut(now=0, pace=pace).commit)
    assert work.engine.rows > len(work.engine) == 1
    again = restore(store, replace(of, idle=None))
    assert {*again.engine._bank.keys} == {*keys, None}
    whole = restore(replace(store, state={}, ledger=[], actions=[], group=None), again.spec)
    whole.absorb(whole.read(store.records(0, 20)))
    assert sums(again.engine) == sums(whole.engine)


def sums(of: sd.Engine) -> dict[Key, Any]:
    """What each key's open block holds, and since when."""
    bank = of._bank
    return {
        key: (bank.born[row], bank.slots[row], bank.block[row], bank.private["sums"][row].tolist())
        for row, key in enumerate(bank.keys)
    }


def is_row(place: bytes) -> bool:
    """Whether an entry of the state is a saved row."""
    return b'"row"' in place


# -- idle is switched on, or off ------------------------------------------------------------------


def test_may_a_rebuild_under_a_new_idle_read_many_periods() -> None:
    """Rows that nothing came for are dropped at its end, before they are counted again."""
    log = [(b"x", 0)] * 3 + [(b"y", 1000 * at) for at in range(3, 10)]
    kept = Kept(log, living=engine(idle=None))
    kept.read(4)
    kept.commit(most=1)
    assert list(kept.rows) == [b"x"]
    kept.read(10)
    kept.living = kept.rebuilt()
    kept.commit(most=0)
    assert (kept.count, kept.ages) == (1, Ages(idle=1000, since=3000, newest=9000, low=3000))
    again = kept.rebuilt()
    assert state(again) == state(kept.living)
    assert again.idleness is not None
    assert again.idleness.away == {b"x"}


@pytest.mark.parametrize("time", [0, 9_000_000])
def test_does_a_record_whose_key_gets_no_learner_begin_time(time: int) -> None:
    """Its time stands for that of rows that were saved without one: they are not long gone."""
    kept = Kept([(b"x", 0)] * 3, living=engine(idle=None))
    kept.read(3)
    kept.commit(most=9)
    kept.living = kept.rebuilt()
    assert kept.living.ages() is None
    kept.living.reach(time)
    kept.living.skip_to(4)
    kept.commit(most=9)
    assert kept.ages == Ages(idle=1000, since=time, newest=time, low=time)
    assert kept.count == 1
    engine(idle=None).reach(time)  # says nothing where no key goes idle


def test_does_a_key_that_is_away_go_on_where_idle_is_taken_out() -> None:
    """Under its old `born`, with its block still open: none of its records came meanwhile."""
    log = [(b"x", 10)] * 5 + [(b"y", 5000)] + [(b"x", 6000)] * 4
    kept, whole = Kept(log), engine(idle=None)
    kept.read(6)
    kept.commit(most=9)
    assert kept.living._bank.keys == [b"y"]
    kept.count = 1
    kept.living = kept.rebuilt(idle=None)
    kept.releases = []
    kept.read(10)
    drawn = [
        release
        for release in whole.apply_batch(batch(log, 0, 10, of=whole))
        if release.last_offset > 5
    ]
    assert [(release.identity, release.action) for release in kept.releases] == [
        (release.identity, release.action) for release in drawn
    ]


# -- unusual records ------------------------------------------------------------------------------


def test_are_times_known_before_there_is_any_row() -> None:
    """Records whose keys get no learner, of the time 0: a restart finds `ages` and no row."""
    store = dated(leader(), [0, 0, 0, 3, 6], [b"x" * 99] * 3 + [b"fr"] * 2)
    for stop in (2, 3, 4, 5):
        live(store, idles(leader()), stop)
    assert len(restore(store, idles(leader())).engine) == 1
    assert folded(store, idles(leader())) == []


def test_does_time_stand_still_where_no_record_came() -> None:
    """Offsets without records say nothing: rows saved without a time would count as long gone."""
    store = of_two(leader())
    work = restore(store, idles(leader()))
    work.absorb(work.read(Records(HOME, 0, [], [], [], 0, timestamps=[])))
    assert work.engine.ages() is None


def test_does_a_long_key_that_is_away_come_back_where_the_limit_was_lowered() -> None:
    """Like one that has a learner: otherwise a rebuild gave its records to the row of before."""
    hours = [*(10 + at * 0.01 for at in range(9)), 13.0, 16.0, 16.1, 16.2, 16.3]
    keys = [b"a long key"] * 9 + [b"fr", b"fr", b"a long key", b"a long key", b"fr"]
    store, of = dated(leader(), hours, keys), idles(leader())
    live(store, of, 11)
    lowered = replace(of, most_key_bytes=4)
    work = restore(store, lowered)
    work.absorb(work.read(store.records(11, store.end)))
    assert work.keys_refused == 0
    assert work.engine.knows(b"a long key")
    assert not work.engine.knows(b"never seen")
    live(store, lowered, store.end)
    lines = openings_of(store, b"a long key")
    assert [line.mechanism for line in lines] == ["uniform", "carried"]
    assert judge(evidence(store)) == []
    assert verified(store, lowered) == []


# -- what is refused halfway ----------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 3])
def test_is_an_engine_not_whole_when_a_part_of_a_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """What the part before drew is lost with the batch; where there is none, time has moved on."""
    refused = engine()
    monkeypatch.setattr(plan, "LAST_SLOT", 3)
    log = [(b"x", 10)] * before + [(b"x", 10 * HOUR)] * 4
    with pytest.raises(InvalidConfig, match="too many slots"):
        refused.apply_batch(batch(log, 0, before + 4, of=refused))
    again = batch(log, before, before + 1, of=refused)
    for use in (refused.save, lambda: refused.apply_batch(again), lambda: refused.reach(1)):
        with pytest.raises(StateMismatch, match="failed halfway"):
            use()
