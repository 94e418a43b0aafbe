"""Does any public byte tell how records were batched or when commits were made? None may.

Both follow the clock, and the clock can be moved by content: the time that decoding takes is not
the same for every payload. So what is published is held to be a function of the input, of the
configuration and of what was drawn: the same values in the same order for every way to cut.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import streamdp as sd
from streamdp.core.errors import StateMismatch
from streamdp.core.events import Releases
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.ports import Published
from streamdp.service import protocol
from streamdp.service.protocol import Pace, PartitionWork
from streamdp.service.spec import StreamSpec
from streamdp.testing.judge import judge
from streamdp.wire.entries import Entries
from streamdp.wire.lines import PoolLine, PriorLine, ordinal_of
from streamdp.wire.published import Lines, Mode, decode_ledger
from streamdp.wire.recording import Entry, record_all
from streamdp.wire.state import _FirstCheckpoint, read_state
from tests.golden_wire import SHOWN
from tests.support.protocol_model import Store, evidence, finish, fold, restore
from tests.support.streams import ACTIONS, events, feedback_spec, shown, spec

SCHEMA_1 = Path(__file__).parent / "golden" / "wire" / "schema1"

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
        work.absorb([store.records(work.engine.position, stop)], mode=Mode.LIVE)
        for _ in range(chance.choice([0, 0, 1, 2])):
            now += chance.random()
            store.decide(work.cut(now=now, pace=pace).commit)
        if chance.random() < 0.2:
            work = restore(store, stream)
    while work.urgent or work.committed < to:
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


@pytest.mark.slow
@pytest.mark.parametrize("cuts", range(1, 25))
def test_changes_no_public_byte_with_how_batches_and_commits_were_cut(cuts: int) -> None:
    """Actions and ledger, in their order, with crashes between."""
    assert published(cuts=cuts) == published(cuts=0)


@pytest.mark.parametrize("cuts", range(1, 7))
def test_changes_no_public_byte_of_feedback_either(cuts: int) -> None:
    """Policies and sums, in their order, with crashes between."""
    assert published(cuts=cuts, of="feedback") == published(cuts=0, of="feedback")


def test_is_a_line_that_counts_commits_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: all lines of a commit get a number that is one higher than the last commit's."""
    commits = 0

    def by_commit(
        releases: Releases, *, lines: Lines, mode: Mode, ordinal: int, input_id: str | None
    ) -> list[Entry]:
        assert input_id is None
        nonlocal commits
        commits += 1
        return [
            entry._replace(ledger=entry.ledger.replace(b'"ordinal":', b'"ordinal":%d' % commits))
            for entry in record_all(releases, lines=lines, mode=mode, ordinal=ordinal)
        ]

    def ledger(*stops: int) -> list[Published]:
        nonlocal commits
        commits, store = 0, Store(RECORDS)
        work = restore(store, STREAM)
        for stop in stops:
            work.absorb([store.records(work.engine.position, stop)], mode=Mode.LIVE)
            store.decide(work.cut(now=0, pace=Pace()).commit)
        finish(store, work)
        return store.ledger

    assert ledger(150) == ledger(20, 50, 150)
    monkeypatch.setattr(protocol, "record_all", by_commit)
    assert ledger(150) != ledger(20, 50, 150)


# A stream that has lines of schema 1


def in_the_old_layout(store: Store) -> None:
    """Make state and ledger what the version before would have written; commits count from 1."""
    places = Entries("home", 0)
    saved = read_state(store.state, stream="home", partition=0)
    point = saved.checkpoint
    assert point is not None
    fields = msgspec.structs.asdict(point) | {"version": 1, "min_reader": 1}
    known = {name: fields[name] for name in _FirstCheckpoint.__struct_fields__}
    store.state[places.checkpoint] = msgspec.json.encode(known)
    for place, value in list(store.state.items()):
        if b'"release"' in place:
            drawn, ledger, action = value.split(b"\n")
            ordinal = msgspec.json.decode(drawn)["ordinal"]
            seq = point.commit_seq if ordinal > point.lines_published else point.commit_seq - 1
            drawn = drawn.replace(b'"version":2,"min_reader":2', b'"version":1,"min_reader":1')
            old = b"\n".join((_old(drawn, seq), _old(ledger, seq), action))
            store.state[place] = old
    store.ledger = [
        replace(record, value=_old(record.value, point.commit_seq - 1)) for record in store.ledger
    ]


