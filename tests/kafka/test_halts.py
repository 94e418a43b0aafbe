"""Does the service on a real broker halt clearly rather than guess, and is there a way out?

What a cluster may lose or change behind the service's back: state, input, limits, rights. Each
time the partition must stand still with a message that says what is wrong, publish nothing that
reads a record twice, and go on by what the message names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from aiokafka.admin import NewPartitions

import streamdp as sd
from streamdp.core.errors import InvalidConfig
from streamdp.core.selection import PermuteAndFlip
from streamdp.lab.audit.blackbox import lower_bound, pairs
from streamdp.lab.commands._black_box import served, spec_of
from streamdp.ports import Headers, Key, Partition, Value, Verdict
from streamdp.service.charges_by_others import ChargesByOthers, Scope, alone
from streamdp.service.life import Life
from streamdp.service.spec import StreamSpec
from streamdp.service.view import Reason, Status, Steps, status_of
from streamdp.testing.broker import AclRight, Borrowed, Grant, Resource, allow
from streamdp.testing.formats import HOSTILE
from streamdp.testing.judge import judge
from streamdp.wire.lines import Charge, EpochMark
from streamdp_adapters.kafka import KafkaTechnology, identity, membership
from tests.support.kafka_site import Fresh, Site, send
from tests.support.lending import Lent
from tests.support.streams import events

pytestmark = pytest.mark.kafka

KEYS: Sequence[Key] = (b"fr", b"de", None)


async def lived(site: Site, *parts: int) -> list[Mapping[bytes, bytes]]:
    """The topics, a service's life on some records, and the state after each part."""
    await site.create()
    states = []
    for number, count in enumerate(parts):
        await site.send(events(count, keys=KEYS, seed=number))
        async with site.serving() as service:
            await service.read(len(site.sent))
        states.append(await site.state())
    assert await site.wrong() == []
    return states


async def on_its_way(site: Site, *, epoch: int) -> None:
    """A new epoch gets on, publishes, and reads no record that was spent before."""
    before = await site.lines()
    await site.send(events(30, keys=KEYS, seed=99))
    async with site.serving(epoch=epoch) as service:
        await service.until(lambda part: part.status is Status.RUNNING and part.blocks >= 20)
    after = await site.lines()
    new = after[len(before) :]
    assert sum(isinstance(line, EpochMark) for line in new) == 1
    spent = max(line.last_offset for line in before if isinstance(line, Charge))
    again = [line for line in new if isinstance(line, Charge) and line.first_offset <= spent]
    assert again == []
    assert {line.epoch for line in new} == {epoch}
    assert await site.wrong() == []


# Lost and rolled-back state


async def test_a_deleted_state_halts_and_an_epoch_goes_on(
    broker: Borrowed, fresh_app: Fresh
) -> None:
    site = Site.on(broker, fresh_app())
    await lived(site, 40)
    await site.delete(site.made.topics.state)
    await site.create()
    lines = await site.lines()
    async with site.serving() as service:
        await service.halted(f"a ledger with line {lines[-1].ordinal}")
        assert "expected a checkpoint, or epoch 2" in service.part.message
    await on_its_way(site, epoch=2)


async def test_a_rolled_back_state_halts_and_an_epoch_goes_on(
    broker: Borrowed, fresh_app: Fresh
) -> None:
    site = Site.on(broker, fresh_app())
    old, _ = await lived(site, 20, 20)
    await site.overwrite(old)
    lines = await site.lines()
    async with site.serving() as service:
        await service.halted("rolled back")
        assert f"a state of line {lines[-1].ordinal} or later" in service.part.message
    assert await site.lines() == lines
    await on_its_way(site, epoch=2)


# An input that another tool has expanded


async def test_partitions_of_an_expanded_input_wait_for_their_topics(
    broker: Borrowed, fresh_app: Fresh
) -> None:
    """The other partitions go on, also in a process that starts now; `topics expand` is enough."""
    site = Site.on(broker, fresh_app())
    topics, tools, new = site.made.topics, site.technology.administrator(), Partition("home", 1)
    await lived(site, 20)
    async with site.administration() as client:
        await client.create_partitions({topics.input: NewPartitions(2)})
    await site.send(events(20, keys=KEYS, seed=5))
    async with site.serving() as service:
        await service.read(40)
        await service.until(lambda _: service.view.part(new).lacking == topics.state)
        (away,) = status_of(service.view, Steps(time.monotonic), now=0.0).away()
        said = f": {topics.state} lacks the partition, `streamdp topics expand` adds it"
        assert away.removesuffix(said) in ("home/1 is taking", "home/1 is retrying")
        lost = str(service.log.of("partition_lost")[0]["detail"])
        assert "run `streamdp topics expand --partitions 2`; expected 2, got 1" in lost
        lacking = [f.subject for f in await tools.check([topics]) if f.verdict is not Verdict.GOOD]
        assert lacking == [
            f"topic {name}: partitions" for name in (topics.actions, topics.ledger, topics.state)
        ]
        await tools.expand([topics], partitions=2)
        assert {f.verdict for f in await tools.check([topics])} == {Verdict.GOOD}
        with pytest.raises(InvalidConfig, match="at most 1 partition"):
            await tools.expand([topics], partitions=1)
        await send(site.technology, topics.input, events(20, keys=KEYS, seed=6), 1)
        await service.until(lambda _: service.view.part(new).position >= 20)
        assert (service.view.part(new).lacking, service.log.of("partition_halted")) == ("", [])


