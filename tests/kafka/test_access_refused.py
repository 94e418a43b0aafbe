"""Rights and certificates that are wrong for a while: is what they concern retried, and nothing
else?
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient

from streamdp.core.errors import Refused, TransportLost
from streamdp.ports import Commit, Partition
from streamdp.service.view import PartitionStatus, Status, Steps, status_of
from streamdp.testing.broker import (
    AclRight,
    Broker,
    Grant,
    Resource,
    Security,
    allow,
    disallow,
    own_broker,
)
from streamdp.testing.certificates import write_certificates
from streamdp.testing.transport_room import Heard
from streamdp_adapters.kafka import KafkaSettings, owner
from tests.support.kafka_site import HOME, QUICK, Site
from tests.support.lending import Lent
from tests.support.services import Worker, serving
from tests.support.streams import events

pytestmark = pytest.mark.kafka

OTHER = Partition("other", 0)
USER, WORD = "gina", "xyzzy-g"
PRODUCE, ADD_PARTITIONS = 0, 24  # in the protocol
TOPIC_RIGHTS = (AclRight.READ, AclRight.WRITE, AclRight.DESCRIBE_CONFIGS)


def sites(
    at: Lent | Broker, fresh_app: Callable[[], str], folder: Path
) -> tuple[Site, Site, dict[str, Grant]]:
    """Two streams, and the rights on the first one by what they are for."""
    ca_file = folder / "ca.pem"
    shutil.copy(at.ca_file, ca_file)
    lent = Lent(at.bootstrap, at.secure_bootstrap, str(ca_file))
    made = []
    for name in ("home", "other"):
        app = fresh_app()
        site = Site.on(
            lent, app, bootstrap=at.secure_bootstrap, security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512", username=USER, password=WORD, ca_file=str(ca_file),
        )  # fmt: skip
        topics = replace(site.made.topics, stream=name)
        made.append(replace(site, made=replace(site.made, topics=topics)))
    for site in made:
        topics = site.made.topics
        rights = {
            "input": Grant(Resource.TOPIC, topics.input, TOPIC_RIGHTS),
            "state": Grant(Resource.TOPIC, topics.state, TOPIC_RIGHTS),
            "actions": Grant(Resource.TOPIC, topics.actions, TOPIC_RIGHTS),
            "ledger": Grant(Resource.TOPIC, topics.ledger, TOPIC_RIGHTS),
            "group": Grant(Resource.GROUP, f"{topics.app}.", (AclRight.READ,)),
            "id": Grant(Resource.TRANSACTION, f"{topics.app}.", (AclRight.WRITE,)),
        }
        create = Grant(Resource.TOPIC, topics.app, (AclRight.CREATE, AclRight.DESCRIBE))
        allow(at.bootstrap, USER, create, *rights.values())
        if site is made[0]:
            of_home = rights
    return made[0], made[1], of_home


def lived(*sites: Site) -> AbstractAsyncContextManager[Worker]:
    """One process on both streams, drained at the end."""
    transport = sites[0].technology.transport(worker="w")
    return serving([site.made for site in sites], transport, settings=QUICK)


async def until(worker: Worker, at: Partition, what: Callable[[PartitionStatus], bool]) -> None:
    part = worker.view.part
    async with asyncio.timeout(180):
        while not what(part(at)):
            assert not worker.task.done(), worker.task.exception()
            assert part(at).status is not Status.HALTED, part(at).message
            await asyncio.sleep(0.01)


def refused(named: str) -> Callable[[PartitionStatus], bool]:
    """Whether a partition waits for this right."""
    return lambda part: part.refused == named


async def test_an_input_that_may_no_longer_be_seen_is_named_and_waited_for(
    secure_broker: Lent, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    """The group then gives its partitions to nobody, so the input itself must say it."""
    home, other, rights = sites(secure_broker, fresh_app, tmp_path)
    topics, at = home.made.topics, secure_broker.bootstrap
    see = Grant(Resource.TOPIC, topics.app, (AclRight.CREATE, AclRight.DESCRIBE))
    for site in (home, other):
        await site.create()
        await site.send(events(20, keys=[b"k"]))
    async with lived(home, other) as worker:
        await until(worker, HOME, lambda part: part.position >= 20)
        disallow(at, USER, rights["input"], see)
        refused = {topics.input: "TopicAuthorizationFailedError"}
        await until(worker, OTHER, lambda _: worker.view.missing == refused)
        status = status_of(worker.view, Steps(time.monotonic), now=0.0)
        assert f"home: TopicAuthorizationFailedError {topics.input}" in status.away()
        allow(at, USER, rights["input"], see)
        sender = replace(home, settings=plain(secure_broker))
        await sender.send(events(20, keys=[b"k"], seed=1))
        await until(worker, OTHER, lambda _: not worker.view.missing)
        await until(worker, HOME, lambda part: part.position >= 40)


async def test_a_right_that_is_taken_away_is_waited_for_by_its_stream_alone(
    secure_broker: Lent, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    """One after another: the other stream goes on, the error is named, and nothing is lost."""
    home, other, rights = sites(secure_broker, fresh_app, tmp_path)
    topics, sender = home.made.topics, replace(home, settings=plain(secure_broker))
    for site in (home, other):
        await site.create()
        await site.send(events(20, keys=[b"k"]))
    async with lived(home, other) as worker:
        for at in (HOME, OTHER):
            await until(worker, at, lambda part: part.position >= 20)
        for seed, (which, right) in enumerate(rights.items(), start=1):
            expected = {
                "group": f"GroupAuthorizationFailedError {topics.app}.home",
                "id": f"TransactionalIdAuthorizationFailed {topics.app}.home.0",
            }.get(which, f"TopicAuthorizationFailedError {getattr(topics, which, '')}")
            disallow(secure_broker.bootstrap, USER, right)
            await sender.send(events(20, keys=[b"k"], seed=seed))  # the same list of what was sent
            await until(worker, HOME, refused(expected))
            await other.send(events(20, keys=[b"k"], seed=seed))
            await until(worker, OTHER, lambda part: part.position >= len(other.sent))
            assert not worker.view.part(OTHER).refused
            allow(secure_broker.bootstrap, USER, right)
            await until(worker, HOME, lambda part: part.position >= len(home.sent))
            async with asyncio.timeout(180):
                while len(await home.lines()) < len(home.sent):
                    await until(worker, HOME, lambda part: part.status is not Status.HALTED)
        assert "poll_lost" not in {line[0] for line in worker.log.lines}
        assert WORD not in str(worker.log.lines)
    assert await home.wrong() == []
    assert await other.wrong() == []


def plain(broker: Lent) -> KafkaSettings:
    """Settings of the listener where everybody is the administrator."""
    return KafkaSettings.parse({"bootstrap": broker.bootstrap, "single_broker": True})


@pytest.fixture
def guarded() -> Iterator[Broker]:
    """A broker that may be restarted, and whose certificate may be exchanged."""
    with own_broker(security=Security({USER: WORD})) as mine:
        yield mine


@pytest.mark.long
async def test_a_new_authority_is_read_without_a_restart(
    guarded: Broker,
    fresh_app: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker comes back with a certificate of another one; then the file says so, too."""
    monkeypatch.setattr(owner, "COMMIT_SECONDS", 6.0)  # the partition is lost only after it
    home, _, _ = sites(guarded, fresh_app, tmp_path)
    ca_file = home.settings.ca_file
    assert ca_file is not None
    await home.create()
    await home.send(events(20, keys=[b"k"]))
    async with lived(home) as worker:
        await until(worker, HOME, lambda part: part.position >= 20)
        guarded.kill()
        write_certificates(guarded.folder)
        guarded.start()
        await until(worker, HOME, lambda part: bool(part.refused))
        assert worker.view.part(HOME).refused == "SSLCertVerificationError"
        ca_file.write_bytes(b"-----BEGIN")  # half written
        await until(worker, HOME, lambda part: part.refused.startswith("transport.ca_file"))
        shutil.copy(guarded.ca_file, ca_file)
        await home.send(events(20, keys=[b"k"], seed=1))
        await until(worker, HOME, lambda part: part.position >= 40)
    assert await home.wrong() == []


