"""TLS, SASL and ACLs: does what is granted suffice, and is what is wrong said clearly?"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from streamdp.core.errors import InvalidConfig, StreamdpError, TransportLost
from streamdp.ports import StreamTopics, Transport, Verdict, no_fault
from streamdp.testing.broker import AclRight, Grant, Resource, allow
from streamdp.testing.transport_room import Heard
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology, reading
from streamdp_adapters.kafka.internals import client_of
from streamdp_adapters.kafka.owner import PartitionOwner
from tests.support.calling import Ran, Streamdp
from tests.support.lending import Lent

pytestmark = pytest.mark.kafka

SERVICE = (
    Grant(Resource.TOPIC, "kit", (AclRight.READ, AclRight.WRITE, AclRight.DESCRIBE_CONFIGS)),
    Grant(Resource.GROUP, "kit", (AclRight.READ,)),
    Grant(Resource.TRANSACTION, "kit", (AclRight.WRITE,)),
)


@pytest.fixture(scope="module")
def secure(secure_broker: Lent) -> Lent:
    """A broker with users of very different rights."""
    at = secure_broker.bootstrap
    allow(at, "alice", *SERVICE, Grant(Resource.TOPIC, "kit", (AclRight.CREATE,)))
    allow(at, "bob", Grant(Resource.TOPIC, "kit", (AclRight.DESCRIBE_CONFIGS, AclRight.READ)))
    for role, *rights in (
        ("input", AclRight.READ, AclRight.DESCRIBE_CONFIGS),
        ("actions", AclRight.READ),
        ("ledger", AclRight.READ, AclRight.DESCRIBE_CONFIGS),
    ):
        allow(at, "carol", Grant(Resource.TOPIC, f"kit.blind.{role}", tuple(rights)))
    return secure_broker


def _settings(broker: Lent, **change: object) -> KafkaSettings:
    """Alice by SCRAM, or what is changed of that."""
    table: dict[str, object] = {
        "bootstrap": broker.secure_bootstrap,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "username": "alice",
        "password": "xyzzy-a",
        "ca_file": broker.ca_file,
        "single_broker": True,
    }
    return KafkaSettings.parse({k: v for k, v in (table | change).items() if v is not None})


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_each_mechanism_connects(secure: Lent, tmp_path: Path, mechanism: str) -> None:
    change: dict[str, object] = {"sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        token = tmp_path / "token"
        token.write_text(_unsigned(sub="alice"))
        change |= {"token_file": str(token), "username": None, "password": None}
    technology = KafkaTechnology(_settings(secure, **change))
    findings = await technology.administrator().probe([])
    assert [(finding.subject, finding.verdict) for finding in findings] == [
        ("connection", Verdict.GOOD)
    ]


def _unsigned(**claims: object) -> str:
    """A token of the kind that only a test broker accepts."""
    parts = [{"alg": "none"}, {"iat": 1_600_000_000, "exp": 4_000_000_000} | claims]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*encoded, b""]).decode()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"password": "xyzzy-wrong"}, InvalidConfig, "SCRAM-SHA-512 credentials of alice"),
        (
            {"password": "xyzzy-wrong", "sasl_mechanism": "PLAIN"},
            InvalidConfig,
            "PLAIN credentials of alice are refused",
        ),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, InvalidConfig, "no SCRAM-SHA-256 on this listener"),
        ({"ca_file": None}, InvalidConfig, "no TLS that can be trusted"),
        ({"bootstrap": "127.0.0.1:1"}, TransportLost, "unreachable"),
    ],
)
async def test_a_wrong_credential_is_named_and_not_quoted(
    secure: Lent, change: dict[str, object], kind: type[StreamdpError], message: str
) -> None:
    """The client itself says only that it is unable to bootstrap."""
    technology = KafkaTechnology(_settings(secure, **change))
    topics = StreamTopics("kit", "home", "kit.input")
    transport = technology.transport(worker="w")
    for step in (
        transport.join([topics], Heard()),
        technology.producer().send("kit.input", [(b"k", b"v")]),
        technology.administrator().check([topics]),
    ):
        with pytest.raises(kind, match=message) as refused:
            await step
        assert "xyzzy" not in str(refused.value)
    await transport.close()


@pytest.mark.parametrize(
    "token",
    ["no token", "", _unsigned(sub="alice", exp=1_700_000_000), _unsigned()],
    ids=["garbage", "empty", "expired", "of nobody"],
)
async def test_a_refused_token_is_named_and_not_quoted(
    secure: Lent, tmp_path: Path, token: str
) -> None:
    """The broker refuses it in a way that the client does not hear."""
    path = tmp_path / "token"
    path.write_text(token)
    change = {"sasl_mechanism": "OAUTHBEARER", "username": None, "password": None}
    settings = _settings(secure, **change, token_file=str(path))
    technology = KafkaTechnology(settings)
    (finding,) = await technology.administrator().probe([])
    assert (finding.subject, finding.verdict) == ("connection", Verdict.PROBLEM)
    topics = StreamTopics("kit", "home", "kit.input")
    for step in (
        technology.transport(worker="w").join([topics], Heard()),
        technology.producer().send("kit.input", [(b"k", b"v")]),
        technology.administrator().check([topics]),
        reading.durable(settings, topics, 0, owned_at=None),
        _take(settings, topics),
    ):
        said = f"token of {path} is refused" if token else "transport.token_file: empty"
        with pytest.raises(InvalidConfig, match=said) as refused:
            await step
        assert not token or token not in str(refused.value)


async def test_does_a_client_outlive_a_token_that_is_missing_for_a_while(
    secure: Lent, tmp_path: Path
) -> None:
    """Whoever renews a token may empty its file first."""
    path = tmp_path / "token"
    path.write_text(_unsigned(sub="alice"))
    change = {"sasl_mechanism": "OAUTHBEARER", "username": None, "password": None}
    consumer = AIOKafkaConsumer(**_settings(secure, **change, token_file=str(path)).client())
    await consumer.start()
    client: Any = client_of(consumer)
    path.write_text("")
    for connection in list(client._conns.values()):
        await connection.close()
    assert not await client.force_metadata_update()
    path.write_text(_unsigned(sub="alice"))
    assert await client.force_metadata_update()
    await consumer.stop()


async def _take(settings: KafkaSettings, topics: StreamTopics) -> None:
    """Take a partition as whoever would own it."""
    owner = PartitionOwner(
        topics, 0, settings=settings, worker="w", largest=1 << 20, reached=no_fault
    )
    await owner.take()


@pytest.mark.parametrize("protocol", ["SSL", "PLAINTEXT"])
async def test_a_listener_of_another_protocol_is_suspected(secure: Lent, protocol: str) -> None:
    address = secure.bootstrap if protocol == "SSL" else secure.secure_bootstrap
    table = {"bootstrap": address, "security_protocol": protocol}
    authority = {"ca_file": secure.ca_file} if protocol == "SSL" else {}
    technology = KafkaTechnology(KafkaSettings.parse(table | authority))
    with pytest.raises(TransportLost, match=f"is it no {protocol} listener"):
        await technology.administrator().check([])


async def test_the_doctor_finds_the_missing_rights(secure: Lent) -> None:
    """Bob may read and look; he may neither write, nor commit, nor use a transactional id."""
    topics = StreamTopics("kit", "doctor", "kit.doctor.input")
    await KafkaTechnology(_settings(secure)).administrator().create([topics], partitions=1)
    written = [topics.input]
    alice = (
        await KafkaTechnology(_settings(secure)).administrator().probe([topics], written=written)
    )
    assert {finding.verdict for finding in alice} == {Verdict.GOOD}
    assert alice[-1].subject == "topic kit.doctor.input: write by serve"
    as_bob = _settings(secure, username="bob", password="xyzzy-b")
    findings = await KafkaTechnology(as_bob).administrator().probe([topics], written=written)
    problems = [finding.subject for finding in findings if finding.verdict is Verdict.PROBLEM]
    assert problems == [
        "topic kit.doctor.state: write in a transaction",
        "topic kit.doctor.actions: write in a transaction",
        "topic kit.doctor.ledger: write in a transaction",
        "group kit.doctor: commit",
        "transactional id kit.doctor.0",
        "topic kit.doctor.input: write by serve",
    ]
    transport = KafkaTechnology(as_bob).transport(worker="bob")
    await transport.join([topics], Heard())
    with pytest.raises(InvalidConfig, match="GroupAuthorizationFailedError"):
        await _poll_on(transport)
    await transport.close()


async def test_a_topic_that_may_not_be_looked_at_hides_no_other(secure: Lent) -> None:
    """Carol may not see the state at all, nor the settings of the actions."""
    topics = StreamTopics("kit", "blind", "kit.blind.input")
    await KafkaTechnology(_settings(secure)).administrator().create([topics], partitions=1)
    as_carol = KafkaTechnology(_settings(secure, username="carol", password="xyzzy-c"))
    checked = await as_carol.administrator().check([topics])
    assert {
        finding.subject: finding.detail for finding in checked if finding.verdict is Verdict.PROBLEM
    } == {
        "topic kit.blind.actions: DescribeConfigs": "no right to DescribeConfigs: grant it to this "
        "user, so that the topic can be checked",
        "topic kit.blind.state: Describe": "no right to Describe: grant it to this user, so that "
        "the topic can be checked",
        "topic kit.blind.catalogue: Describe": "no right to Describe: grant it to this user, so "
        "that the topic can be checked",
    }
    assert "topic kit.blind.ledger: retention.ms" in {finding.subject for finding in checked}
    tried = {
        finding.subject: finding.detail
        for finding in await as_carol.administrator().probe([topics])
    }
    assert tried["topic kit.blind.ledger: read"] == "may read"
    assert tried["topic kit.blind.state: read"] == "refused: no right to Read, nor to see it"
    identity = tried["transactional id kit.blind.0"]
    assert identity.startswith("refused: TransactionalIdAuthorizationFailed")
    transport = as_carol.transport(worker="carol")
    with pytest.raises(InvalidConfig, match=r"topic kit\.blind\.state: Describe: no right"):
        await transport.join([topics], Heard())
    await transport.close()


async def _poll_on(transport: Transport) -> None:
    while True:
        await transport.poll(max_records=1, timeout=0.2)


async def test_the_doctor_does_not_wait_for_what_is_not_there(secure: Lent) -> None:
    """A client asks for a missing topic until its time is up; `check` says that it is missing."""
    tools = KafkaTechnology(_settings(secure)).administrator()
    findings = await tools.probe([StreamTopics("kit", "missing", "kit.missing.input")])
    assert [finding.subject for finding in findings] == [
        "connection",
        "transactional id kit.missing.0",
    ]
    assert {finding.verdict for finding in findings} == {Verdict.GOOD}


async def test_a_lone_broker_is_told_of_by_the_way_to_try_it(secure: Lent) -> None:
    tools = KafkaTechnology(_settings(secure, single_broker=False)).administrator()
    with pytest.raises(InvalidConfig, match="single_broker = true"):
        await tools.create([StreamTopics("kit", "lone", "kit.lone.input")], partitions=1)


async def test_the_doctor_leaves_no_record(secure: Lent) -> None:
    topics = StreamTopics("kit", "clean", "kit.clean.input")
    technology = KafkaTechnology(_settings(secure))
    await technology.administrator().create([topics], partitions=1)
    await technology.administrator().probe([topics])
    seen = await technology.administrator().peek(topics, 0)
    assert dict(seen.state) == {}
    assert seen.last_ledger_line is None
    assert seen.group_offset is None


RANKING = """
app = "kit"
[topics."kit.requests"]
budget = "1"
[topics."kit.events"]
budget = "1"
[streams.ranked]
input = "kit.events"
start = "earliest"
observes = "feedback"
actions = ["a", "b"]
fallback_action = "a"
learner = { epsilon = "1" }
format = { name = "json", padding = "fixed" }
feedback = { content = "reward" }
[assemblies.ranking]
requests = "kit.requests"
outcomes = "kit.outcomes"
stream = "ranked"
start = "earliest"
mode = "feedback"
window = "1s"
combine = "max"
default_loss = 1.0
[http]
listen = "127.0.0.1:8080"
rank_and_reward = true
"""


def test_the_doctor_tries_what_serve_writes(
    secure: Lent, tmp_path: Path, streamdp: Streamdp
) -> None:
    """Bob may read requests and outcomes, and write neither; it matters only if serve shall."""

    def call(user: str, *command: str, rank: str = "true") -> Ran:
        settings = {
            "kind": "kafka", "bootstrap": secure.secure_bootstrap, "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512", "username": user, "password": f"xyzzy-{user[0]}",
            "ca_file": str(secure.ca_file),
        }  # fmt: skip
        transport = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        path = tmp_path / "shop.toml"
        ranking = RANKING.replace("reward = true", f"reward = {rank}")
        path.write_text(f"{ranking}[transport]\n{transport}")
        return streamdp(*command, "--config", str(path), "--single-broker")

    assert call("alice", "topics", "create").code == 0
    wanted = ("kit.requests", "kit.outcomes")
    for user, verdict in (("alice", "good"), ("bob", "problem")):
        findings = json.loads(call(user, "doctor", "--stream", "ranking", "--json").out)
        found = {finding["subject"]: finding["verdict"] for finding in findings}
        assert [found[f"topic {topic}: write by serve"] for topic in wanted] == [verdict] * 2
    assert "by serve" not in call("bob", "doctor", rank="false").out
