"""Is garbage on a real crowd topic survived, and is a ledger on a broker read on?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from streamdp.cli.ledger import _read
from streamdp.core.evidence.adoption import COLUMNS, MOST_CELLS, CrowdSnapshot
from streamdp.ports import Published
from streamdp.service.crowd_reader import CrowdReader
from streamdp.service.loop import Service
from streamdp.service.past import alone
from streamdp.service.spec import StreamSpec
from streamdp.service.verification import Verification
from streamdp.service.view import StreamView, View
from streamdp.testing.broker import Borrowed
from streamdp.wire.lines import PriorLine
from streamdp.wire.published import decode_ledger
from streamdp.wire.snapshots import encode_snapshot, read_snapshot
from streamdp_adapters.kafka import KafkaTechnology
from streamdp_adapters.kafka.publications import KafkaPublications
from tests.support.adopting import across, ledger_reads_early
from tests.support.carrying import mapped
from tests.support.services import QUICK, Lines

pytestmark = [pytest.mark.kafka, pytest.mark.anyio]

PARTITIONS = 2


@dataclass
class Site:
    """A stream of two partitions that tell each other, on a broker."""

    bootstrap: str
    technology: KafkaTechnology
    made: StreamSpec
    sent: int = 0  # records to each partition

    @classmethod
    async def on(cls, broker: Borrowed, app: str) -> Site:
        """With its topics."""
        table = {"bootstrap": broker.bootstrap, "single_broker": True}
        technology = KafkaTechnology.from_settings(table, app=app)
        made = across()
        made = replace(made, topics=replace(made.topics, app=app, input=f"{app}-losses"))
        await technology.administrator().create([made.topics], partitions=PARTITIONS)
        return cls(broker.bootstrap, technology, made)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Serving]:
        """A process: the service, and its reader of the crowd topic."""
        view, log, made = View([self.made]), Lines(), self.made
        published = self.technology.publications
        async with CrowdReader([made], published, view=view, log=log, settings=QUICK) as reader:
            service = Service(
                [made],
                self.technology.transport(worker="one"),
                past=alone,
                view=view,
                log=log,
                settings=QUICK,
                snapshots_of=reader.newest,
            )
            task = asyncio.create_task(service.run())
            try:
                yield Serving(reader, view.streams["home"], log, task)
                service.drain()
                await task
                assert service.halted == []
            finally:
                task.cancel()
                await asyncio.wait([task])

    async def send(self, serving: Serving, *, seed: int) -> None:
        """Events of three keys to each partition, until all of them are learned."""
        producer = self.technology.producer()
        for number in range(PARTITIONS):
            keys = [b"%d/%d" % (number, key) for key in range(3)]
            records = mapped(30, keys=keys, seed=seed)
            await producer.send(self.made.topics.input, records, partition=number)
        await producer.close()
        self.sent += 30
        parts = serving.shown.partitions
        await serving.until(
            lambda: (
                len(parts) == PARTITIONS
                and all(part.position >= self.sent for part in parts.values())
            )
        )

    async def write(self, records: list[tuple[int, bytes | None]]) -> None:
        """What anybody writes on the crowd topic."""
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap)
        await producer.start()
        for number, value in records:
            await producer.send_and_wait(
                self.made.topics.snapshots, value, key=b"%d" % number, partition=number
            )
        await producer.stop()

    async def snapshots(self) -> Mapping[int, bytes]:
        """The newest record of each partition on the crowd topic."""
        reader, newest = self.technology.publications(), dict[int, Published]()
        async for batch in reader.snapshots(self.made.topics, follow=False):
            newest |= {record.partition: record for record in batch}
        await reader.close()
        return {number: record.value or b"" for number, record in newest.items()}

    async def priors(self) -> list[PriorLine]:
        """The priors on the ledger."""
        reader = self.technology.publications()
        batches = [batch async for batch in reader.ledger(self.made.topics, follow=False)]
        await reader.close()
        lines = [decode_ledger(record.value) for batch in batches for record in batch]
        return [line for line in lines if isinstance(line, PriorLine)]

    async def verified(self) -> list[str]:
        """What `ledger verify` has against the ledgers."""
        verification = Verification()
        await _read(self.technology, [self.made.topics], verification)
        verification.finish()
        return verification.violations


@dataclass
class Serving:
    """A process at work."""

    reader: CrowdReader
    shown: StreamView
    log: Lines
    task: asyncio.Task[object]

    def heard(self) -> set[CrowdSnapshot]:
        """What others' priors would be made of now."""
        return set(self.reader.newest("home"))

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not what():
                assert not self.task.done()
                await asyncio.sleep(0.02)


