"""Does a budget belong to the input, whatever its streams are called (P11)?

A renamed stream has no state and would read every event again. Each ledger alone then says ε, while
the events have paid 2ε. Real files, the real service and the real commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

import streamdp as sd
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.ports import LastCommit, Partition, Published
from streamdp.service.charges_by_others import (
    ALONE,
    ChargesByOthers,
    EpochReading,
    Scope,
    Tally,
    alone,
)
from streamdp.service.config import Configuration
from streamdp.service.ledgers import Ledgers
from streamdp.service.protocol import Cut, PartitionWork, Restoring
from streamdp.service.settings import Pace
from streamdp.service.taking import Decision
from streamdp.service.view import Reason
from streamdp_adapters.sqlite.tools import SqliteAdministrator
from tests.support.calling import Streamdp
from tests.support.good_ledger import GOOD, HOME
from tests.support.protocol_model import Store, restore
from tests.support.renaming import charges, configured, lived, verified
from tests.support.services import Lines
from tests.support.streams import ACTIONS, events, spec


def test_does_a_renamed_stream_begin_behind_what_was_read(
    streamdp: Streamdp, tmp_path: Path
) -> None:
    """The budget does not cover the sum, so no event is charged by both."""
    assert lived(configured(tmp_path, "one"), 60) is None
    before = charges(configured(tmp_path, "one"), "one")
    path = configured(tmp_path, "two")
    assert lived(path, 60) is None
    after = charges(path, "two")
    assert min(line.first_offset for line in after) == max(line.last_offset for line in before) + 1
    assert verified(streamdp, path) == (0, "1/2", ["shop.one.ledger"])


def test_does_a_renamed_stream_begin_early_where_the_budget_covers_it(
    streamdp: Streamdp, tmp_path: Path
) -> None:
    """Twice the charge, and verify says so without being told of the old name."""
    assert lived(configured(tmp_path, "one"), 60) is None
    path = configured(tmp_path, "two", budget="1")
    assert lived(path, 1) is None
    assert min(line.first_offset for line in charges(path, "two")) == 0
    assert verified(streamdp, path) == (0, "1", ["shop.one.ledger"])


def test_is_a_budget_spent_twice_found(
    streamdp: Streamdp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: a service that looks at no other ledger. Its own ledger alone looks well."""

    async def nobody(self: Ledgers, stream: str, scope: Scope) -> ChargesByOthers:
        return await alone(stream, scope)

    assert lived(configured(tmp_path, "one"), 60) is None
    path = configured(tmp_path, "two")
    monkeypatch.setattr(Ledgers, "by_others", nobody)
    assert lived(path, 1) is None
    assert verified(streamdp, path) == (1, "1", ["shop.one.ledger"])


def test_does_a_stream_that_was_renamed_back_halt(streamdp: Streamdp, tmp_path: Path) -> None:
    """It has a state, so it would go on at its own position, which the other has passed."""
    assert lived(configured(tmp_path, "one"), 60) is None
    assert lived(configured(tmp_path, "two"), 60) is None
    path = configured(tmp_path, "one")
    assert lived(path, 1) is Reason.STATE
    assert verified(streamdp, path)[:2] == (0, "1/2")
    read_by_two = max(line.last_offset for line in charges(path, "two"))
    again = configured(tmp_path, "one", epoch=2)
    assert lived(again, 60) is None
    new = [line for line in charges(again, "one") if line.epoch == 2]
    assert min(line.first_offset for line in new) > read_by_two
    assert verified(streamdp, again) == (0, "1/2", ["shop.two.ledger"])


