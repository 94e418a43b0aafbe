"""Is no event spent twice by the ways out of a halt, or by configuration that changed?

The state may be rolled back, lost or older than the epoch; limits and topics may be changed. What
is published afterwards must read no record that a published block has read (P9, P11).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import UNSET, structs

import streamdp as sd
from streamdp.core.errors import OTHER_TOPIC, StateMismatch
from streamdp.ports import Partition, StreamTopics
from streamdp.service.assembly_spec import AssemblySpec
from streamdp.service.charges_by_others import ALONE, Tally
from streamdp.service.settings import Pace
from streamdp.service.spec import StreamSpec
from streamdp.service.taking import open_partition
from streamdp.testing.judge import judge
from streamdp.wire.entries import Entries
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from streamdp.wire.state import decode_checkpoint, encode_checkpoint
from streamdp_adapters.kafka.identity import recreated
from tests.support.protocol_model import HOME, Store, evidence, finish, fold, restore
from tests.support.streams import events, spec
from tests.support.visits import SPEC, TAKEN, saved_point

POINT = Entries("home", 0).checkpoint
EVERY_SLOT = sd.incumbent_leader(actions=["a", "b", "c"], epsilon="1/2", schedule="capped 1")


def charges(store: Store) -> list[Charge]:
    """The ledger's charges in order."""
    lines = [decode_ledger(record.value) for record in store.ledger]
    return [line for line in lines if isinstance(line, Charge)]


def lived(stream: StreamSpec, *, commits: int) -> tuple[Store, list[dict[bytes, bytes]]]:
    """A store after some commits of ten records each, and the state after each of them."""
    store, states = Store(events(100)), []
    work = restore(store, stream)
    for number in range(commits):
        work.absorb(work.read(store.records(number * 10, number * 10 + 10)))
        store.decide(work.cut(now=0, pace=Pace()).commit)
        states.append(dict(store.state))
    return store, states


@pytest.mark.parametrize("back", [1, 2, 4])
@pytest.mark.parametrize("group", ["the group remembers", "the group is lost"])
def test_is_a_rolled_back_state_passed_without_reading_an_event_twice(
    back: int, group: str
) -> None:
    """The new epoch begins behind every line and the group's offset, not at the old position."""
    stream = spec(learner=EVERY_SLOT)
    store, states = lived(stream, commits=6)
    store.state = states[-1 - back]
    if group == "the group is lost":
        store.group = None
    with pytest.raises(StateMismatch, match="rolled back"):
        restore(store, stream)
    before = charges(store)
    finish(store, restore(store, replace(stream, epoch=2)))
    after = charges(store)[len(before) :]
    assert after
    assert {line.epoch for line in after} == {2}  # what the old state recorded was public before
    assert min(line.first_offset for line in after) > max(line.last_offset for line in before)
    assert judge(evidence(store)) == []


def test_is_a_state_that_is_one_commit_old_recognised() -> None:
    """The ledger holds lines of the commit that the state was rolled back to."""
    stream = spec(learner=EVERY_SLOT)
    store, states = lived(stream, commits=3)
    store.state = states[-2]
    with pytest.raises(StateMismatch, match="rolled back: the ledger has a later line"):
        open_partition(stream, HOME, store.taken(), by_others=ALONE)


@pytest.mark.parametrize("left", [0, -1])
def test_a_ledger_that_lost_lines_halts_and_a_new_epoch_carries_nothing(left: int) -> None:
    """Whether all of its lines are gone or the newest: what is in force is in no evidence."""
    stream = spec(learner=EVERY_SLOT)
    store, _ = lived(stream, commits=3)
    kept = store.ledger[:left]
    taken = replace(store.taken(), last_ledger_line=kept[-1].value if kept else None)
    with pytest.raises(StateMismatch, match=r"the ledger has lost lines; .* was charged"):
        open_partition(stream, HOME, taken, by_others=ALONE)
    second = replace(stream, epoch=2)
    whole = open_partition(second, HOME, store.taken(), by_others=ALONE)
    decision = open_partition(second, HOME, taken, by_others=ALONE)
    assert (decision.new_epoch, decision.position) == (1, whole.position)
    assert (decision.carries, whole.carries) == (False, True)
    seen_later = replace(taken, later_ledger_line=store.ledger[-1].value)
    assert open_partition(stream, HOME, seen_later, by_others=ALONE).goes_on


