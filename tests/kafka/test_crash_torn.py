"""Is a transaction whole, whichever of its requests is lost, repeated, or arrives late?

And does a process take all its partitions, however little time it gets for them?

The client speaks version 0 of every transactional request: a request says which producer and epoch
it comes from, but not which transaction it belongs to (Kafka's KIP-890). So one that was given up
with its connection, and arrives during the next transaction of that epoch, acts on that one.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from streamdp.core.errors import TransportLost
from streamdp.ports import Commit, Partition
from streamdp.testing.broker import Borrowed
from streamdp.testing.transport_room import Heard
from streamdp_adapters.kafka import owner
from streamdp_adapters.kafka import transport as transports
from streamdp_adapters.kafka.transport import KafkaTransport
from tests.crash.process import Place
from tests.crash.scenario import Scenario
from tests.kafka.test_crash import uncommitted
from tests.support.kafka_proxy import Fate, Kind, Proxy, Request, pass_on
from tests.support.kafka_site import HOME, Fresh, Site

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
"""How much longer `make soak` tries what is tried once here."""

ENDS = 25 if TIMES == 1 else 50 * TIMES
"""Transactions that must end well while requests of one kind are meddled with …"""

MEDDLED = 5 * TIMES
"""… and so many requests at least."""

WORKER = "streamdp-worker"
"""How the services under test name their clients; brokers and judges have other names."""


def numbered(number: int) -> Commit:
    """A commit whose state takes two requests."""
    rows = [(b"row %d" % row, b"%d" % number + b" " * 400_000) for row in range(2)]
    text = b"%d" % number
    return Commit(next_offset=number, state=rows, actions=[(b"fr", text)], ledger=[(b"fr", text)])


async def test_a_late_end_of_one_transaction_does_not_end_the_next(
    proxied_broker: Borrowed, proxy: Proxy, fresh_app: Fresh
) -> None:
    """The end of the second is lost with its connection, and arrives in the midst of the third."""
    site = Site.on(proxied_broker, fresh_app())
    await site.create()
    late: list[Request] = []
    answers: list[bytes] = []
    produced = 0

    async def meddle(request: Request) -> Fate:
        nonlocal produced
        if not request.client.startswith(WORKER) or number < 2:
            return Fate.PASS
        if number == 2 and request.kind is Kind.END and not late:
            late.append(request)
            return Fate.CUT
        if number == 3 and request.kind is Kind.PRODUCE and len(answers) == 0:
            produced += 1
            if produced == 2:
                answers.append(await late[0].deliver())
        return Fate.PASS

    number = 0
    proxy.meddle = meddle
    transport = site.technology.transport(worker="worker")
    await transport.join([site.made.topics], Heard())
    await transport.take(HOME)
    durable = []
    for number in range(1, 4):
        try:
            await transport.commit(HOME, numbered(number))
        except TransportLost:
            await transport.take(HOME)
        else:
            durable.append(number)
    taken = await transport.take(HOME)
    await transport.close()
    evidence = await site.evidence()
    assert [answer[-2:] for answer in answers] == [b"\x00\x2f"], "refused: INVALID_PRODUCER_EPOCH"
    assert durable == [1, 3]
    assert {value.strip() for value in taken.state.values()} == {b"3"}
    assert [record.value for record in evidence.ledger] == [b"1", b"3"]
    assert [record.value for record in evidence.actions] == [b"1", b"3"]


class Weather:
    """Meddles with one kind of request at random, from a seed."""

    def __init__(self, kind: Kind, *, seed: int) -> None:
        # A producer is initialised when its partition is taken: lost ends make that happen.
        self._shares = {Kind.INIT_PRODUCER: {kind: 1 / 2, Kind.END: 1 / 8}}.get(kind, {kind: 1 / 4})
        self._chance = random.Random(seed)
        self._late: dict[str, list[Request]] = {}
        self.ended = 0
        self.fates: Counter[tuple[str, str]] = Counter()

    async def __call__(self, request: Request) -> Fate:
        """Perhaps let an earlier request of this producer arrive first; then decide."""
        if not request.client.startswith(WORKER):
            return Fate.PASS
        late = self._late.setdefault(request.transactional_id, [])
        if late and self._chance.random() < 1 / 3:
            await late.pop(0).deliver()
            self.fates[request.kind.name, "begins behind a late request"] += 1
        self.ended += request.kind is Kind.END
        if self._chance.random() > self._shares.get(request.kind, 0):
            return Fate.PASS
        fate = self._chance.choice(["late", "held", "cut", "mute", "twice"])
        self.fates[request.kind.name, fate] += 1
        if fate == "held":
            await asyncio.sleep(self._chance.random() / 10)
            return Fate.PASS
        if fate == "late":
            late.append(request)
            return Fate.CUT
        return Fate(fate)


@pytest.mark.long
def test_every_block_is_released_once_whichever_request_is_lost_or_late(
    proxied_broker: Borrowed, proxy: Proxy, fresh_app: Fresh, tmp_path: Path
) -> None:
    """Three streams on four partitions, in one weather after another; the judge reads aborted data.

    The service starts in the first. Later ones meet its takings too: they follow every lost commit.
    """
    settings: dict[str, object] = {
        "bootstrap": proxied_broker.bootstrap, "single_broker": True, "session_timeout_ms": 1500,
    }  # fmt: skip
    made = Scenario(Place("kafka", settings, fresh_app(), 4), tmp_path, random.Random(1))
    made.prepare()
    weathers = {kind: Weather(kind, seed=kind.value) for kind in (Kind.INIT_PRODUCER, *Kind)}
    proxy.meddle = weathers[Kind.INIT_PRODUCER]
    with made.running() as process:
        for kind, weather in weathers.items():
            proxy.meddle = weather
            while weather.ended < ENDS or weather.fates.total() < MEDDLED:
                made.send(6)
                assert made.settle([process]) == [], (kind, made.log(process))
            fates = dict(sorted(weather.fates.items()))
            print(kind.name, weather.ended, "ends;", fates)  # for `pytest -s`
        made.stop(process)
    proxy.meddle = pass_on
    assert made.findings(uncommitted(proxied_broker.bootstrap, made)) == []


# -- many partitions -------------------------------------------------------------------------------

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
    monkeypatch.setattr(transports, "LONG_SECONDS", 0.1)
    hanging = {f"home.{number}" for number in range(transports.TAKEN_AT_ONCE)}

    async def hold_some(request: Request) -> Fate:
        if request.kind is Kind.INIT_PRODUCER and request.transactional_id.endswith(tuple(hanging)):
            await asyncio.Event().wait()
        return Fate.PASS

    made = await joined(proxied_broker, fresh_app())
    proxy.meddle = hold_some
    takings = [asyncio.create_task(made.take(Partition("home", n))) for n in range(MANY)]
    async with asyncio.timeout(180):
        await asyncio.gather(*takings[transports.TAKEN_AT_ONCE :])
    hung = takings[: transports.TAKEN_AT_ONCE]
    assert not any(taking.done() for taking in hung)
    for taking in hung:
        taking.cancel()
    await asyncio.wait(hung)
    await made.close()