def _old(line: bytes, commit_seq: int) -> bytes:
    ordinal = msgspec.json.decode(line)["ordinal"]
    line = line.replace(b'"ordinal":%d,' % ordinal, b'"commit_seq":%d,' % commit_seq)
    return line.replace(b'"schema":2', b'"schema":1')


@pytest.mark.parametrize("way", ["same epoch", "new epoch"])
def test_does_a_stream_with_lines_of_schema_1_go_on(way: str) -> None:
    """What waits is published as it was recorded, once; then lines have ordinals from 1 on."""
    store = Store(events(90))
    stream = spec()
    work = restore(store, stream)
    for stop in (30, 60):
        work.absorb([store.records(work.engine.position, stop)], mode=Mode.LIVE)
        store.decide(work.cut(now=0, pace=Pace()).commit)
    in_the_old_layout(store)
    old, waiting = len(store.ledger), store.state.copy()
    stream = replace(stream, epoch=2) if way == "new epoch" else stream
    finish(store, restore(store, stream))
    assert judge(evidence(store)) == []
    lines = [decode_ledger(record.value) for record in store.ledger]
    last_old = max(at for at, line in enumerate(lines) if line.schema == 1)
    assert last_old >= old
    recorded = {value.split(b"\n")[1] for value in waiting.values() if value.count(b"\n") == 2}
    assert {record.value for record in store.ledger[old : last_old + 1]} <= recorded
    assert [ordinal_of(line) for line in lines[last_old + 1 :]] == list(
        range(1, len(lines) - last_old)
    )
    again = restore(store, stream)
    assert not again.urgent


def test_is_a_state_rolled_back_to_the_old_layout_found() -> None:
    """By the lines with ordinals, of which it knows none; and by commits among old ones."""
    store, stream = Store(events(90)), spec()
    work = restore(store, stream)
    for stop in (30, 60):
        work.absorb([store.records(work.engine.position, stop)], mode=Mode.LIVE)
        store.decide(work.cut(now=0, pace=Pace()).commit)
    in_the_old_layout(store)
    old = store.state.copy()
    finish(store, restore(store, stream))
    store.state = old
    with pytest.raises(StateMismatch, match="rolled back: the ledger has a later line"):
        restore(store, stream)
    early = Store(store.input, state=old, ledger=store.ledger[:1])
    late = _old(work._waiting.entries[0].ledger, 9)
    early.ledger.append(Published(0, 1, b"fr", late))
    with pytest.raises(StateMismatch, match="expected a state of commit 10 or later"):
        restore(early, stream)


def test_are_the_golden_files_of_schema_1_read() -> None:
    """Lines and state as the version before wrote them, to the byte."""
    lines = msgspec.json.decode((SCHEMA_1 / "published.json").read_bytes())
    for published in lines.values():
        line = decode_ledger(published["ledger"].encode())
        assert not isinstance(line, PriorLine | PoolLine)
        assert (line.schema, ordinal_of(line)) == (1, None)
        assert line.commit_seq in {9, 10}
    texts = msgspec.json.decode((SCHEMA_1 / "state.json").read_bytes())
    entries = {key.encode(): value.encode() for key, value in texts.items()}
    saved = read_state(entries, stream="home", partition=0)
    assert saved.checkpoint is not None
    assert (saved.checkpoint.lines_recorded, saved.checkpoint.commit_seq) == (0, 9)
    assert {entry.release for entry in saved.releases.values()} == set(SHOWN.values())
    assert {(entry.ordinal, entry.commit_seq) for entry in saved.releases.values()} == {(None, 9)}


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
