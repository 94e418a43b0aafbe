"""Does the partition's protocol release each block once, through any crash? A random model.

No transport and no task: a durable store, a worker's memory, and every order of cuts, crashes
before and after a commit's outcome is known, partial sweeps, rebuilds and saves. The judge looks
at what was published and at what anybody could have seen.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest

import streamdp as sd
from streamdp.core.errors import StateMismatch
from streamdp.ports import Commit, Key, Partition, Published, Records, Taken, Value
from streamdp.service.batches import decode
from streamdp.service.opening import open_partition
from streamdp.service.protocol import Cut, Pace, PartitionWork, Restoring
from streamdp.service.spec import Start, StreamSpec
from streamdp.testing.judge import Evidence, judge, judge_fold
from streamdp.wire.published import EpochMark, Mode, decode_ledger
from tests.streams import events, spec

HOME = Partition("home", 0)


@dataclass
class Store:
    """What is durable, and what anybody ever saw."""

    input: list[tuple[Key, Value]]
    gap: int = 1  # between offsets
    first: int = 0
    state: dict[bytes, bytes] = field(default_factory=dict)
    actions: list[Published] = field(default_factory=list)
    ledger: list[Published] = field(default_factory=list)
    seen: list[bytes] = field(default_factory=list)
    group: int | None = None

    @property
    def end(self) -> int:
        """Where the next record would go."""
        return len(self.input) * self.gap

    def records(self, start: int, stop: int) -> Records:
        """Input by offsets."""
        at = [place for place in range(len(self.input)) if start <= place * self.gap < stop]
        return Records(
            HOME,
            [place * self.gap for place in at],
            [self.input[place][0] for place in at],
            [self.input[place][1] for place in at],
            min(stop, self.end),
        )

    def send(self, commit: Commit) -> None:
        """Everything is sent and can be seen; nothing counts yet."""
        self.seen += [value for _, value in commit.ledger]

    def decide(self, commit: Commit) -> None:
        """All of it counts."""
        for key, value in commit.state:
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value
        for into, lines in ((self.actions, commit.actions), (self.ledger, commit.ledger)):
            into += [
                Published(0, len(into) + at, key, value) for at, (key, value) in enumerate(lines)
            ]
        self.group = commit.next_offset

    def taken(self) -> Taken:
        """What a taking finds."""
        line = self.ledger[-1].value if self.ledger else None
        return Taken(dict(self.state), self.first, self.end, self.group, line, 1)


def restore(store: Store, stream: StreamSpec, *, batch: int = 7) -> PartitionWork:
    """Take and rebuild."""
    restoring = Restoring(stream, HOME, store.taken())
    for start in range(restoring.span.start, restoring.span.stop, batch):
        restoring.feed(store.records(start, min(start + batch, restoring.span.stop)))
    return restoring.finish()


def evidence(store: Store) -> Evidence:
    """For the judge."""
    return Evidence(HOME, store.actions, store.ledger, store.seen)


def fold(store: Store, stream: StreamSpec, *, whole: str) -> list[str]:
    """The judge's own fold of the input."""
    batch, _ = decode(stream.format, [store.records(0, store.end)], most_key_bytes=64)
    return judge_fold(
        evidence(store), engine=stream.engine(0), lines=stream.lines, log=[batch], whole=whole
    )


def finish(store: Store, work: PartitionWork) -> None:
    """Apply what is left and publish everything."""
    if work.engine.position < store.end:
        work.absorb([store.records(work.engine.position, store.end)], mode=Mode.LIVE)
    now = 0.0
    while work.urgent or work.behind:
        now += 60
        store.decide(work.cut(now=now, pace=Pace()).commit)


@pytest.mark.parametrize("seed", range(60))
def test_is_every_block_released_once_through_any_crash(seed: int) -> None:
    """Crashes before and after the outcome is known, at any point, with partial sweeps."""
    chance = random.Random(seed)
    stream = spec(
        learner=sd.prefix_softmax(actions=("a", "b", "c"), epsilon="1/2", schedule="capped 3")
        if seed % 3
        else None,
        estimates=[sd.estimate("block_regret", epsilon="1/4", min_length=2)],
        most_keys=2 + seed % 3,
    )
    store = Store(events(150, seed=seed), gap=1 + seed % 2)
    pace = Pace(records=chance.choice([4, 1000]), seconds=chance.choice([1.0, 50.0]))
    work, now, crashes = restore(store, stream), 0.0, 0
    pending: Cut | None = None
    for _ in range(400):
        now += chance.random()
        match chance.choice(("absorb", "absorb", "cut", "decide", "crash", "crash after send")):
            case "absorb":
                stop = min(store.end, work.engine.position + chance.randrange(1, 30))
                if work.engine.position < stop:
                    work.absorb([store.records(work.engine.position, stop)], mode=Mode.LIVE)
            case "cut" if pending is None and (work.urgent or work.behind):
                pending = work.cut(now=now, pace=pace)
            case "decide" if pending is not None:
                store.send(pending.commit)
                store.decide(pending.commit)
                pending = None
            case "crash":
                work, pending, crashes = restore(store, stream), None, crashes + 1
            case "crash after send" if pending is not None:
                store.send(pending.commit)
                if chance.random() < 0.5:
                    store.decide(pending.commit)
                work, pending, crashes = restore(store, stream), None, crashes + 1
    if pending is not None:
        store.decide(pending.commit)
    finish(store, work)
    assert crashes > 20
    assert judge(evidence(store)) == []
    assert fold(store, stream, whole="whole") == []
    assert not work.behind
    kinds = [name.split(b'"')[3] for name in store.state]
    assert kinds.count(b"release") == 0  # everything recorded was published, saved and let go


