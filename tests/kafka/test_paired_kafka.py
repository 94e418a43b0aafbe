"""Two inputs on a broker: do they have its time, and is it told if one was made again?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer

from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.ports import Partition, StreamTopics, Value, Verdict
from streamdp.testing.broker import Borrowed
from streamdp.testing.transport_room import Heard, RoomWorker
from streamdp_adapters.kafka import KafkaTechnology
from streamdp_adapters.kafka.transport import KafkaTransport
from tests.support.kafka_site import Site

pytestmark = pytest.mark.kafka

HOME = Partition("home", 0)


@pytest.fixture
def topics(fresh_app: Callable[[], str]) -> StreamTopics:
    """Of an application that the broker has not seen."""
    app = fresh_app()
    return StreamTopics(
        app, "home", input=f"{app}.input", second_input=f"{app}.beside", output=f"{app}.output"
    )


async def test_inputs_that_go_together_have_the_brokers_time(
    technology: KafkaTechnology, topics: StreamTopics
) -> None:
    """A producer's own timestamp, far in the future, would close every window."""
    await technology.administrator().create(
        [StreamTopics(topics.app, "earlier", input=topics.second_input)], partitions=1
    )
    findings = await technology.administrator().create([topics], partitions=1)
    subject = f"topic {topics.second_input}: message.timestamp.type"
    assert [f.subject for f in findings if f.verdict is Verdict.PROBLEM] == [subject]
    transport = technology.transport(worker="lone")
    with pytest.raises(InvalidConfig, match=r"message\.timestamp\.type: expected LogAppendTime"):
        await transport.join([topics], Heard())
    await transport.close()


async def test_reading_beside_waits_for_what_is_undecided(
    broker: Borrowed, technology: KafkaTechnology, topics: StreamTopics
) -> None:
    """A record of an open transaction lies before the stop, and comes if it is committed."""
    await technology.administrator().create([topics], partitions=1)
    transport = technology.transport(worker="lone")
    await transport.join([topics], Heard())
    taken = await transport.take(HOME)
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=f"{topics.app}.open"
    )
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait(topics.input, b"undecided too", partition=0)
        assert await transport.end_now(HOME) == taken.end_offset + 1
        await producer.send_and_wait(topics.second_input, b"undecided", partition=0)
        stop = await transport.stop_second_input(HOME, taken.second_input.end, timestamp=2**50)
        reading = asyncio.ensure_future(_values(transport, taken.second_input.end, stop))
        await transport.poll(max_records=1, timeout=0.3)  # time in which it could end
        assert not reading.done()
        await producer.commit_transaction()
        assert (stop, await reading) == (taken.second_input.end + 1, [b"undecided"])
    finally:
        await producer.stop()
        await transport.close()


async def test_outcomes_that_are_made_again_under_a_running_transport_are_told(
    broker: Borrowed, technology: KafkaTechnology, topics: StreamTopics
) -> None:
    """Though nothing delivers them; the message names no offset. (Of an input: `test_halts`.)"""
    await technology.administrator().create([topics], partitions=1)
    worker = RoomWorker(technology.transport(worker="lone"), Heard())
    await worker.transport.join([topics], worker.heard)
    await worker.transport.take(HOME)
    name = topics.second_input
    await Site.on(broker, topics.app).delete(name)
    await technology.administrator().create([topics], partitions=1)
    producer = technology.producer()
    await producer.send(name, [(b"k", b"v")] * 7, partition=0)
    await producer.close()
    await asyncio.wait_for(worker.until(lambda heard: bool(heard.failures)), timeout=120)
    await worker.transport.close()
    (partition, error), *_ = worker.heard.failures
    assert (partition, type(error)) == (HOME, StateMismatch)
    said = str(error)
    assert "requests or outcomes were deleted and recreated" in said
    known, now = re.findall(rf"expected {name} with topic id (\S+), got (\S+)", said)[0]
    assert known != now
    assert re.findall(r"\d+", said.replace(known, "").replace(now, "").replace(name, "")) == ["0"]


async def _values(transport: KafkaTransport, start: int, stop: int) -> list[Value]:
    read = transport.read_second_input(HOME, start, stop)
    return [value async for records in read for value in records.values]
