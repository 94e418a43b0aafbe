"""Does the partition's protocol release each block once, through any crash? A random model.

No transport and no task: a durable store, a worker's memory, and every order of cuts, crashes
before and after a commit's outcome is known, partial sweeps, rebuilds and saves. The judge looks
at what was published and at what anybody could have seen.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import streamdp as sd
from streamdp.core.errors import StateMismatch, TransportLost
from streamdp.ports import Partition, Records, Taken, Value
from streamdp.service import protocol, saved_entries
from streamdp.service.charges_by_others import ALONE
from streamdp.service.protocol import Restoring
from streamdp.service.saved_entries import SavedEntries
from streamdp.service.settings import Pace, Start
from streamdp.service.spec import StreamSpec
from streamdp.service.taking import open_partition
from streamdp.testing.judge import judge
from streamdp.wire.lines import EpochMark
from streamdp.wire.published import decode_ledger
from streamdp.wire.state import Remark, encode_remark
from tests.support import carrying
from tests.support.idling import idles
from tests.support.protocol_model import (
    HOME,
    Store,
    Story,
    evidence,
    finish,
    fold,
    restore,
    settle,
)
from tests.support.streams import events, feedback_spec, shown, spec

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12 * TIMES))  # each mutant is caught within six
def test_is_every_block_released_once_through_any_crash(seed: int) -> None:
    """Crashes before and after the outcome is known, at any point, with partial sweeps.

    Over 20 crashes for each of the first 12 seeds, over 10 for each of 240, most often 50. Six
    seeds find each of the protocol's mutants.
    """
    story = Story.of(seed)
    work = story.tell()
    assert story.crashes > (20 if seed < 12 else 10)
    assert story.wrong() == []
    assert not work.behind
    kinds = [name.split(b'"')[3] for name in story.store.state]
    assert kinds.count(b"release") == 0  # everything recorded was published, saved and let go


@pytest.mark.parametrize("lowered", [{"most_key_bytes": 1}, {"most_keys": 1}], ids=str)
def test_a_limit_that_was_lowered_takes_no_slots_from_learners_that_are_there(
    lowered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild from the log alone, under other limits: the same rows, and each block once.

    Without these slots a block would be open that was drawn from, and would be drawn from again.
    """
    monkeypatch.setattr(protocol.PartitionWork, "_share", lambda work, now, pace: 0)
    stream, store = spec(), Store(events(90))
    work = restore(store, stream)
    for stop in (20, 40, 60):
        work.absorb(work.read(store.records(work.engine.position, stop)))
        commit = work.cut(now=0.0, pace=Pace()).commit
        store.send(commit)
        store.decide(commit)
    again = restore(store, replace(stream, **lowered))
    for key in (b"fr", b"de", None):
        assert again.engine.slots(key) == work.engine.slots(key) > 10
        assert again.engine.action(key) == work.engine.action(key)
    again.absorb(again.read(store.records(60, store.end)))
    monkeypatch.undo()
    settle(store, again)
    assert judge(evidence(store)) == fold(store, stream, whole="whole") == []


def test_does_the_judge_catch_publishing_before_it_is_durable() -> None:
    """The mutant publishes in the commit that records: an abort shows a draw, a redraw another."""
    stream = spec(randomness=sd.SystemRandomness(), learner=sd.noisy_leader(
        actions=[str(n) for n in range(16)], epsilon="1/100", noise="exponential",
        schedule="capped 1"))  # fmt: skip
    store = Store([(b"k", b"{}")] * 40)
    for _ in range(2):
        work = restore(store, stream)
        work.absorb(work.read(store.records(0, store.end)))
        work.cut(now=0.0, pace=Pace())
        early = work.cut(now=0.0, pace=Pace())  # what the next commit publishes, sent too early
        store.send(early.commit)
    assert any("two different releases" in fault for fault in judge(evidence(store)))


def test_does_the_judge_catch_a_skipped_record() -> None:
    """A transport that loses a record and does not say so: the fold differs."""
    stream = spec()
    store = Store(events(60))
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 20)))
    work.absorb(work.read(replace(store.records(21, store.end), start=20)))
    finish(store, work)
    assert fold(store, stream, whole="whole") != []


