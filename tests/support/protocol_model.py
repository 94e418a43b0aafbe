"""A partition's protocol without transport or task: a durable store, and crashes in any order.

What a random story does is a function of its seed: absorb, cut, decide, crash before a commit,
crash after it was sent and before its outcome is known.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import streamdp as sd
from streamdp.ports import Commit, Headers, Key, Partition, Published, Records, Taken, Value
from streamdp.service.charges_by_others import ALONE, ChargesByOthers
from streamdp.service.protocol import Cut, PartitionWork, Restoring
from streamdp.service.settings import Pace
from streamdp.service.spec import StreamSpec
from streamdp.testing.judge import Evidence, judge, judge_fold
from tests.support.decoding import decode
from tests.support.streams import events, spec

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
    input_id: str | None = None
    headers: Sequence[Headers] = ()  # of each record, for streams that read them
    made_at: int = 0  # when the records were appended

    @property
    def end(self) -> int:
        """Where the next record would go."""
        return len(self.input) * self.gap

    def records(self, start: int, stop: int) -> Records:
        """Input by offsets."""
        at = range(-(-start // self.gap), min(len(self.input), -(-stop // self.gap)))
        return Records(
            HOME,
            start,
            [place * self.gap for place in at],
            [self.input[place][0] for place in at],
            [self.input[place][1] for place in at],
            min(stop, self.end),
            [self.headers[place] for place in at] if self.headers else (),
            [self.made_at + place for place in at] if self.headers else (),
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
        return Taken(
            dict(self.state), self.first, self.end, self.group, line, 1, input_id=self.input_id
        )


def restore(
    store: Store, stream: StreamSpec, *, batch: int = 7, by_others: ChargesByOthers = ALONE
) -> PartitionWork:
    """Take and rebuild."""
    restoring = Restoring(stream, HOME, store.taken(), by_others=by_others)
    if proof := restoring.proof:
        restoring.prove(store.records(proof.start, proof.stop))
    for start in range(restoring.span.start, restoring.span.stop, batch):
        restoring.feed(store.records(start, min(start + batch, restoring.span.stop)))
    return restoring.finish()


def evidence(store: Store) -> Evidence:
    """For the judge."""
    return Evidence(HOME, store.actions, store.ledger, store.seen)


def fold(store: Store, stream: StreamSpec, *, whole: str) -> list[str]:
    """The judge's own fold of the input."""
    records = store.records(0, store.end)
    batch, _ = decode(stream.format, [records], most_key_bytes=64, idle=stream.idle)
    return judge_fold(
        evidence(store), engine=stream.engine(0), lines=stream.lines, log=[batch], whole=whole
    )


def finish(store: Store, work: PartitionWork) -> None:
    """Apply what is left and publish everything."""
    if work.engine.position < store.end:
        work.absorb(work.read(store.records(work.engine.position, store.end)))
    settle(store, work)


def settle(store: Store, work: PartitionWork) -> None:
    """Cut until nothing is left to publish or take away."""
    now = 0.0
    while work.urgent or work.behind:
        now += 60
        store.decide(work.cut(now=now, pace=Pace()).commit)


@dataclass
class Story:
    """One random life of a partition."""

    store: Store
    stream: StreamSpec
    chance: random.Random
    crashes: int = 0
    piece: int = 30  # fewer records than this are absorbed at once
    goes_on: int = 60  # steps after the last record is durable: nothing new happens for ever then

    @classmethod
    def of(cls, seed: int) -> Story:
        """Another stream, store and order of events for each seed."""
        stream = spec(
            learner=sd.prefix_softmax(actions=("a", "b", "c"), epsilon="1/2", schedule="capped 3")
            if seed % 3
            else None,
            estimates=[sd.estimate("block_regret", epsilon="1/4", min_length=2)],
            most_keys=2 + seed % 3,
        )
        return cls(Store(events(150, seed=seed), gap=1 + seed % 2), stream, random.Random(seed))

    def tell(self, *, steps: int = 400) -> PartitionWork:
        """Everything that may happen, then a good end."""
        store, stream, chance = self.store, self.stream, self.chance
        pace = Pace(records=chance.choice([4, 1000]), seconds=chance.choice([1.0, 50.0]))
        work, now = restore(store, stream), 0.0
        pending: Cut | None = None
        after_all = 0
        for _ in range(steps):
            now += chance.random()
            after_all += store.group == store.end
            if after_all > self.goes_on:
                break
            match chance.choice(("absorb", "absorb", "cut", "decide", "crash", "crash after send")):
                case "absorb":
                    stop = min(store.end, work.engine.position + chance.randrange(1, self.piece))
                    if work.engine.position < stop:
                        work.absorb(work.read(store.records(work.engine.position, stop)))
                case "cut" if pending is None and (work.urgent or work.behind):
                    pending = work.cut(now=now, pace=pace)
                case "decide" if pending is not None:
                    store.send(pending.commit)
                    store.decide(pending.commit)
                    pending = None
                case "crash":
                    work, pending = self._again(), None
                case "crash after send" if pending is not None:
                    store.send(pending.commit)
                    if chance.random() < 0.5:
                        store.decide(pending.commit)
                    work, pending = self._again(), None
        if pending is not None:
            store.decide(pending.commit)
        finish(store, work)
        return work

    def _again(self) -> PartitionWork:
        self.crashes += 1
        return restore(self.store, self.stream)

    def wrong(self) -> Sequence[str]:
        """All that the judge holds against it."""
        faults = judge(evidence(self.store))
        if self.stream.randomness.seeded:
            faults += fold(self.store, self.stream, whole="whole")
        return faults
