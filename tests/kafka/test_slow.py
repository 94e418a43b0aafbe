"""Does a process take all its partitions, however little time it gets for them?"""

from __future__ import annotations

import asyncio

import pytest

from streamdp.ports import Partition
from streamdp.testing.broker import Borrowed
from streamdp.testing.transport_room import Heard
from streamdp_adapters.kafka import owner, transport
from streamdp_adapters.kafka.transport import KafkaTransport
from tests.support.kafka_proxy import Fate, Kind, Proxy, Request
from tests.support.kafka_site import Fresh, Site

pytestmark = [pytest.mark.kafka, pytest.mark.anyio]

MANY = 32


async def joined(broker: Borrowed, app: str) -> KafkaTransport:
    """A worker on many empty partitions."""
    site = Site.on(broker, app)
    await site.technology.administrator().create([site.made.topics], partitions=MANY)
    made = site.technology.transport(worker="w")
    await made.join([site.made.topics], Heard())
    return made


async def test_no_partition_is_lost_by_a_time_out_because_many_are_taken(
    proxied_broker: Borrowed, proxy: Proxy, fresh_app: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests pass one after the other, so that all takings together take too long."""
    monkeypatch.setattr(owner, "COMMIT_SECONDS", 4.0)
    alone = asyncio.Lock()

    async def one_by_one(request: Request) -> Fate:
        async with alone:
            await asyncio.sleep(0.05)
        return Fate.PASS

    made = await joined(proxied_broker, fresh_app())
    proxy.meddle = one_by_one
    await asyncio.gather(*(made.take(Partition("home", number)) for number in range(MANY)))
    await made.close()


async def test_takings_that_hang_do_not_hold_up_the_others_for_long(
    proxied_broker: Borrowed, proxy: Proxy, fresh_app: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that some of them ask may be away."""
    monkeypatch.setattr(transport, "LONG_SECONDS", 0.1)
    hanging = {f"home.{number}" for number in range(transport.TAKEN_AT_ONCE)}

    async def hold_some(request: Request) -> Fate:
        if request.kind is Kind.INIT_PRODUCER and request.transactional_id.endswith(tuple(hanging)):
            await asyncio.Event().wait()
        return Fate.PASS

    made = await joined(proxied_broker, fresh_app())
    proxy.meddle = hold_some
    takings = [asyncio.create_task(made.take(Partition("home", n))) for n in range(MANY)]
    async with asyncio.timeout(180):
        await asyncio.gather(*takings[transport.TAKEN_AT_ONCE :])
    hung = takings[: transport.TAKEN_AT_ONCE]
    assert not any(taking.done() for taking in hung)
    for taking in hung:
        taking.cancel()
    await asyncio.wait(hung)
    await made.close()