def test_does_the_judge_catch_publishing_before_it_is_durable() -> None:
    """The mutant publishes in the commit that records: an abort shows a draw, a redraw another."""
    stream = spec(randomness=sd.SystemRandomness(), learner=sd.noisy_leader(
        actions=[str(n) for n in range(16)], epsilon="1/100", noise="exponential",
        schedule="capped 1"))  # fmt: skip
    store = Store([(b"k", b"{}")] * 40)
    for _ in range(2):
        work = restore(store, stream)
        work.absorb([store.records(0, store.end)], mode=Mode.LIVE)
        work.cut(now=0.0, pace=Pace())
        early = work.cut(now=0.0, pace=Pace())  # what the next commit publishes, sent too early
        store.send(early.commit)
    assert any("two different releases" in found for found in judge(evidence(store)))


def test_does_the_judge_catch_a_skipped_record() -> None:
    """The mutant loses one record: the fold differs."""
    stream = spec()
    store = Store(events(60))
    work = restore(store, stream)
    work.absorb([store.records(0, 20)], mode=Mode.LIVE)
    work.absorb([store.records(21, store.end)], mode=Mode.LIVE)
    finish(store, work)
    assert fold(store, stream, whole="whole") != []


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
        ("lost input", "no longer retained"),
        ("shorter input", "cut back"),
        ("fewer partitions", "partitions went away"),
        ("another epsilon", "needs a new epoch"),
        ("older epoch", "epoch"),
    ],
)
def test_does_a_partition_halt_rather_than_guess(broken: str, said: str) -> None:
    """Contradictions between state, ledger, input and configuration halt with a clear error."""
    stream = spec(epoch=2)
    store = Store(events(60))
    work = restore(store, stream)
    work.absorb([store.records(0, 30)], mode=Mode.LIVE)
    store.decide(work.cut(now=0, pace=Pace()).commit)
    old = dict(store.state)
    work.absorb([store.records(30, 60)], mode=Mode.LIVE)
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
        open_partition(stream, HOME, taken)


def test_is_a_lost_state_recognised_by_the_group_alone() -> None:
    """Offsets in a group without a checkpoint are evidence of a state that was lost."""
    taken = Taken({}, 0, 60, 12, None, 1)
    with pytest.raises(StateMismatch, match="the state is gone"):
        open_partition(spec(), HOME, taken)
    assert open_partition(spec(epoch=2), HOME, taken).position == 12


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
    work.absorb([store.records(0, 40)], mode=Mode.LIVE)
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
    before = last.commit_seq
    finish(store, work)
    assert decode_ledger(store.ledger[-1].value).commit_seq > before


def test_do_the_modes_differ_in_bytes_only() -> None:
    """Shadow withholds actions and fallback marks them; draws, charges and records are the same."""
    ledgers = {}
    for mode in Mode:
        store = Store(events(60))
        work = restore(store, spec())
        work.absorb([store.records(0, store.end)], mode=mode)
        finish(store, work)
        ledgers[mode] = [decode_ledger(record.value) for record in store.ledger]
        assert judge(evidence(store)) == []
        assert bool(store.actions) is (mode is not Mode.SHADOW)
        assert all(
            (b'"fallback":true' in r.value) is (mode is Mode.FALLBACK) for r in store.actions
        )
    identities = {mode: [line.identity for line in lines] for mode, lines in ledgers.items()}  # type: ignore[union-attr]
    assert identities[Mode.LIVE] == identities[Mode.SHADOW] == identities[Mode.FALLBACK]


def test_is_low_water_kept_near_the_position() -> None:
    """The sweep saves what is longest unsaved, so a rebuild never reads more than the bound."""
    stream = spec()
    store = Store(events(2000, keys=[str(n).encode() for n in range(50)]))
    work, pace = restore(store, stream), Pace(records=200, seconds=1000)
    for start in range(0, 2000, 20):
        work.absorb([store.records(start, start + 20)], mode=Mode.LIVE)
        cut = work.cut(now=start / 1000, pace=pace)
        store.decide(cut.commit)
        assert cut.checkpoint.next_offset - cut.checkpoint.low_water <= 200


def test_is_a_key_that_is_too_long_refused_and_counted() -> None:
    """Keys are public; a record under a key that no state entry could hold gets no learner."""
    stream = spec(most_key_bytes=4)
    store = Store([(b"short", b"{}"), (b"ok", b"{}"), (None, b"{}")])
    work = restore(store, stream)
    work.absorb([store.records(0, 3)], mode=Mode.LIVE)
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
        work.absorb([store.records(0, 5)], mode=Mode.LIVE)
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