def test_does_a_stream_halt_whose_open_blocks_another_has_charged(
    streamdp: Streamdp, tmp_path: Path
) -> None:
    """Its position is not passed, but blocks that it has begun hold records that the other charged.

    The other began behind its ledger, which says nothing of blocks that have not ended.
    """
    assert lived(configured(tmp_path, "one"), 60) is None
    behind = max(line.last_offset for line in charges(configured(tmp_path, "one"), "one")) + 1
    assert lived(configured(tmp_path, "two"), 0) is None
    path = configured(tmp_path, "one")
    by_two = charges(path, "two")
    assert behind <= min(line.first_offset for line in by_two)
    assert max(line.last_offset for line in by_two) < 60  # the position of the first
    foretold = streamdp("doctor", "--config", str(path), "--json")
    details = {finding["subject"]: finding["detail"] for finding in foretold.json}
    assert foretold.code == 1
    assert "others have charged the same records" in details["partition one/0: state"]
    assert lived(path, 10) is Reason.STATE
    assert verified(streamdp, path)[:2] == (0, "1/2")
    again = configured(tmp_path, "one", epoch=2)
    assert lived(again, 10) is None
    assert verified(streamdp, again) == (0, "1/2", ["shop.two.ledger"])


@pytest.mark.parametrize(
    ("room", "last", "foreseen"),
    [("0", 39, ["shop.one.ledger"]), ("1/2", 39, []), ("0", 2, [])],
)
def test_is_a_halt_foreseen_that_only_the_rebuild_is_sure_of(
    room: str, last: int, foreseen: list[str]
) -> None:
    """Rows that lag behind bound from where on blocks are open; others must have charged there."""
    stream, store = spec(), Store(events(40, keys=[b"a", b"b", b"c", b"d", b"e"]))
    work, slow = restore(store, stream), Pace(records=10**6, seconds=10**6)
    for start, stop in ((0, 20), (20, 40), (40, 40)):
        if start < stop:
            work.absorb(work.read(store.records(start, stop)))
        store.decide(work.cut(now=0, pace=slow).commit)
    others = by_others(room, reading(last, "1/2"))
    restoring = Restoring(stream, Partition("home", 0), store.taken(), by_others=others)
    assert restoring.span
    assert restoring.foresee() == foreseen


