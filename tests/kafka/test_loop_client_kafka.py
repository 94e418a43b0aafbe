"""Do requests and outcomes of one key meet in one partition of a broker, whoever writes them?"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable

import pytest

from streamdp.assembly.recipes import Rewards
from streamdp.client import Loop, LoopTopics
from streamdp.ports import StreamTopics
from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka import KafkaTechnology
from tests.support.loops import Draws, joined, rows

pytestmark = pytest.mark.kafka

KEYS = [b"k%d" % number for number in range(8)]
PARTITIONS = 3


@pytest.mark.system("kcat")
async def test_are_events_those_of_the_page_on_a_broker(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """Half of the outcomes by the client, half by kcat: each finds its request, once."""
    app = fresh_app()
    topics = LoopTopics(f"{app}.requests", f"{app}.outcomes")
    table = {"bootstrap": broker.bootstrap, "single_broker": True}
    technology = KafkaTechnology.from_settings(table, app=app)
    pair = StreamTopics(
        app,
        "clicks",
        topics.requests,
        headers=True,
        second_input=topics.outcomes,
        output=f"{app}.events",
    )
    await technology.administrator().create([pair], partitions=PARTITIONS)
    async with Loop(technology.producer, Draws(), stream="banners", topics=topics) as loop:
        shown = [loop.choose(key) for key in KEYS]
        assert await asyncio.to_thread(loop.flush)
        for choice in shown[::2]:
            loop.outcome(choice, 1)
        assert await asyncio.to_thread(loop.flush)
        assert loop.condition.requests.lost == loop.condition.outcomes.lost == 0
    for choice in shown[1::2]:
        assert choice.request.key is not None
        header = f"streamdp-request={choice.request.id}"
        command = ["kcat", "-b", broker.bootstrap, "-t", topics.outcomes, "-P",
                   "-X", "partitioner=murmur2_random", "-k", choice.request.key.decode(),
                   "-H", header]  # fmt: skip
        await asyncio.to_thread(
            subprocess.run, command, input=b'{"reward": 0.5}', check=True, timeout=120
        )
    requests = await rows(technology, topics.requests)
    outcomes = await rows(technology, topics.outcomes)
    assert len(requests) == len(outcomes) == len(KEYS)
    events = {key: losses for key, losses, _ in joined(requests, outcomes, Rewards())}
    assert events == {key: [0.5 if at % 2 else 0.0] for at, key in enumerate(KEYS)}
    homes = [await places(technology, topic) for topic in topics]
    assert homes[0] == homes[1]
    assert len(set(homes[0].values())) > 1


async def places(technology: KafkaTechnology, topic: str) -> dict[bytes | None, int]:
    """The partition of each key."""
    of = StreamTopics("reader", "reader", topic, headers=True)
    return {
        key: batch.partition.number
        async for batch in technology.administrator().history(of, after={})
        for key in batch.keys
    }