def test_does_an_epoch_begin_only_once() -> None:
    """A state rolled back to before an epoch does not begin that epoch again."""
    stream = spec(learner=EVERY_SLOT)
    store, states = lived(stream, commits=3)
    finish(store, restore(store, replace(stream, epoch=2)))
    store.state = states[-1]
    with pytest.raises(StateMismatch, match="or epoch 3"):
        restore(store, replace(stream, epoch=2))
    before = charges(store)
    store.input += events(20, seed=9)
    finish(store, restore(store, replace(stream, epoch=3)))
    after = charges(store)[len(before) :]
    assert {line.epoch for line in after} == {3}
    assert min(line.first_offset for line in after) > max(line.last_offset for line in before)


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_is_an_input_that_was_made_again_never_read_by_an_epoch(state: str) -> None:
    """Its first records have offsets that were spent: waiting would skip them without a word."""
    stream = spec()
    store, _ = lived(stream, commits=4)
    if state == "lost":
        store.state = {}
    store.input = store.input[:10]
    with pytest.raises(StateMismatch, match="truncated or replaced, and its offsets are given"):
        restore(store, replace(stream, epoch=2))


def test_is_one_way_out_said_wherever_an_input_made_again_is_noticed() -> None:
    """At a taking, by id, end or last record, and by what watches while the service runs."""
    stream = spec()
    said = [str(recreated(stream.topics, HOME, stream.topics.input, known="one", now="two"))]
    for change in ("id", "end", "last record"):
        store, _ = lived(stream, commits=4)
        if change == "id":
            point = decode_checkpoint(store.state[POINT])
            store.state[POINT] = encode_checkpoint(structs.replace(point, input_id="one"))
            store.input_id = "two"
        else:
            store.input = store.input[:10] if change == "end" else events(100, seed=5)
        with pytest.raises(StateMismatch) as halted:
            restore(store, stream)
        said.append(str(halted.value))
    assert [text for text in said if OTHER_TOPIC not in text] == []
    for word in ("topic with another name", "stream with another name", "nothing learned"):
        assert word in OTHER_TOPIC


def test_does_that_way_lead_out_and_another_name_alone_not() -> None:
    """On a topic of the old name it begins behind what was charged, and skips as many records."""
    stream = spec(learner=EVERY_SLOT)
    store, _ = lived(stream, commits=4)
    tally = Tally(stream.topics)
    tally.read(store.ledger)
    renamed = spec(name="away", learner=EVERY_SLOT)
    begins = {}
    for topic in (stream.topics.input, "newer-losses"):
        second = replace(renamed, topics=replace(renamed.topics, input=topic))
        by_others = replace(ALONE, app=stream.topics.app, readings=tuple(tally.readings(topic)))
        taken = Store(events(100)).taken()
        begins[topic] = open_partition(
            second, Partition("away", 0), taken, by_others=by_others
        ).position
    charged = max(line.last_offset for line in charges(store)) + 1
    assert begins == {stream.topics.input: charged, "newer-losses": 0}


def test_does_a_stream_keep_its_input() -> None:
    """Offsets and charges belong to a topic: no epoch carries them over to another."""
    stream = spec()
    store, _ = lived(stream, commits=2)
    for state in (store.state, {}):
        store.state = state
        other = replace(stream, topics=StreamTopics("shop", "home", "other-losses"), epoch=2)
        with pytest.raises(StateMismatch, match="topics are not those that were read"):
            restore(store, other)


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("made", [spec(name="clicks"), SPEC], ids=["stream", "assembly"])
def test_does_no_epoch_go_on_with_fewer_partitions_or_the_state_of_another_kind(
    made: StreamSpec | AssemblySpec, epoch: int
) -> None:
    """Fewer partitions are another topic; neither a stream nor an assembly takes the other's."""
    (place, value), at = *saved_point().items(), Partition("clicks", 0)
    point = structs.replace(decode_checkpoint(value), digest=made.digest)
    of_stream = encode_checkpoint(structs.replace(point, joined=UNSET))
    states = [{place: of_stream}, {place: encode_checkpoint(point)}]
    later = replace(made, epoch=epoch)
    own, other = states if isinstance(made, StreamSpec) else reversed(states)
    open_partition(later, at, replace(TAKEN, state=own), by_others=ALONE)
    with pytest.raises(StateMismatch, match="fewer partitions than before"):
        open_partition(later, at, replace(TAKEN, state=own, partitions=1), by_others=ALONE)
    with pytest.raises(StateMismatch, match="the state is of something else with this name"):
        open_partition(later, at, replace(TAKEN, state=other), by_others=ALONE)