def test_is_a_block_that_another_has_charged_in_part_found(
    streamdp: Streamdp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: only what is read from the position on counts."""
    assert lived(configured(tmp_path, "one"), 60) is None
    assert lived(configured(tmp_path, "two"), 0) is None
    monkeypatch.setattr(Restoring, "_oldest_uncharged", lambda self, engine: engine.position)
    path = configured(tmp_path, "one")
    assert lived(path, 10) is None
    assert verified(streamdp, path)[:2] == (1, "1")


@pytest.mark.parametrize("epoch", [1, 2])
def test_does_a_stream_halt_whose_waiting_releases_another_has_charged(epoch: int) -> None:
    """What was recorded and not published is in no ledger, so another may have begun before it.

    No epoch takes it back: whichever comes next publishes it. So only more budget lets it go on.
    """
    stream, store = spec(), Store(events(6, keys=[b"k"]))  # blocks of 1, 2 and 3 slots: none open
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 6)))
    store.decide(work.cut(now=0, pace=Pace()).commit)
    other, later = by_others("0", reading(2, "1/2")), replace(stream, epoch=epoch)
    with pytest.raises(StateMismatch, match=r"raise the topic's budget; .*got 1/2, of which.*1/2:"):
        restore(store, later, by_others=other)
    assert restore(store, later, by_others=by_others("1/2", reading(2, "1/2"))).urgent
    store.decide(work.cut(now=0, pace=Pace()).commit)
    assert restore(store, later, by_others=other).engine.open_since() == 6


@pytest.mark.parametrize("sibling", ["0", "1/2"])
def test_may_a_lower_budget_come_while_releases_wait(sibling: str) -> None:
    """Where nobody else charges the records it is lawful; where another does, it is not covered."""
    stream, store = spec(), Store(events(6, keys=[b"k"]))
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 6)))
    store.decide(work.cut(now=0, pace=Pace()).commit)
    cheaper = sd.incumbent_leader(actions=ACTIONS, epsilon="1/4", schedule="capped 3")
    later = replace(stream, epoch=2, learner=cheaper)
    if sibling == "0":
        assert restore(store, later, by_others=by_others("0")).urgent
    else:  # the budget is 3/4 = 1/4 + 1/2, and 1/2 waits where the sibling may charge 1/2
        with pytest.raises(StateMismatch, match=r"at least 1 on .*got 3/4, of which.*configured"):
            restore(store, later, by_others=by_others("1/2", trial=sibling))


def crashed(path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A life that ends between recording releases and publishing them."""
    cut = PartitionWork.cut

    def crashing(self: PartitionWork, *, now: float, pace: Pace) -> Cut:
        made = cut(self, now=now, pace=pace)
        if made.commit.ledger:
            raise RuntimeError
        return made

    with monkeypatch.context() as patch:
        patch.setattr(PartitionWork, "cut", crashing)
        assert lived(path, count) is Reason.INTERNAL
    assert charges(path, "one") == []


def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the right to read the states of others."""

    async def refused(*_: object, **__: object) -> AsyncIterator[LastCommit]:
        for commit in list[LastCommit]():
            yield commit
        raise InvalidConfig("no right")

    monkeypatch.setattr(SqliteAdministrator, "last_commits", refused)


def test_does_a_new_epoch_publish_what_another_has_charged_since(
    streamdp: Streamdp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded, not published, charged by another, back with a new epoch: it halts.

    The other could not know: it may not read the state, as it logs. `doctor` says so too, and
    foretells the halt; with the budget that both need it goes on; `ledger verify` agrees.
    """
    crashed(configured(tmp_path, "one"), 60, monkeypatch)
    with monkeypatch.context() as patch:
        unreadable(patch)
        ended = streamdp("doctor", "--config", str(configured(tmp_path, "two")), "--json")
        assert "The state beside shop.one.ledger is gone or may not be read" in ended.out
        assert lived(configured(tmp_path, "two"), 0, log=(log := Lines())) is None
    assert log.of("past_without_state") == [{"ledger": "shop.one.ledger"}]
    path = configured(tmp_path, "one", epoch=2)
    ended = streamdp("doctor", "--config", str(path), "--json")
    details = {finding["subject"]: finding["detail"] for finding in ended.json}
    assert "raise the topic's budget" in details["partition one/0: state"]
    assert lived(path, 1) is Reason.STATE
    assert verified(streamdp, path) == (0, "1/2", ["shop.two.ledger"])
    dearer = configured(tmp_path, "one", epoch=2, budget="1")
    assert lived(dearer, 1) is None
    assert verified(streamdp, dearer) == (0, "1", ["shop.two.ledger"])


@pytest.mark.slow
def test_is_an_epoch_that_publishes_it_all_the_same_found(
    streamdp: Streamdp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: releases that wait are published whoever has charged their records."""
    crashed(configured(tmp_path, "one"), 60, monkeypatch)
    with monkeypatch.context() as patch:
        unreadable(patch)
        assert lived(configured(tmp_path, "two"), 0) is None
    path = configured(tmp_path, "one", epoch=2)
    monkeypatch.setattr(Decision, "waiting", lambda self: [])
    assert lived(path, 60) is None
    assert verified(streamdp, path)[:2] == (1, "1")


def test_does_a_lowered_sibling_count_with_what_it_charged_before(tmp_path: Path) -> None:
    """While `home` was away, `two` charged its waiting records all of the budget; `two` is lowered
    since, and `home` goes on in its epoch: it is told of the higher charge, and halts."""
    lived(configured(tmp_path, "two", budget="1", epsilon="1"), 60)
    path = configured(tmp_path, "home", "two", budget="1", epsilon="1/2", epoch=2)
    configuration = Configuration.load(path, {})
    ledgers = Ledgers(configuration, configuration.technology())
    history = asyncio.run(ledgers.by_others("home", Scope.EARLIER))
    assert (history.room, history.charged(0, 0)) == (Fraction(1, 2), Fraction(1))
    stream, store = spec(), Store(events(6, keys=[b"k"]))
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 6)))
    store.decide(work.cut(now=0, pace=Pace()).commit)
    with pytest.raises(StateMismatch, match="raise the topic's budget"):
        restore(store, stream, by_others=history)


def test_is_the_ledger_of_a_sibling_in_its_first_epoch_left_unread(tmp_path: Path) -> None:
    """It has charged what it charges, so a restart does not read it: start-up stays bounded."""
    lived(configured(tmp_path, "home", "two", budget="1", epsilon="1/2"), 30)
    configuration = Configuration.load(tmp_path / "shop.toml", {})
    ledgers = Ledgers(configuration, configuration.technology())
    assert asyncio.run(ledgers.by_others("home", Scope.EARLIER)).readings == ()
    assert asyncio.run(ledgers.by_others("home", Scope.ALL)).readings


def test_does_doctor_say_where_a_renamed_stream_would_begin(
    streamdp: Streamdp, tmp_path: Path
) -> None:
    """Before anything is started."""
    lived(configured(tmp_path, "one"), 60)
    end = max(line.last_offset for line in charges(configured(tmp_path, "one"), "one")) + 1
    ended = streamdp("doctor", "--config", str(configured(tmp_path, "two")), "--json")
    details = {finding["subject"]: finding["detail"] for finding in ended.json}
    assert details["partition two/0: state"].startswith(f"none yet: it would start at record {end}")
    assert "shop.one.ledger" in details["ledgers of streams that are no longer configured"]


# The arithmetic


def reading(
    last: int, charge: str, *, ledger: str = "shop.one.ledger", app: str = "shop"
) -> EpochReading:
    """Of partition 0."""
    return EpochReading(app, ledger, 0, Fraction(charge), last)


def by_others(
    room: str, *readings: EpochReading, elsewhere: str = "0", trial: str = "0"
) -> ChargesByOthers:
    """With a sibling `trial` that charges so much from now on."""
    siblings = {"shop.trial.ledger": Fraction(trial)} if trial != "0" else {}
    return ChargesByOthers("shop", Fraction(room), Fraction(elsewhere), siblings, readings)


@pytest.mark.parametrize(
    ("of", "begin"),
    [
        (ALONE, 10),
        (by_others("0", reading(9, "1/2")), 10),  # what was read before does not matter
        (by_others("0", reading(10, "1/2")), 11),
        (by_others("1/2", reading(99, "1/2")), 10),
        (by_others("1/2", reading(99, "1/2"), trial="1/4"), 100),
        (
            by_others("1/2", reading(50, "1"), reading(99, "1/2")),
            51,
        ),  # two epochs: never one record
        (by_others("1/2", reading(99, "1/2"), reading(70, "1/4", ledger="shop.b.ledger")), 71),
        (by_others("1/2", reading(50, "3/4", ledger="shop.trial.ledger"), trial="1/4"), 51),
        (by_others("1/2", reading(99, "1/4", app="search"), elsewhere="1/2"), 10),  # counts once
        (by_others("1/2", reading(99, "3/4", app="search"), elsewhere="1/2"), 100),
        (by_others("1/2", reading(99, "1/4"), elsewhere="1/2"), 100),
    ],
)
def test_begins_a_stream_at_the_first_record_that_the_budget_covers(
    of: ChargesByOthers, begin: int
) -> None:
    """And on another partition where it would anyway."""
    assert of.begin(0, 10) == begin
    assert of.begin(1, 10) == 10


def test_is_a_ledger_tallied_at_its_worst() -> None:
    """The kinds of an epoch add up; a line that cannot be read is an error, not a zero."""
    tally = Tally(HOME)
    tally.read(GOOD)
    assert tally.readings("home-losses") == [
        EpochReading("shop", "shop.home.ledger", 0, Fraction(1, 2), 6)
    ]
    assert tally.readings("another") == []
    dearer = replace(
        GOOD[3], value=GOOD[3].value.replace(b'"kind":"action"', b'"kind":"mean_loss"')
    )
    tally.read([dearer])
    assert tally.readings("home-losses")[0].charge == 1
    with pytest.raises(StateMismatch, match=r"shop\.home\.ledger partition 0 offset 7: .*unread"):
        tally.read([Published(0, 7, None, b"no line")])
