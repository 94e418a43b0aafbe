"""Partitions of a stream that adopt of each other, with crashes in any order; no transport."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from streamdp.core.learners.leader import crowded
from streamdp.ports import (
    Commit,
    Partition,
    Publications,
    Published,
    Records,
    StreamTopics,
    Taken,
)
from streamdp.service.batches import decode
from streamdp.service.past import ALONE
from streamdp.service.protocol import Cut, Pace, PartitionWork, Restoring
from streamdp.service.spec import StreamSpec
from streamdp.service.verification import Verification
from streamdp.testing.judge import Evidence, adopting, judge, judge_fold, judge_snapshots
from streamdp.wire.published import Mode
from streamdp.wire.snapshots import read_snapshot
from tests.support.carrying import leader, mapped, stream
from tests.support.protocol_model import Store

PARTITIONS = 3


def ledger_reads_early(
    patch: pytest.MonkeyPatch, reader: type[Publications], *, partition: int
) -> list[str]:
    """The first reading of a ledger has one line of this partition, as if it were earlier there.

    The list gets the name of each ledger that is read.
    """
    plain, readings = reader.ledger, list[str]()

    async def ledger(
        self: Publications, stream: StreamTopics, *, follow: bool, newest: int | None = None
    ) -> AsyncIterator[Sequence[Published]]:
        readings.append(stream.ledger)
        early = len(readings) == 1
        async for batch in plain(self, stream, follow=follow, newest=newest):
            yield [
                record
                for record in batch
                if not early or record.partition != partition or record.offset < 1
            ]

    patch.setattr(reader, "ledger", ledger)
    return readings


def across() -> StreamSpec:
    """A stream whose keys form one crowd across partitions."""
    spec = stream(crowded(leader(), reach="stream"))
    return replace(spec, topics=replace(spec.topics, crowd=True))


@dataclass
class Part(Store):
    """What is durable of one partition."""

    number: int = 0
    seen: list[bytes] = field(default_factory=list)  # everything that anybody ever saw, in order

    def records(self, start: int, stop: int) -> Records:
        """Input by offsets."""
        return replace(super().records(start, stop), partition=Partition("home", self.number))

    def send(self, commit: Commit) -> None:
        """Everything is sent and can be seen; nothing counts yet."""
        super().send(commit)
        self.seen += [value for _, value in commit.ledger]
        self.seen += [] if commit.snapshot is None else [commit.snapshot]

    def decide(self, commit: Commit) -> None:
        """All of it counts."""
        super().decide(commit)
        for topic, lines in ((self.actions, commit.actions), (self.ledger, commit.ledger)):
            for at in range(len(topic) - len(lines), len(topic)):
                topic[at] = replace(topic[at], partition=self.number)

    def taken(self) -> Taken:
        """What a taking finds."""
        return replace(super().taken(), partitions=PARTITIONS)


@dataclass
class Adopters:
    """Partitions at work, and the topic that they tell each other by."""

    spec: StreamSpec = field(default_factory=across)
    count: int = 60
    parts: list[Part] = field(default_factory=list)
    topic: dict[int, bytes] = field(default_factory=dict)
    work: list[PartitionWork] = field(default_factory=list)
    crashes: int = 0

    def __post_init__(self) -> None:
        """Take every partition."""
        for number in range(PARTITIONS):
            keys = [b"%d/%d" % (number, key) for key in range(3)]
            records = mapped(self.count, keys=keys, seed=number)
            self.parts.append(Part(records, number=number))
        self.work = [self.take(number) for number in range(PARTITIONS)]

    def take(self, number: int) -> PartitionWork:
        """Take a partition, and rebuild it."""
        part = self.parts[number]
        restoring = Restoring(self.spec, Partition("home", number), part.taken(), past=ALONE)
        if proof := restoring.proof:
            restoring.prove(part.records(proof.start, proof.stop))
        if span := restoring.span:
            restoring.feed(part.records(span.start, span.stop))
        return restoring.finish()

    def crash(self, number: int) -> None:
        """Forget all that is not durable."""
        self.crashes += 1
        self.work[number] = self.take(number)

    def absorb(self, number: int, count: int) -> None:
        """Some records, once what others told is heard."""
        work, part = self.work[number], self.parts[number]
        for other, value in self.topic.items():
            work.offers.offer(read_snapshot(value, lines=self.spec.lines, partition=other))
        stop = min(part.end, work.engine.position + count)
        if work.engine.position < stop:
            work.absorb([part.records(work.engine.position, stop)], mode=Mode.LIVE)

    def commit(self, number: int, *, now: float = 0.0) -> None:
        """Cut, and let it count."""
        self.decide(number, self.work[number].cut(now=now, pace=Pace()))

    def decide(self, number: int, cut: Cut) -> None:
        """Let a cut count."""
        part = self.parts[number]
        part.send(cut.commit)
        part.decide(cut.commit)
        if cut.commit.snapshot is not None:
            self.topic[number] = cut.commit.snapshot

    def settle(self, number: int) -> None:
        """Cut until nothing is left to publish or take away."""
        work, now = self.work[number], 0.0
        while work.urgent or work.behind:
            now += 60
            self.commit(number, now=now)

    def live(self, seed: int, *, crashes: bool = True) -> None:
        """By turns, in any order, with crashes before and after a commit."""
        chance = random.Random(seed)
        while any(work.engine.position < self.parts[0].end for work in self.work):
            number = chance.randrange(PARTITIONS)
            self.absorb(number, chance.randrange(1, 12))
            match chance.choice(("commit", "commit", "go on", "lose", "crash before", "crash")):
                case "commit":
                    self.commit(number)
                case "lose" if crashes:
                    self.crash(number)
                case "crash before" if crashes:
                    self.parts[number].send(self.work[number].cut(now=0.0, pace=Pace()).commit)
                    self.crash(number)
                case "crash" if crashes:
                    self.commit(number)
                    self.crash(number)
        for number in range(PARTITIONS):
            self.settle(number)

    def snapshots(self) -> list[bytes]:
        """All that was ever told."""
        return [
            value
            for part in self.parts
            for value in part.seen
            if value.startswith(b'{"type":"snapshot"')
        ]

    def verified(self) -> Verification:
        """What `ledger verify` makes of the ledgers."""
        verification = Verification()
        for part in self.parts:
            verification.read(self.spec.topics, part.ledger)
        verification.finish()
        return verification

    def wrong(self) -> list[str]:
        """All that judge and outsiders have against it."""
        faults = list(self.verified().violations)
        for part in self.parts:
            at = Partition("home", part.number)
            seen = [value for value in part.seen if not value.startswith(b'{"type":"snapshot"')]
            evidence = Evidence(at, part.actions, part.ledger, seen)
            faults += judge(evidence)
            faults += judge_snapshots(at, part.seen)
            faults += self._fold(part, evidence)
        return faults

    def _fold(self, part: Part, evidence: Evidence) -> list[str]:
        """The judge's own fold of the input, which adopts what is on record."""
        engine = self.spec.engine(part.number)
        engine.adopt(adopting(part.ledger, self.snapshots()))
        records = part.records(0, part.end)
        batch, _ = decode(self.spec.format, [records], most_key_bytes=64)
        return judge_fold(
            evidence, engine=engine, lines=self.spec.lines, log=[batch], whole="whole"
        )
