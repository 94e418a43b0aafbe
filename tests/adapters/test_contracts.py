"""Does the client of aiokafka, with our changes to it, behave as we need? Without a broker.

With one: `kafka/test_contracts_kafka.py`. Libraries whose internals are touched are bounded.
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.producer.message_accumulator import BatchBuilder

from streamdp.ports import Headers
from streamdp_adapters.kafka import internals
from streamdp_adapters.kafka.client_errors import start, stop
from streamdp_adapters.kafka.internals import with_pauses
from streamdp_adapters.kafka.settings import KafkaSettings
from tests.conftest import ROOT


def test_are_batches_filled_as_the_client_fills_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut at the same records, of which one is too large for any batch; the same bytes."""
    records = [
        (None, b"null key"),
        (b"null value", None),
        (b"k", bytes(300)),
        *([(b"k", b"v")] * 9),
    ]
    headers: list[Headers] = [[("name", b"%d" % at), ("none", None)] for at in range(12)]
    monkeypatch.setattr("time.time_ns", lambda: 1_234_567_000_000)
    for pairs in (None, headers):
        at, batch = 0, BatchBuilder(120, 0)
        for place, (key, value) in enumerate(records):
            of = list(pairs[place]) if pairs else []
            while batch.append(timestamp=1_234_567, key=key, value=value, headers=of) is None:
                ours = BatchBuilder(120, 0)
                assert internals.fill(ours, records, pairs, start=at) == place
                assert (ours.record_count(), ours._build()) == (place - at, batch._build())
                at, batch = place, BatchBuilder(120, 0)
        last = BatchBuilder(120, 0)
        assert internals.fill(last, records, pairs, start=at) == 12
        assert last._build() == batch._build()
        assert at > 3


@pytest.mark.parametrize("library", ["aiokafka", "uvicorn"])
def test_is_a_library_whose_internals_are_touched_bounded(library: str) -> None:
    """To the series of releases that these tests have seen."""
    (wanted,) = [
        requirement
        for requirement in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
            "dependencies"
        ]
        if re.match(rf"{library}\b", requirement)
    ]
    assert re.fullmatch(rf"{library}>=0\.(\d+)(\.\d+)?,<0\.(\d+)", wanted), wanted
    ((lower, upper),) = re.findall(r"0\.(\d+)(?:\.\d+)?,<0\.(\d+)", wanted)
    assert int(upper) == int(lower) + 1


class Node:
    """A broker that is up or down, and how often it was tried."""

    def __init__(self) -> None:
        self.down = False
        self.tried = 0

    async def connect(self, host: str, port: int, **more: object) -> object:
        self.tried += 1
        if self.down:
            raise ConnectionRefusedError
        return SimpleNamespace(connected=lambda: True)

    def client(self) -> Any:
        client = cast(Any, AIOKafkaClient)(bootstrap_servers="127.0.0.1:1")
        client.cluster.broker_metadata = lambda node: SimpleNamespace(host="broker", port=1)
        with_pauses(client)
        return client


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    monkeypatch.setattr("aiokafka.client.create_conn", made.connect)
    return made


async def test_a_broker_that_cannot_be_reached_is_tried_ever_more_rarely(node: Node) -> None:
    """However many tasks ask; as soon as it is reached, nobody waits."""
    client, node.down = node.client(), True

    async def ask() -> None:
        while not await client.ready(0):
            await asyncio.sleep(0.001)

    asking = [asyncio.create_task(ask()) for _ in range(5)]
    await asyncio.sleep(0.6)
    assert 2 <= node.tried <= 5 * 4  # at 0, .05, .15 and .35 s, at worst by each task
    node.down = False
    await asyncio.wait_for(asyncio.gather(*asking), 60)


async def test_a_connection_that_stands_waits_for_no_other_of_its_broker(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats have one of their own, and go on while the one for records is refused."""
    client = node.client()
    assert await client.ready(0, group=ConnectionGroup.COORDINATION)
    node.down = True
    monkeypatch.setattr(internals, "_SHORTEST", 3600.0)
    monkeypatch.setattr(internals, "_LONGEST", 3600.0)
    assert not await client.ready(0)
    waits = [asyncio.create_task(client.ready(0)) for _ in range(5)]
    for _ in range(3):
        assert await client.ready(0, group=ConnectionGroup.COORDINATION)
    assert not any(task.done() for task in waits)
    for task in waits:
        task.cancel()
    await asyncio.wait(waits)


def test_a_start_that_is_cancelled_closes_its_first_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that answers nothing; the client itself forgets the connection and leaves it open.

    Without `start` it still does so: then ours is not needed any more.
    """
    opened = list[list[str]]()

    async def connect(host: str, port: int, **more: object) -> object:
        done = list[str]()
        opened.append(done)

        async def send(request: object) -> NoReturn:
            done.append("asked")
            await asyncio.Event().wait()
            raise AssertionError

        return SimpleNamespace(send=send, close=lambda: done.append("closed"))

    async def cancelled(start: Callable[[AIOKafkaConsumer], Awaitable[None]]) -> list[str]:
        consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
        starting = asyncio.ensure_future(start(consumer))
        while not opened or not opened[-1]:
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await consumer.stop()
        return opened.pop()

    monkeypatch.setattr("aiokafka.client.create_conn", connect)
    settings = KafkaSettings("127.0.0.1:1")
    assert asyncio.run(cancelled(lambda consumer: start(consumer, settings))) == ["asked", "closed"]
    assert asyncio.run(cancelled(lambda consumer: consumer.start())) == ["asked"]


async def test_a_topic_that_is_gone_is_asked_for_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten questions at once, as at a start, then pauses; after a rest again ten at once."""
    now, asked = 0.0, list[float]()

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(internals, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def update(cluster: object, topics: object) -> bool:
        asked.append(now)
        return True

    client = cast(Any, AIOKafkaClient)(bootstrap_servers="127.0.0.1:1")
    client._metadata_update = update
    with_pauses(client)

    for begun in (0.0, 1.0):
        asked.clear()
        for _ in range(14):
            assert await client._metadata_update(client.cluster, set())
        after = [at - begun for at in asked]
        assert after == pytest.approx([0.0] * 11 + [0.05, 0.15, 0.35])
        await asyncio.sleep(begun + 1.0 - now)


async def _takes_it_for_its_own() -> None:
    """Go on after a cancellation, as the client does where it waits for a task of its own."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)


async def test_a_client_that_stops_keeps_no_cancellation_of_its_caller() -> None:
    """Else whoever was cancelled while a client stopped would go on for ever."""
    client = cast("AIOKafkaConsumer", SimpleNamespace(stop=_takes_it_for_its_own))
    caller = asyncio.create_task(stop(client))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
