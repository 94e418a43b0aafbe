"""Does any public byte tell how records were batched or when commits were made? None may.

Both follow the clock, and the clock can be moved by content: the time that decoding takes is not
the same for every payload. So what is published is held to be a function of the input, of the
configuration and of what was drawn: the same values in the same order for every way to cut.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

import streamdp as sd
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.core.releases import Releases
from streamdp.ports import Published
from streamdp.service import protocol
from streamdp.service.protocol import PartitionWork
from streamdp.service.settings import Pace
from streamdp.service.spec import StreamSpec
from streamdp.testing.judge import judge
from streamdp.wire.published import Lines
from streamdp.wire.recording import ReadyReleases, record_all
from tests.support.protocol_model import Store, evidence, finish, fold, restore
from tests.support.streams import ACTIONS, events, feedback_spec, shown, spec

STREAM = spec(
    learner=sd.prefix_softmax(actions=("a", "b", "c"), epsilon="1/2", schedule="capped 3"),
    estimates=[sd.estimate("block_regret", epsilon="1/4", min_length=2)],
    most_keys=3,
)
CLICKS = replace(
    feedback_spec(
        name="home",
        learner=FEEDBACK_RECIPES["policy_elimination"](
            actions=ACTIONS, epsilon="1/2", schedule="capped 3"
        ),
    ),
    most_keys=3,
)
RECORDS = events(150, keys=[b"fr", b"de", b"it", b"beyond the limit", None])


def go_on(store: Store, work: PartitionWork, stream: StreamSpec, *, cuts: int, to: int) -> None:
    """Up to a record: batches, commits, saved rows and crashes as `cuts` seeds them."""
    chance, now = random.Random(cuts), 0.0
    pace = Pace(records=chance.choice([5, 1000]), seconds=chance.choice([1.0, 99.0]))
    while work.engine.position < to:
        stop = min(to, work.engine.position + chance.choice([1, 2, 7, 40, 150]))
        work.absorb(work.read(store.records(work.engine.position, stop)))
        for _ in range(chance.choice([0, 0, 1, 2])):
            now += chance.random()
            store.decide(work.cut(now=now, pace=pace).commit)
        if chance.random() < 0.2:
            work = restore(store, stream)
    while work.urgent or work.point.next_offset < to:
        store.decide(work.cut(now=now, pace=pace).commit)


def published(*, cuts: int, of: str = "losses") -> tuple[list[Published], list[Published]]:
    """All that is public after two epochs, the second one from record 75 on."""
    stream, store = STREAM, Store(RECORDS)
    if of == "feedback":
        records, headers = shown(150, keys=[b"fr", b"de", b"it", b"beyond the limit", None])
        stream, store = CLICKS, Store(records, headers=headers)
    go_on(store, restore(store, stream), stream, cuts=cuts, to=75)
    second = replace(stream, epoch=2)
    go_on(store, restore(store, second), second, cuts=cuts + 1, to=150)
    assert judge(evidence(store)) == []
    return store.actions, store.ledger


@cache
def published_once(of: str = "losses") -> tuple[list[Published], list[Published]]:
    """What all other cuts are compared with."""
    return published(cuts=0, of=of)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", range(1, 25))
def test_changes_no_public_byte_with_how_batches_and_commits_were_cut(cuts: int) -> None:
    """Actions and ledger, in their order, with crashes between."""
    assert published(cuts=cuts) == published_once()


@pytest.mark.parametrize("cuts", range(1, 7))
def test_changes_no_public_byte_of_feedback_either(cuts: int) -> None:
    """Policies and sums, in their order, with crashes between."""
    assert published(cuts=cuts, of="feedback") == published_once("feedback")


def test_is_a_line_that_counts_commits_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: all lines of a commit get a number that is one higher than the last commit's."""
    commits = 0

    def by_commit(
        releases: Releases, *, lines: Lines, ordinal: int, input_id: str | None
    ) -> ReadyReleases:
        assert input_id is None
        nonlocal commits
        commits += 1
        written, own = record_all(releases, lines=lines, ordinal=ordinal), b'"ordinal":%d' % commits
        ledgers = [line.replace(b'"ordinal":', own) for line in written.ledgers]
        return replace(written, ledgers=ledgers)

    def ledger(*stops: int) -> list[Published]:
        nonlocal commits
        commits, store = 0, Store(RECORDS)
        work = restore(store, STREAM)
        for stop in stops:
            work.absorb(work.read(store.records(work.engine.position, stop)))
            store.decide(work.cut(now=0, pace=Pace()).commit)
        finish(store, work)
        return store.ledger

    assert ledger(150) == ledger(20, 50, 150)
    monkeypatch.setattr(protocol, "record_all", by_commit)
    assert ledger(150) != ledger(20, 50, 150)


# A stream that has lines of schema 1


def test_does_the_fold_hold_ordinals() -> None:
    """The judge compares whole lines: a ledger that counts from 2 is none."""
    store, stream = Store(events(60)), spec()
    finish(store, restore(store, stream))
    assert fold(store, stream, whole="whole") == []
    moved = [
        replace(record, value=record.value.replace(b'"ordinal":1,', b'"ordinal":2,'))
        for record in store.ledger
    ]
    store.ledger = moved
    assert "from line 1 on" in fold(store, stream, whole="whole")[0]
    assert judge(evidence(store)) != []
