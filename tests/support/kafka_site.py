"""A service on a real broker that is started, stopped and looked into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

import streamdp as sd
from streamdp.ports import Key, Partition, Published, Records, StreamTopics, Technology, Value
from streamdp.service.charges_by_others import (
    ALONE,
    ChargesByOthers,
    ChargesByOthersOf,
    Scope,
    Tally,
    alone,
)
from streamdp.service.settings import LoopSettings, Pace
from streamdp.service.spec import StreamSpec
from streamdp.service.view import PartitionStatus, Status, View
from streamdp.testing.broker import Borrowed
from streamdp.testing.judge import Evidence, judge, judge_fold
from streamdp.testing.transport_room import Heard, RoomWorker
from streamdp.wire.lines import EpochMark, LedgerLine
from streamdp.wire.published import decode_ledger
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology
from streamdp_adapters.kafka.topics import Described, describe
from tests.support.decoding import decode
from tests.support.lasting import lasting
from tests.support.lending import Lent
from tests.support.services import Lines, Worker, serving
from tests.support.streams import spec

Fresh = Callable[[], str]

HOME = Partition("home", 0)

QUICK = LoopSettings(
    poll_seconds=0.02,
    commit_seconds=0.002,
    idle_commit_seconds=0.1,
    retry_seconds=(0.05, 0.2),
    pace=Pace(records=20, seconds=0.5),
)


async def joined(
    technology: KafkaTechnology, topics: StreamTopics, *, partitions: int = 1
) -> RoomWorker:
    """A lone worker on topics of its own, with everything assigned."""
    await technology.administrator().create([topics], partitions=partitions)
    worker = RoomWorker(technology.transport(worker="lone"), Heard())
    await worker.transport.join([topics], worker.heard)
    await worker.until(lambda heard: len(heard.assigned_now) == partitions)
    return worker


async def ledger(technology: Technology, topics: StreamTopics) -> list[bytes]:
    """Every line, of all partitions."""
    reader = technology.publications()
    lines = [r.value async for batch in reader.ledger(topics, follow=False) for r in batch]
    await reader.close()
    return lines


async def send(
    technology: Technology, topic: str, records: Sequence[tuple[Key, Value]], partition: int = 0
) -> None:
    """Append records."""
    producer = technology.producer()
    await producer.send(topic, records, partition=partition)
    await producer.close()


@dataclass
class Site:
    """One stream on a broker, and what is done to it behind the service's back."""

    bootstrap: str
    made: StreamSpec
    settings: KafkaSettings
    sent: list[tuple[Key, Value]] = field(default_factory=list)

    @classmethod
    def on(cls, broker: Borrowed | Lent, app: str, **more: object) -> Site:
        """A stream whose blocks have one slot, so that every record is spent at once."""
        learner = sd.incumbent_leader(actions=["a", "b", "c"], epsilon="1/2", schedule="capped 1")
        made = spec(app=app, learner=learner)
        topics = replace(made.topics, input=f"{app}-losses")
        table = {"bootstrap": broker.bootstrap, "single_broker": True, "session_timeout_ms": 1500}
        return cls(
            broker.bootstrap, replace(made, topics=topics), KafkaSettings.parse(table | more)
        )

    @property
    def technology(self) -> KafkaTechnology:
        return KafkaTechnology(self.settings)

    async def create(self) -> None:
        """What is missing of the topics."""
        await self.technology.administrator().create([self.made.topics], partitions=1)

    async def send(self, records: Sequence[tuple[Key, Value]]) -> None:
        await send(self.technology, self.made.topics.input, records)
        self.sent += records

    async def send_in_transaction(self, records: Sequence[tuple[Key, Value]]) -> None:
        """As an assembly writes its events: a marker takes the offset behind them."""
        name = f"{self.made.topics.app}.upstream"
        producer: Any = AIOKafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=name)
        await producer.start()
        async with producer.transaction():
            for key, value in records:
                await producer.send(self.made.topics.input, value, key, partition=0)
        await producer.stop()

    @asynccontextmanager
    async def serving(
        self, *, epoch: int = 1, by_others: ChargesByOthersOf = alone
    ) -> AsyncIterator[Running]:
        """A service, drained at the end."""
        made, transport = replace(self.made, epoch=epoch), self.technology.transport(worker="w")
        async with serving([made], transport, settings=QUICK, by_others=by_others) as worker:
            yield Running(worker)

    async def evidence(self) -> Evidence:
        """Everything that was published."""
        reader = self.technology.publications()
        records: list[list[Published]] = []
        for source in (reader.actions, reader.ledger):
            batches = [batch async for batch in source(self.made.topics, follow=False)]
            records.append([record for batch in batches for record in batch])
        await reader.close()
        actions, ledger = records
        return Evidence(HOME, actions, ledger)

    async def own_past(self, stream: str, scope: Scope) -> ChargesByOthers:
        """What the stream's own ledger says of the input."""
        assert (stream, scope) == (self.made.name, Scope.LOST)
        tally = Tally(self.made.topics)
        tally.read((await self.evidence()).ledger)
        return replace(ALONE, input_ids=tally.input_ids(self.made.topics.input))

    async def lines(self) -> list[LedgerLine]:
        """The ledger."""
        return [decode_ledger(record.value) for record in (await self.evidence()).ledger]

    async def wrong(self) -> list[str]:
        """What the judge finds; the fold too while there has been one epoch."""
        return await lasting(self._wrong_now)

    async def _wrong_now(self) -> list[str]:
        evidence = await self.evidence()
        faults = judge(evidence)
        if not any(
            isinstance(decode_ledger(record.value), EpochMark) for record in evidence.ledger
        ):
            faults += self._fold(evidence)
        return faults

    def _fold(self, evidence: Evidence) -> list[str]:
        keys, values = [key for key, _ in self.sent], [value for _, value in self.sent]
        log = Records(HOME, 0, range(len(keys)), keys, values, len(keys))
        batch, _ = decode(self.made.format, [log], most_key_bytes=self.made.most_key_bytes)
        return judge_fold(
            evidence,
            engine=self.made.engine(0),
            lines=self.made.lines,
            log=[batch],
            whole="whole",
        )

    @asynccontextmanager
    async def administration(self) -> AsyncIterator[AIOKafkaAdminClient]:
        client = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await client.start()
        try:
            yield client
        finally:
            await client.close()

    async def delete(self, *names: str) -> None:
        """Delete topics and wait until the broker has forgotten them."""
        async with self.administration() as client:
            await client.delete_topics(list(names))
            async with asyncio.timeout(120):
                while any(
                    topic["error_code"] == 0 for topic in await client.describe_topics(names)
                ):
                    await asyncio.sleep(0.05)

    async def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """Set a topic's settings, and wait until the broker says that it has them."""
        async with self.administration() as client:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(settings))
            await client.alter_configs([resource])
            async with asyncio.timeout(120):
                while not await _has(client, topic, settings):
                    await asyncio.sleep(0.05)

    async def forget(self, *, before: int) -> None:
        """Retention eats the oldest records."""
        async with self.administration() as client:
            place = TopicPartition(self.made.topics.input, 0)
            await client.delete_records({place: RecordsToDelete(before)})

    async def state(self) -> Mapping[bytes, bytes]:
        return (await self.technology.administrator().peek(self.made.topics, 0)).state

    async def overwrite(self, state: Mapping[bytes, bytes]) -> None:
        """Make the state topic say what it said before."""
        now = await self.state()
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap)
        await producer.start()
        for key in now.keys() | state.keys():
            await producer.send_and_wait(
                self.made.topics.state, state.get(key), key=key, partition=0
            )
        await producer.stop()


@dataclass
class Running:
    """A service at work."""

    worker: Worker

    @property
    def view(self) -> View:
        return self.worker.view

    @property
    def log(self) -> Lines:
        return self.worker.log

    @property
    def part(self) -> PartitionStatus:
        return self.view.part(HOME)

    async def until(self, what: Callable[[PartitionStatus], bool]) -> None:
        async with asyncio.timeout(120):
            while not what(self.part):
                if self.worker.task.done():
                    await self.worker.task
                await asyncio.sleep(0.01)

    async def read(self, position: int) -> None:
        await self.until(lambda part: part.position >= position)

    async def halted(self, said: str) -> None:
        await self.until(lambda part: part.status is Status.HALTED)
        assert said in self.part.message
        assert self.log.of("partition_halted")[0]["detail"] == self.part.message


async def _has(client: AIOKafkaAdminClient, topic: str, settings: Mapping[str, str]) -> bool:
    """Whether a topic has these settings among its own."""
    seen = (await describe(client, [topic])).get(topic)
    return isinstance(seen, Described) and settings.items() <= (seen.settings or {}).items()