async def test_nothing_of_a_transaction_is_sent_after_a_part_of_it_was_refused(
    secure_broker: Lent,
    fresh_app: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker might take it into the transaction before, of which it awaits the marker."""
    home, _, rights = sites(secure_broker, fresh_app, tmp_path)
    topics = home.made.topics
    await home.create()
    send, answered = AIOKafkaClient.send, list[set[str]]()
    added, sent = set[str](), set[str]()

    async def noted(client: Any, node: int, request: Any, **more: Any) -> Any:
        if request.API_KEY == PRODUCE:
            sent.update(topic for topic, _ in request._topics)
        answer = await send(client, node, request, **more)
        if request.API_KEY == ADD_PARTITIONS:
            answered.append({topic for topic, _ in answer.errors})
            for topic, partitions in answer.errors:
                added.update(topic for _, error in partitions if error == 0)
        return answer

    monkeypatch.setattr(AIOKafkaClient, "send", noted)
    transport = home.technology.transport(worker="w")
    async with asyncio.timeout(60):
        while True:
            try:
                await transport.join([topics], Heard())
                break
            except TransportLost:  # a broker that has just started has no coordinator yet
                await asyncio.sleep(0.1)
    await transport.take(HOME)
    disallow(secure_broker.bootstrap, USER, rights["actions"])
    added.clear()
    sent.clear()
    line = [(b"k", b"x")]
    with pytest.raises(Refused) as caught:
        await transport.commit(HOME, Commit(next_offset=0, state=line, actions=line, ledger=line))
    await transport.close()
    assert caught.value.named == f"TopicAuthorizationFailedError {topics.actions}"
    assert any(topics.actions in asked for asked in answered)
    assert sent <= added