# Input that is lost, cut back or another


async def test_expired_input_halts_and_an_epoch_goes_on(broker: Borrowed, fresh_app: Fresh) -> None:
    """Retention overtook a stopped service: nothing is skipped in silence."""
    site = Site.on(broker, fresh_app())
    await lived(site, 40)
    await site.send(events(40, keys=KEYS, seed=7))
    await site.forget(before=60)
    async with site.serving() as service:
        await service.halted("oldest")
        assert service.part.reason is Reason.STATE
    await on_its_way(site, epoch=2)
    lines = await site.lines()
    new = [line for line in lines if line.epoch == 2 and isinstance(line, Charge)]
    assert min(line.first_offset for line in new) >= 60


async def test_is_an_input_of_which_retention_left_nothing_needed_again(
    broker: Borrowed, fresh_app: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction's marker lies behind the last record; all is deleted in a quiet time."""
    monkeypatch.setattr(membership, "_LOOK_SECONDS", 0.2)
    site = Site.on(broker, fresh_app())
    await site.create()
    records = events(20, keys=KEYS, seed=3)
    async with site.serving() as service:
        await site.send_in_transaction(records)
        await service.until(lambda part: part.position == part.low_water == len(records) + 1)
    await site.forget(before=len(records) + 1)
    async with site.serving() as service:
        await service.until(lambda part: part.status is Status.RUNNING)
        await site.send(events(5, keys=KEYS, seed=4))
        await service.until(lambda part: part.position == len(records) + 6)
    assert judge(await site.evidence()) == []


@pytest.mark.parametrize("epoch", [1, 2])
async def test_an_input_that_was_made_again_and_has_outgrown_the_position_halts(
    broker: Borrowed, fresh_app: Fresh, epoch: int
) -> None:
    """No offset tells; the topic's id does, and to a new epoch too.

    Where the state is gone as well, the ledger alone knows the id.
    """
    site = Site.on(broker, fresh_app())
    await lived(site, 40)
    lost = (site.made.topics.state,) if epoch == 2 else ()
    await site.delete(site.made.topics.input, *lost)
    await site.create()
    before = await site.evidence()
    await site.send(events(100, keys=KEYS, seed=8))
    async with site.serving(epoch=epoch, by_others=site.own_past if lost else alone) as service:
        await service.halted("deleted and recreated")
    assert await site.evidence() == before


async def test_an_input_that_is_made_again_under_a_running_service_halts(
    broker: Borrowed, fresh_app: Fresh
) -> None:
    """While nothing fails: it stands still meanwhile, then the topic is there and long enough."""
    site = Site.on(broker, fresh_app())
    await site.create()
    await site.send(events(40, keys=KEYS, seed=1))

    async def make_again() -> None:
        await site.delete(site.made.topics.input)
        await site.create()
        await site.send(events(100, keys=KEYS, seed=8))

    async with site.serving() as service:
        await service.read(40)
        with ThreadPoolExecutor(1) as other:  # this thread's own loop stands still meanwhile
            other.submit(lambda: asyncio.run(make_again())).result(timeout=240)
        await service.halted("deleted and recreated")
    async with site.serving(epoch=2) as service:
        await service.halted("deleted and recreated")


@pytest.mark.parametrize("noticed", ["while it is taken", "before it is delivered"])
async def test_an_input_that_is_made_again_while_a_partition_is_taken_halts(
    broker: Borrowed, fresh_app: Fresh, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    """Whether a taking ends long after it or at once: nothing of the new topic is learned."""
    if noticed == "before it is delivered":
        monkeypatch.setattr(identity, "_SECONDS", 3600.0)
    site = Site.on(broker, fresh_app())
    await lived(site, 40)
    before, plain = await site.evidence(), Life.fail
    old_topic, heard, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def fail(life: Life[Any], error: BaseException) -> None:
        plain(life, error)
        heard.set()

    monkeypatch.setattr(Life, "fail", fail)

    async def slow(stream: str, scope: Scope) -> ChargesByOthers:
        """As where the long ledger of another stream is read."""
        old_topic.set()
        await go.wait()
        return await alone(stream, scope)

    async with site.serving(by_others=slow) as service:
        await old_topic.wait()
        await site.delete(site.made.topics.input)
        await site.create()
        await site.send(events(100, keys=KEYS, seed=8))
        if noticed == "while it is taken":
            await asyncio.wait_for(heard.wait(), timeout=120)
        assert service.part.status is Status.TAKING
        go.set()
        await service.halted("deleted and recreated")
    assert await site.evidence() == before


# Sizes


async def test_what_could_not_be_committed_is_refused_at_the_start(
    broker: Borrowed, fresh_app: Fresh
) -> None:
    site = Site.on(broker, fresh_app())
    await site.create()
    await site.configure(site.made.topics.state, {"cleanup.policy": "compact",
                                                  "max.message.bytes": "5500"})  # fmt: skip
    with pytest.raises(InvalidConfig, match="its largest value does not fit"):
        async with site.serving() as service:
            await service.read(1)


async def test_a_limit_lowered_behind_its_back_halts_and_loses_nothing(
    broker: Borrowed, fresh_app: Fresh
) -> None:
    """The cluster refuses the commit; once it takes it again, everything is published once."""
    site = Site.on(broker, fresh_app())
    await lived(site, 20)
    keep = {"retention.ms": "-1", "retention.bytes": "-1"}
    async with site.serving() as service:
        await service.until(lambda part: part.status is Status.RUNNING)
        await site.configure(site.made.topics.ledger, {**keep, "max.message.bytes": "300"})
        await site.send(events(20, keys=KEYS, seed=2))
        await service.halted("MessageSizeTooLarge")
        assert service.part.reason is Reason.CONFIG
    await site.configure(site.made.topics.ledger, {**keep, "max.message.bytes": "1048588"})
    async with site.serving() as service:
        await service.read(len(site.sent))
    assert await site.wrong() == []


# Poison


async def test_hostile_records_take_their_slots_and_stop_nothing(
    broker: Borrowed, fresh_app: Fresh
) -> None:
    site = Site.on(broker, fresh_app())
    await site.create()
    small = [value for value in HOSTILE if value is None or len(value) < 900_000]
    hostile = [(KEYS[number % 3], value) for number, value in enumerate(small)]
    await site.send([*hostile, *events(30, keys=KEYS), *hostile])
    async with site.serving() as service:
        await service.read(len(site.sent))
    assert await site.wrong() == []
    lines = await site.lines()
    slots = sum(line.stop - line.start for line in lines if isinstance(line, Charge))
    assert slots == len(site.sent)


# Rights


async def test_the_service_works_with_the_rights_of_the_manual(secure_broker: Lent) -> None:
    """By TLS and SCRAM: topics are made, commits are kept and fenced, positions handed over."""
    user, at = "erin", secure_broker.bootstrap
    rights = (AclRight.READ, AclRight.WRITE, AclRight.CREATE, AclRight.DESCRIBE_CONFIGS)
    allow(at, user, Grant(Resource.TOPIC, "kit", rights))
    allow(at, user, Grant(Resource.GROUP, "kit", (AclRight.READ,)))
    allow(at, user, Grant(Resource.TRANSACTION, "kit", (AclRight.WRITE,)))
    site = Site.on(
        secure_broker, "kit-erin", bootstrap=secure_broker.secure_bootstrap,
        security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", username=user,
        password="xyzzy-e", ca_file=secure_broker.ca_file,
    )  # fmt: skip
    await lived(site, 30, 30)


# From outside


def test_is_noise_of_half_the_scale_refuted_on_a_real_broker(
    broker: Borrowed, fresh_app: Fresh
) -> None:
    """Layer 3 of the audit on real commits: the same bounds as on any transport (seeded)."""
    honest = sd.noisy_leader(actions=["x", "y"], epsilon="1", noise="exponential")
    proven = {}
    for name, learner in {
        "honest": honest,
        "Exp(1/ε)": replace(honest, choose=PermuteAndFlip(Fraction(1))),
    }.items():
        app = fresh_app()
        made = spec_of(learner, stream="home")
        topics = replace(made.topics, app=app, input=f"{app}-losses")
        made = replace(made, topics=topics, randomness=sd.SeededRandomness(5))
        technology = Site.on(broker, app).technology
        pair, *_ = pairs(learner.schedule, made.format)

        def run(
            log: Sequence[tuple[bytes, Value]],
            headers: Sequence[Headers] | None,
            made: StreamSpec = made,
            technology: KafkaTechnology = technology,
        ) -> list[bytes]:
            return asyncio.run(served(made, technology, log, headers))

        proven[name] = lower_bound(pair, run, runs=300, confidence=0.95).epsilon
    assert proven["honest"] <= 1 < proven["Exp(1/ε)"]