def garbage(made: StreamSpec, snapshots: Mapping[int, bytes]) -> list[tuple[int, bytes | None]]:
    """What is no snapshot of its partition, in every way that was thought of."""
    record = msgspec.json.decode(snapshots[1])
    true = read_snapshot(snapshots[1], lines=made.lines, partition=1)
    cell = true.cells[: 4 * COLUMNS]

    def changed(**members: object) -> bytes:
        return msgspec.json.encode(record | members)

    beyond = b'"number":1' + b"0" * 40 + b","
    return [
        (1, b""),
        (1, b"\x00\xff garbage"),
        (1, snapshots[1][:-40]),
        (1, b"[" * 100_000),
        (1, changed(schema=9)),
        (1, changed(number="1")),
        (1, snapshots[1].replace(b'"number":%d,' % record["number"], beyond)),
        (1, changed(epoch=2**63)),
        (1, changed(partition=0)),
        (0, snapshots[1]),
        (1, changed(stream="away")),
        (1, changed(digest="f" * 32)),
        (1, changed(crowd=record["crowd"].replace("1/20", "1/2"))),
        (1, changed(votes="A" * 900_000)),
        (1, encode_snapshot(replace(true, cells=cell * (MOST_CELLS + 1)), lines=made.lines)),
        (1, encode_snapshot(replace(true, cells=b"\xff" * len(cell)), lines=made.lines)),
        (1, encode_snapshot(replace(true, priors=b"\x7f" * 12), lines=made.lines)),
    ]


async def test_does_garbage_on_the_crowd_topic_stop_nothing_and_change_no_prior(
    broker: Borrowed, fresh_app: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is refused and counted, by this process and by the next, which reads it first.

    And a proof that has read a partition's ledger too early reads it on.
    """
    site = await Site.on(broker, fresh_app())
    async with site.serving() as serving:
        await site.send(serving, seed=1)
        await serving.until(lambda: len(serving.heard()) == PARTITIONS)
        snapshots = await site.snapshots()
        heard = {read_snapshot(v, lines=site.made.lines, partition=n) for n, v in snapshots.items()}
        await serving.until(lambda: serving.heard() == heard)
        wrong = garbage(site.made, snapshots)
        await site.write([*wrong, (0, None), (1, None)])  # no value: nothing was told
        await serving.until(lambda: serving.shown.snapshots_refused == len(wrong))
        assert serving.heard() == heard
        await site.send(serving, seed=2)
    assert serving.log.of("crowd_unread") == []
    details = [str(line["detail"]) for line in serving.log.of("snapshot_refused")]
    assert all("snapshot of partition" in detail for detail in details), details
    async with site.serving() as serving:
        await serving.until(lambda: serving.shown.snapshots_refused == len(wrong))
        await site.send(serving, seed=3)
    priors = await site.priors()
    named = {name for line in priors for name in line.prior().adopted}
    assert {name.partition for name in named} == {0, 1}
    assert await site.verified() == []
    readings = ledger_reads_early(monkeypatch, KafkaPublications, partition=1)
    assert await site.verified() == []
    assert len(readings) == 2