@pytest.mark.parametrize("limit", ["most_key_bytes", "most_keys"])
def test_does_a_lowered_limit_release_no_block_again(limit: str) -> None:
    """Lowering a limit and raising it again leaves every learner where it was.

    A rebuild that left out records of a key which is too long by now would bring its learner back
    as of its last save; raising the limit later would then end, and draw, the same blocks again.
    """
    stream = spec(learner=EVERY_SLOT)
    lowered = replace(stream, most_key_bytes=1) if limit == "most_key_bytes" else stream
    lowered = replace(lowered, most_keys=1) if limit == "most_keys" else lowered
    store = Store(events(60, keys=[b"long", b"longer"]))
    work = restore(store, stream)
    for stop in (20, 40):
        work.absorb(work.read(store.records(work.engine.position, stop)))
        store.decide(work.cut(now=0, pace=Pace(bytes_a_cut=1)).commit)  # one row a cut
    work = restore(store, lowered)
    store.decide(work.cut(now=100, pace=Pace()).commit)
    store.decide(work.cut(now=200, pace=Pace()).commit)
    finish(store, restore(store, stream))
    assert judge(evidence(store)) == []
    assert fold(store, stream, whole="whole") == []


@pytest.mark.parametrize("learner", [EVERY_SLOT, None], ids=["every slot", "long blocks"])
def test_does_whoever_has_a_learner_keep_it_under_a_lowered_limit(
    learner: sd.Leader | None,
) -> None:
    """In life as in a rebuild: a record that one of them refused would be in no sum, or in two."""
    stream = spec(learner=learner)
    lowered = replace(stream, most_key_bytes=4)
    store = Store(events(60, keys=[b"fr", b"longer"]))
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 20)))
    store.decide(work.cut(now=0, pace=Pace()).commit)
    work = restore(store, lowered)
    work.absorb(work.read(store.records(20, 40)))
    store.decide(work.cut(now=0, pace=Pace(bytes_a_cut=1)).commit)
    again = restore(store, lowered)
    assert [again.engine.slots(key) for key in (b"fr", b"longer")] == [
        work.engine.slots(key) for key in (b"fr", b"longer")
    ]
    finish(store, again)
    assert judge(evidence(store)) == []
    assert fold(store, stream, whole="whole") == []


def test_says_nothing_what_was_drawn_and_is_not_public() -> None:
    """What waits for the next commit shows neither in its own name nor in its owner's (P8)."""
    names = [f"secret-{number}" for number in range(3)]
    stream = spec(learner=sd.noisy_leader(actions=names, epsilon="1", noise="gumbel"))
    store = Store(events(10))
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 10)))
    cut = work.cut(now=0, pace=Pace())
    shown = repr([work, work._waiting, work._waiting.written, cut, cut.commit, store.taken()])
    assert "secret" not in shown
    assert '"value"' not in shown


def test_does_the_largest_value_count_the_longest_key() -> None:
    """What is checked at the start covers a row under the worst key, so no commit is too large."""
    stream = spec(most_key_bytes=64)
    store = Store([(b"\x01" * 64, b"{}"), (b"\xff" * 64, b"{}")])
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, 2)))
    commits = [work.cut(now=0, pace=Pace()).commit for _ in range(2)]
    sizes = [len(key) + len(value or b"") for commit in commits for key, value in commit.state]
    assert max(sizes) <= stream.largest_value
    wide = replace(stream, learner=sd.incumbent_leader(actions=[str(n) for n in range(2000)],
                                                       epsilon="1/2"))  # fmt: skip
    assert wide.largest_value >= wide.row_bytes + 6 * 64
