"""Is an assembly on a broker the join of its two logs, whatever step is lost?"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from fractions import Fraction

import pytest

from streamdp.assembly.persons import Cap
from streamdp.assembly.recipes import Rewards
from streamdp.assembly.rules import Combine, Rules
from streamdp.core.errors import TransportLost
from streamdp.ports import Headers, Key, OutputRecord, Partition, StreamTopics, Value
from streamdp.service.assembling.partition import PartitionAssembly
from streamdp.service.assembly_spec import AssemblySpec
from streamdp.service.settings import Start
from streamdp.testing.broker import Borrowed
from streamdp.testing.faults import Dice
from streamdp.testing.transport_room import Heard, RoomWorker
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology
from streamdp_adapters.kafka.transport import KafkaTransport
from tests.support.assembly_model import SECRET, Logs, encode, expected_events

pytestmark = pytest.mark.kafka

AT = Partition("clicks", 0)
RULES = Rules(window=400, grace=150, combine=Combine.LAST, default=0.75)
CAP = Cap(2, 5, SECRET)
_SEARCHED = 2000  # rounds in which all events must have left: some hundred are needed


async def test_events_are_the_join_of_both_logs(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """With the broker's own timestamps, ids used twice, clicks in any order, and faults."""
    app, random_ = fresh_app(), random.Random(7)
    topics = StreamTopics(
        app, "clicks", f"{app}.requests", headers=True, second_input=f"{app}.outcomes",
        output=f"{app}.events",
    )  # fmt: skip
    table = {"single_broker": True, "session_timeout_ms": 1500, "bootstrap": broker.bootstrap}
    dice = Dice(seed=13, chance=Fraction(1, 10))  # five of the first forty steps are lost
    technology = KafkaTechnology(KafkaSettings.parse(table), reached=dice)
    await technology.administrator().create([topics], partitions=1)
    spec = AssemblySpec(
        topics=topics, rules=RULES, recipe=Rewards(), encode=encode, start=Start.EARLIEST,
        actions=("a", "b"), cap=CAP, most_at_once=3,
    )  # fmt: skip
    sending = asyncio.create_task(_send(technology, topics, random_))
    emitted = await _assemble(technology, spec, until=sending)
    logs = Logs(
        await _columns(technology, topics.input), await _columns(technology, topics.second_input)
    )
    assert len(logs.requests) == 40
    assert emitted == expected_events(logs, RULES, CAP)
    assert sum(dice.thrown.values()) >= 5
    assert len({value for _, value, _ in emitted}) > 3


async def _send(technology: KafkaTechnology, topics: StreamTopics, random_: random.Random) -> None:
    """Requests, and outcomes at any time after them, some too late."""
    producer = technology.producer()
    names = [b"r%d" % random_.randrange(30) for _ in range(40)]
    for name in names:
        person = ("streamdp-person", b"p%d" % random_.randrange(3))
        headers: Headers = [("streamdp-request", name), person]
        await producer.send(topics.input, [(b"k", None)], headers=[headers])
        for _ in range(random_.randrange(3)):
            other = random_.choice(names[: names.index(name) + 1])
            value = b'{"reward": %.2f}' % random_.random()
            clicked: Headers = [("streamdp-request", other)]
            await producer.send(topics.second_input, [(b"k", value)], headers=[clicked])
        await asyncio.sleep(random_.choice([0.0, 0.01, 0.05]))
    await producer.close()


async def _assemble(
    technology: KafkaTechnology, spec: AssemblySpec, *, until: asyncio.Task[None]
) -> list[OutputRecord]:
    """Work until everything that was sent has left; what is lost is taken again."""
    worker = RoomWorker(technology.transport(worker="test"), Heard())
    transport = worker.transport
    assert isinstance(transport, KafkaTransport)
    await transport.join([spec.topics], worker.heard)
    await worker.until(lambda heard: bool(heard.assigned_now))
    work: PartitionAssembly | None = None
    for _ in range(_SEARCHED):
        try:
            if work is None:
                work = await _brought_back(transport, spec)
            for records in await transport.poll(max_records=7, timeout=0.02):
                work.absorb([records])
            await work.round(time.time_ns() // 1_000_000)
        except TransportLost:
            work = None
        if until.done() and work is not None and not work.open and work.position >= 40:
            break
    until.result()
    await transport.close()
    columns = await _columns(technology, spec.topics.output)
    return [(key, value, list(headers)) for _, key, headers, value in columns]


async def _brought_back(transport: KafkaTransport, spec: AssemblySpec) -> PartitionAssembly:
    work = PartitionAssembly(spec, AT, await transport.take(AT), transport)
    await work.bring_back()
    transport.resume(AT, work.position)
    return work


Column = tuple[int, Key, Headers, Value]


async def _columns(technology: KafkaTechnology, topic: str) -> list[Column]:
    reader = StreamTopics("reader", "reader", topic, headers=True)
    return [
        row
        async for batch in technology.administrator().history(reader, after={})
        for row in zip(batch.timestamps, batch.keys, batch.headers, batch.values, strict=True)
    ]