@pytest.mark.parametrize("many", [0, 10_000])
@pytest.mark.parametrize("stream", [spec(), feedback_spec(name="home")], ids=["losses", "feedback"])
def test_a_state_is_restored_the_same_from_its_log(
    stream: StreamSpec, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that come again and deletions among them, in pieces, as a transport reads them.

    Deletions wait for later cuts here, so that some releases are behind their rows and still there.
    Brokers compact the log: up to some place they leave each entry's newest value, or deletion.
    """
    monkeypatch.setattr(saved_entries, "_MANY", many)
    behind = 0
    store, log = Store(events(200)), list[tuple[bytes, Value]]()
    if stream.learner.recipe.played is not None:
        records, headers = shown(200)
        store = Store(records, headers=headers)
    work, chance = restore(store, stream), random.Random(3)
    for stop in range(8, 200, 8):
        work.absorb(work.read(store.records(work.engine.position, stop)))
        with monkeypatch.context() as patch:
            patch.setattr(protocol, "_MOST_GONE", 2)
            commit = work.cut(now=stop / 2, pace=Pace()).commit
        store.decide(commit)
        log = compacted([*log, *commit.state], chance)
        told, at = list[int](), 0
        entries = SavedEntries(stream, HOME, told=told.append)
        entries.enter(
            *zip(*log[-1:], strict=True)
        )  # the newest checkpoint comes first, and again in its place
        while at < len(log):
            piece = chance.randrange(1, 9)
            entries.enter(*zip(*log[at : at + piece], strict=True))
            at += piece
        assert told[-1] == entries.entered >= len(log)  # the log says how far a taking is
        assert not any(b'"row"' in place for place in entries)
        entries.keep_needed()
        behind += len(entries.behind)
        assert store.state.keys() >= set(entries.behind)
        restored = []
        for taken in (store.taken(), replace(store.taken(), state=entries)):
            restoring = Restoring(stream, HOME, taken, by_others=ALONE)
            if restoring.proof:
                restoring.prove(store.records(restoring.proof.start, restoring.proof.stop))
            if restoring.span:
                restoring.feed(store.records(restoring.span.start, restoring.span.stop))
            again = restoring.finish()
            cut = again.cut(now=1e9, pace=Pace())
            restored.append((sorted(cut.commit.state, key=str), cut.commit.ledger))
        assert restored[0] == restored[1]
    assert behind > 100
    finish(store, restore(store, stream))
    assert [place for place in store.state if b'"release"' in place] == []


ROW = b'["home",0,"row",1,'
PLAIN = [ROW + key + b"]" for key in (b'"fr"', b'"de"', b'""', b'"a,]["')]
OTHERS = [
    ROW + b"null]", ROW + b'"\xc3\xa9"]', ROW + b'"\\""]', ROW + b'{"base64":"/w=="}]',
    ROW + b'"a"]\n' + ROW + b'"b"]', ROW + b'"a"]\n', ROW + b'"a', ROW + b'"\xff"]', ROW + b'"a" ]',
    ROW + b'"a","b"]', ROW + b"]", b'["home",0,"row",01,"a"]', b'["home",0,"row",2,"a"]',
    b'["home",1,"row",1,"a"]', b'["home",0,"renewal",1,"schema",17]', b"\n", b"",
]  # fmt: skip


def test_rows_are_told_apart_in_pieces_as_one_by_one() -> None:
    """Those whose keys are written plainly are put together; whatever else is there stays so."""
    of, chance, by_another_way = spec(), random.Random(5), 0
    for _ in range(300):
        places = chance.choices(PLAIN, k=chance.randrange(1, 9))
        for _ in range(chance.choice([0, 0, 1, 3])):
            places.insert(chance.randrange(len(places) + 1), chance.choice(OTHERS))
        log: list[tuple[bytes, Value]] = [(name, b"-" * at) for at, name in enumerate(places)]
        if chance.random() < 0.3:
            log[chance.randrange(len(log))] = (chance.choice(PLAIN), None)
        entries, alone = SavedEntries(of, HOME), SavedEntries(of, HOME)
        places, values = list[bytes](), list[Value]()
        for place, value in log:
            places.append(place)
            values.append(value)
            if place.startswith(ROW):
                alone._enter_others(alone._put_rows([place], [value]))
            else:
                alone.enter([place], [value])
        by_another_way += not SavedEntries(of, HOME)._put_plain(places, values)
        entries.enter(places, values)
        assert dict(entries) == dict(alone)
        told = [
            {key: str(why) for key, why in some.rows._wrong.items()} for some in (entries, alone)
        ]
        assert told[0] == told[1]
    assert 100 < by_another_way < 250


def compacted(
    log: Sequence[tuple[bytes, Value]], chance: random.Random
) -> list[tuple[bytes, Value]]:
    """The same log after the cleaner has been at some of it, and at deletions whose time is up."""
    place, old = chance.randrange(len(log)), chance.random() < 0.5
    head = {entry: at for at, (entry, _) in enumerate(log[:place])}
    return [
        (entry, value)
        for at, (entry, value) in enumerate(log)
        if at >= place or (head[entry] == at and not (old and value is None))
    ]


@pytest.mark.parametrize("start", [0, 13, 19, 21, 30])
def test_are_records_that_do_not_go_on_refused(start: int) -> None:
    """Left out or again: the partition is taken anew, and nothing of them was counted."""
    stream = spec()
    store = Store(events(60))
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 20)))
    with pytest.raises(TransportLost, match=f"expected offset 20, got {start}"):
        work.absorb(work.read(store.records(start, store.end)))
    parts = [store.records(20, 25), store.records(start, store.end)]
    with pytest.raises(TransportLost, match=f"expected offset 25, got {start}"):
        work.absorb([read for part in parts for read in work.read(part)])
    finish(store, work)
    assert fold(store, stream, whole="whole") == []


@pytest.mark.parametrize(
    "stream",
    [spec(), feedback_spec(name="home"), idles(carrying.leader()), idles(carrying.policies())],
    ids=["losses", "feedback", "losses, idle", "feedback, idle"],
)
def test_does_a_batch_without_records_only_move_the_position(stream: StreamSpec) -> None:
    """A transport sends one to pass offsets that hold no records."""
    store = Store([])
    work = restore(store, stream)
    store.decide(work.cut(now=0.0, pace=Pace()).commit)
    assert not work.behind
    work.absorb(work.read(Records(HOME, 0, (), (), (), 7)))
    assert (work.behind, work.urgent) == (True, False)
    cut = work.cut(now=0.0, pace=Pace())
    assert (cut.commit.next_offset, cut.commit.low_water, work.slots) == (7, 7, 0)


def test_is_a_rebuild_fed_without_a_gap() -> None:
    stream = spec()
    store = Store(events(60))
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 20)))
    work.engine.save = lambda *, most=None: []  # type: ignore[method-assign]
    store.decide(work.cut(now=0, pace=Pace()).commit)
    restoring = Restoring(stream, HOME, store.taken(), by_others=ALONE)
    restoring.feed(store.records(0, 7))
    with pytest.raises(TransportLost, match="expected offset 7, got 8"):
        restoring.feed(store.records(8, 20))


def test_does_the_judge_catch_a_release_published_twice_or_never() -> None:
    """One ledger line and one action record for each release."""
    stream = spec()
    store = Store(events(60))
    finish(store, restore(store, stream))
    assert judge(evidence(store)) == []
    twice = replace(evidence(store), ledger=[*store.ledger, store.ledger[3]])
    never = replace(evidence(store), actions=store.actions[1:])
    unpaid = replace(evidence(store), ledger=store.ledger[:-1])
    assert judge(twice)
    assert judge(never)
    assert judge(unpaid)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("rolled back", "rolled back"),
        ("lost state", "the state is gone"),
        ("lost input", "no longer retained; raise the epoch to go on"),
        ("shorter input", "truncated"),
        ("fewer partitions", "the input has fewer partitions"),
        ("another epsilon", "needs a new epoch"),
        ("older epoch", "deploy the newer one; expected epoch 2 or a later one, got 1"),
    ],
)
def test_does_a_partition_halt_rather_than_guess(broken: str, said: str) -> None:
    """Contradictions between state, ledger, input and configuration halt with a clear error."""
    stream = spec(epoch=2)
    store = Store(events(60))
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 30)))
    store.decide(work.cut(now=0, pace=Pace()).commit)
    old = dict(store.state)
    work.absorb(work.read(store.records(30, 60)))
    for _ in range(2):
        store.decide(work.cut(now=0, pace=Pace()).commit)
    taken = store.taken()
    match broken:
        case "rolled back":
            taken = replace(taken, state=old)
        case "lost state":
            taken = replace(taken, state={})
        case "lost input":
            taken = replace(taken, first_offset=59)
        case "shorter input":
            taken = replace(taken, end_offset=10)
        case "fewer partitions":
            taken = replace(taken, partitions=0)
        case "another epsilon":
            stream = spec(
                epoch=2, learner=sd.incumbent_leader(actions=["a", "b", "c"], epsilon="1/3")
            )
        case "older epoch":
            stream = spec(epoch=1)
    with pytest.raises(StateMismatch, match=said):
        open_partition(stream, HOME, taken, by_others=ALONE)


def test_is_a_lost_state_recognised_by_the_group_alone() -> None:
    """Offsets in a group without a checkpoint are evidence of a state that was lost."""
    taken = Taken({}, 0, 60, 12, None, 1)
    with pytest.raises(StateMismatch, match="the state is gone"):
        open_partition(spec(), HOME, taken, by_others=ALONE)
    assert open_partition(spec(epoch=2), HOME, taken, by_others=ALONE).position == 12
    remarked = replace(taken, remarks={0: encode_remark(Remark(epoch=2, began_with=1))})
    with pytest.raises(StateMismatch, match="epoch 3"):
        open_partition(spec(epoch=2), HOME, remarked, by_others=ALONE)
    assert open_partition(spec(epoch=3), HOME, remarked, by_others=ALONE).position == 12


@pytest.mark.parametrize(
    ("others", "position"),
    [
        ({}, 60),  # the stream's first start
        ({0: encode_remark(Remark(epoch=1, began_with=4))}, 60),  # still that, another was first
        ({0: encode_remark(Remark(epoch=1, began_with=2))}, 5),  # added
        ({0: "nothing that we wrote", 1: ""}, 60),
    ],
)
def test_does_a_partition_that_is_added_begin_at_its_first_record(
    others: dict[int, str], position: int
) -> None:
    """`latest` is said of the stream: what comes to a new partition comes after its beginning."""
    taken = Taken({}, 5, 60, None, None, 4, others)
    decision = open_partition(
        spec(start=Start.LATEST), Partition("home", 3), taken, by_others=ALONE
    )
    assert decision.position == position


@pytest.mark.parametrize(("start", "position"), [(Start.EARLIEST, 5), (Start.LATEST, 60)])
def test_does_a_first_start_begin_where_it_is_told(start: Start, position: int) -> None:
    """Without any trace of an earlier life, `start` decides, and the first cut makes it durable."""
    stream = spec(start=start)
    store = Store(events(60), first=5)
    work = restore(store, stream)
    assert work.engine.position == position
    assert work.urgent
    store.decide(work.cut(now=0, pace=Pace()).commit)
    store.first = 0
    assert restore(store, stream).engine.position == position


@pytest.mark.parametrize("crash", ["no crash", "before", "after"])
def test_is_a_new_epoch_the_way_out(crash: str) -> None:
    """Recorded releases are published, the mark comes once, and all starts anew behind it."""
    stream = spec()
    store = Store(events(90))
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 40)))
    store.decide(work.cut(now=0, pace=Pace()).commit)
    changed = spec(
        epoch=2, learner=sd.noisy_leader(actions=["x", "y"], epsilon="1", noise="gumbel")
    )
    work = restore(store, changed)
    assert work.engine.position == 40
    cut = work.cut(now=0, pace=Pace())
    if crash != "before":
        store.decide(cut.commit)
    if crash != "no crash":
        work = restore(store, changed)
    finish(store, work)
    lines = [decode_ledger(record.value) for record in store.ledger]
    marks = [at for at, line in enumerate(lines) if isinstance(line, EpochMark)]
    assert len(marks) == 1
    assert {line.epoch for line in lines[: marks[0]]} == {1}
    assert {line.epoch for line in lines[marks[0] :]} == {2}
    assert judge(evidence(store)) == []
    assert min(line.first_offset for line in lines[marks[0] + 1 :]) >= 40  # type: ignore[union-attr]
    assert all(b'"row",1' not in entry and b'"release",1' not in entry for entry in store.state)


def test_a_state_that_is_lost_after_an_epoch_began_is_passed_behind_its_mark() -> None:
    """The mark is the ledger's newest line, and alone says how far was read."""
    store = Store(events(61))
    finish(store, restore(store, spec()))
    settle(store, restore(store, replace(spec(), epoch=2)))
    assert isinstance(decode_ledger(store.ledger[-1].value), EpochMark)
    lost = replace(store.taken(), state={}, group_offset=None)
    decision = open_partition(replace(spec(), epoch=3), HOME, lost, by_others=ALONE)
    assert decision.position == store.end


def test_is_a_lost_state_passed_only_by_a_new_epoch_behind_everything() -> None:
    """P11: the position never moves back; it goes past the last record that any line has read."""
    stream = spec()
    store = Store(events(90))
    finish(store, restore(store, stream))
    store.state.clear()
    store.group = 3
    work = restore(store, spec(epoch=2))
    last = decode_ledger(store.ledger[-1].value)
    assert work.engine.position == last.last_offset + 1  # type: ignore[union-attr]
    finish(store, work)
    assert judge(evidence(store)) == []  # its ordinals go on behind the last line


def test_is_low_water_kept_near_the_position() -> None:
    """The sweep saves what is longest unsaved, so a rebuild never reads more than the bound."""
    stream = spec()
    store = Store(events(2000, keys=[str(n).encode() for n in range(50)]))
    work, pace = restore(store, stream), Pace(records=200, seconds=1000)
    for start in range(0, 2000, 20):
        work.absorb(work.read(store.records(start, start + 20)))
        cut = work.cut(now=start / 1000, pace=pace)
        store.decide(cut.commit)
        assert cut.checkpoint.next_offset - cut.checkpoint.low_water <= 200


def test_is_a_key_that_is_too_long_refused_and_counted() -> None:
    """Keys are public; a record under a key that no state entry could hold gets no learner."""
    stream = spec(most_key_bytes=4)
    store = Store([(b"short", b"{}"), (b"ok", b"{}"), (None, b"{}")])
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 3)))
    assert (work.keys_refused, len(work.engine), work.engine.position) == (1, 2, 3)


def test_has_nothing_a_size_that_depends_on_the_draw() -> None:
    """P5: neither recorded releases nor lines are longer for one action than for another."""
    names = ("a", "an action with a long name", "ü")
    learner = sd.noisy_leader(actions=names, epsilon="1/100", noise="gumbel", schedule="capped 1")
    sizes = set()
    for seed in range(20):
        stream = spec(learner=learner, randomness=sd.SeededRandomness(seed))
        store = Store([(b"k", b"{}")] * 5)
        work = restore(store, stream)
        work.absorb(work.read(store.records(0, 5)))
        cuts = [work.cut(now=0, pace=Pace()).commit for _ in range(2)]
        sizes.add(tuple(
            len(value or b"")
            for commit in cuts
            for value in [v for _, v in [*commit.state, *commit.actions, *commit.ledger]]
        ))  # fmt: skip
    assert len(sizes) == 1


def test_is_the_budget_of_a_stream_its_charge_with_estimates() -> None:
    """What a stream charges an event is the action and every estimate."""
    stream = spec(estimates=[sd.estimate("block_regret", epsilon="1/4", min_length=2)])
    assert stream.charge == Fraction(3, 4)
