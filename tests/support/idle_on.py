"""A key that leaves and comes back on a real transport, whose own timestamps say when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from streamdp.ports import Key, Partition, Published, Records, StreamTopics, Technology, Transport
from streamdp.service.charges_by_others import ALONE
from streamdp.service.protocol import PartitionWork, Restoring
from streamdp.service.settings import Pace
from streamdp.service.verifying.verification import Verification
from streamdp.testing.judge import Evidence, judge, judge_fold
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from tests.support.carrying import leader, mapped, stream
from tests.support.decoding import decode
from tests.support.sqlite_pair import Ears

HOME = Partition("home", 0)
SECOND = 1000


@dataclass
class Life:
    """One stream on one place, taken anew for each step."""

    technology: Technology
    app: str
    read: dict[int, tuple[Key, bytes | None, int]] = field(default_factory=dict)
    """Every record's key, value and timestamp by its offset."""

    def __post_init__(self) -> None:
        """A stream whose keys leave after one to two seconds."""
        topics = StreamTopics(self.app, "home", f"{self.app}-losses", headers=True)
        self.spec = replace(stream(leader()), topics=topics, idle=SECOND)

    async def prepare(self) -> None:
        """Make the topics."""
        tools = self.technology.administrator()
        await tools.create([self.spec.topics], partitions=1)
        await tools.close()

    async def send(self, keys: Sequence[Key], *, seed: int) -> None:
        """Append records of these keys."""
        producer = self.technology.producer()
        values = mapped(len(keys), seed=seed)
        records = [(key, value) for key, (_, value) in zip(keys, values, strict=True)]
        await producer.send(self.spec.topics.input, records, partition=0)
        await producer.close()

    async def go_on(self, *, cuts: int = 1000) -> None:
        """Take the partition, read to the end, and publish; or be gone after so many commits."""
        transport = self.technology.transport(worker="w")
        try:
            await transport.join([self.spec.topics], Ears())
            taken = await transport.take(HOME)
            restoring = Restoring(self.spec, HOME, taken, by_others=ALONE)
            span = restoring.span
            if span:
                async for records in transport.read(HOME, span.start, span.stop):
                    restoring.feed(records)
            work = restoring.finish()
            position = work.engine.position
            if position < taken.end_offset:
                async for records in transport.read(HOME, position, taken.end_offset):
                    work.absorb(work.read(records))
                    self._note(records)
            await self._publish(transport, work, cuts)
        finally:
            await transport.close()

    async def _publish(self, transport: Transport, work: PartitionWork, cuts: int) -> None:
        now = 0.0
        while (work.urgent or work.behind) and cuts:
            now, cuts = now + 60, cuts - 1
            await transport.commit(HOME, work.cut(now=now, pace=Pace()).commit)

    def _note(self, records: Records) -> None:
        columns = (records.offsets, records.keys, records.values, records.timestamps)
        for offset, *record in zip(*columns, strict=True):
            known = self.read.setdefault(offset, tuple(record))  # type: ignore[arg-type]
            assert known == tuple(record), "a log says the same each time that it is read"

    @property
    def seconds(self) -> float:
        """How long the records have come."""
        stamps = [stamp for _, _, stamp in self.read.values()]
        return (max(stamps) - min(stamps)) / SECOND

    async def ledger(self) -> list[Published]:
        """What was published."""
        reader = self.technology.publications()
        lines = [e async for batch in reader.ledger(self.spec.topics, follow=False) for e in batch]
        await reader.close()
        return lines

    async def wrong(self) -> list[str]:
        """What the judge, the fold and `ledger verify` have against it."""
        reader, ledger = self.technology.publications(), await self.ledger()
        shown = reader.actions(self.spec.topics, follow=False)
        actions = [record async for batch in shown for record in batch]
        await reader.close()
        evidence = Evidence(HOME, actions, ledger)
        offsets = sorted(self.read)
        keys, values, stamps = zip(*(self.read[at] for at in offsets), strict=True)
        whole = Records(HOME, 0, offsets, keys, values, offsets[-1] + 1, timestamps=stamps)
        batch, _ = decode(self.spec.format, [whole], most_key_bytes=64, idle=self.spec.idle)
        engine, verification = self.spec.engine(0), Verification()
        verification.read(self.spec.topics, ledger)
        folded = judge_fold(
            evidence, engine=engine, lines=self.spec.lines, log=[batch], whole="whole"
        )
        return [*judge(evidence), *folded, *verification.violations]


async def leave_and_return(technology: Technology, app: str) -> None:
    """One key comes, another keeps coming until the first was idle, then the first comes back."""
    life = Life(technology, app)
    await life.prepare()
    await life.send([b"fr"] * 6, seed=1)
    await life.go_on(cuts=1)
    await life.go_on()
    for seed in range(2, 200):
        await life.send([b"de"], seed=seed)
        await life.go_on()
        if life.seconds > 2.2:
            break
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.2)  # time is what is tested
    for cuts in (0, 1, 2, 1000):
        await life.send([b"fr"] * 3, seed=cuts)
        await life.go_on(cuts=cuts)
    assert await life.wrong() == []
    lines = [decode_ledger(record.value) for record in await life.ledger()]
    openings = [
        line.mechanism
        for line in lines
        if isinstance(line, Charge) and line.kind == "opening" and line.identity.key == b"fr"
    ]
    assert openings[0] == "uniform"
    assert set(openings[1:]) == {"carried"}  # again and again, where the machine is slow
