"""Do our dependencies still have the internals that we touch, and do these behave as we need?

What a library does not promise may change with any release, so each such thing has a test here or
in `kafka/test_contracts_kafka.py`. `TOUCHED` and `MODULES` list them all: a change that touches
another one fails here, and brings its test. Libraries whose internals are touched are bounded.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.consumer.fetcher import FetchError, FetchResult
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.producer.message_accumulator import BatchBuilder
from prometheus_client import CollectorRegistry, generate_latest
from uvicorn.protocols.http.h11_impl import H11Protocol

from streamdp.ports import Headers
from streamdp.serve.connections import Connection
from streamdp.serve.families import gauge
from streamdp_adapters.kafka import internals
from streamdp_adapters.kafka.client_errors import start, stop
from streamdp_adapters.kafka.internals import with_pauses
from streamdp_adapters.kafka.settings import KafkaSettings
from tests.conftest import ROOT

TOUCHED = {
    "_batches", "_builder", "_check_crcs", "_client", "_closed", "_commit_refresh_task",
    "_consumer_record",
    "_contains_abort_marker", "_coordination_task", "_coordinator", "_drain_waiter",
    "_fetch_task", "_fetcher", "_get_conn",
    "_heartbeat_task", "_maybe_do_transactional_request", "_message_accumulator",
    "_metadata_update",
    "_partition_records", "_pending_tasks", "_protocol", "_records", "_records_iterator",
    "_relative_offset", "_reset_committed_task",
    "_send_produce_req", "_sender", "_topic_partition", "_transport", "_txn_manager",
    "_unpack_records", "_update_position",
}  # fmt: skip
"""Attributes of aiokafka's objects that it does not document."""

MODULES = {
    "aiokafka.client", "aiokafka.conn", "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
    "aiokafka.coordinator.assignors.sticky.sticky_assignor", "aiokafka.partitioner",
    "aiokafka.producer.message_accumulator", "aiokafka.protocol.abstract",
    "aiokafka.protocol.admin", "aiokafka.protocol.api", "aiokafka.protocol.fetch",
    "aiokafka.protocol.group", "aiokafka.protocol.metadata", "aiokafka.protocol.transaction",
    "aiokafka.protocol.types", "aiokafka.record.control_record",
    "aiokafka.record.default_records", "aiokafka.record.util", "uvicorn.protocols.http.h11_impl",
}  # fmt: skip
"""Modules that a library does not document."""

PUBLIC = {
    "aiokafka", "aiokafka.abc", "aiokafka.admin", "aiokafka.admin.config_resource",
    "aiokafka.errors", "aiokafka.helpers", "aiokafka.structs", "uvicorn",
}  # fmt: skip


def sources() -> Iterator[ast.Module]:
    """Every file of the product that imports one of the two libraries."""
    for folder in ("streamdp", "adapters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if re.search(r"^ *(from|import) (aiokafka|uvicorn)\b", text, re.M):
                yield ast.parse(text)


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


def test_do_the_requests_of_a_group_still_have_their_fields() -> None:
    """What is asked of a group's members, and what is read of the answers, by place and name."""
    admin, group = (import_module(f"aiokafka.protocol.{name}") for name in ("admin", "group"))
    assert next(iter(inspect.signature(admin.DescribeGroupsRequest).parameters)) == "groups"
    leaving = inspect.signature(group.LeaveGroupRequest).parameters
    assert list(leaving) == ["group", "member_id"]
    for version in (0, 1, 2, 3):
        schema = getattr(admin, f"DescribeGroupsResponse_v{version}").SCHEMA
        groups = schema.fields[schema.names.index("groups")].array_of
        assert groups.names[:3] == ("error_code", "group", "state")
        assert groups.names[5] == "members"
        assert groups.fields[5].array_of.names[:3] == ("member_id", "client_id", "client_host")
    for version in (0, 1):
        assert "error_code" in getattr(group, f"LeaveGroupResponse_v{version}").SCHEMA.names


def private(tree: ast.Module) -> Iterator[str]:
    """Underscored attributes of other objects than the method's own, and not of our classes."""
    nodes = list(ast.walk(tree))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if is_own(node)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in attributes:
        foreign = node.attr not in own or node.attr in TOUCHED
        if re.match(r"_[a-z]", node.attr) and not is_own(node) and foreign:
            yield node.attr


def is_own(node: ast.Attribute) -> bool:
    """Whether it is an attribute of `self` or `cls`."""
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def test_is_every_internal_that_is_touched_listed() -> None:
    """And nothing is listed that is not touched."""
    assert {name for tree in sources() for name in private(tree)} == TOUCHED


def test_does_one_module_touch_them_all() -> None:
    """Who upgrades the library reads one file, and every other one keeps to its documentation."""
    folder = ROOT / "adapters" / "streamdp_adapters" / "kafka"
    trees = {path.stem: ast.parse(path.read_text()) for path in folder.glob("*.py")}
    touching = {name for name, tree in trees.items() if TOUCHED & set(private(tree))}
    assert touching == {"internals"}


def test_is_every_undocumented_module_listed() -> None:
    """And nothing is listed that is not used."""
    used = {
        node.module
        for tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module
        and node.module.split(".")[0] in ("aiokafka", "uvicorn")
    }
    assert used - PUBLIC == MODULES


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


# -- uvicorn -----------------------------------------------------------------------------------


def test_does_the_protocol_still_have_what_our_connections_override_and_read() -> None:
    """An override that nobody calls would bound nothing; what it does is in `test_listeners`."""
    ours = {name for name, of in vars(Connection).items() if inspect.isfunction(of)}
    assert {name for name in ours if name[0] != "_"} - {"cut"} <= vars(H11Protocol).keys()
    made = inspect.getsource(H11Protocol.__init__)
    for name in ("conn", "cycle", "flow", "loop", "scope", "transport"):
        assert f"self.{name}" in made


# -- prometheus-client -------------------------------------------------------------------------


def test_is_a_page_made_of_whatever_has_families() -> None:
    """A registry asks anything that collects, and shows nothing of the process by itself."""

    class Families:
        def collect(self) -> Iterator[Any]:
            yield gauge("a", "A.", ["b"], [(("c",), 1.0)])

    registry = CollectorRegistry(auto_describe=False)
    registry.register(cast(Any, Families()))
    assert generate_latest(registry) == b'# HELP a A.\n# TYPE a gauge\na{b="c"} 1.0\n'


# -- aiokafka, without a broker ----------------------------------------------------------------


def test_does_the_assignor_keep_its_memory_in_the_class() -> None:
    """Which is why each consumer gets a class of its own."""
    assert isinstance(inspect.getattr_static(StickyPartitionAssignor, "member_assignment"), object)
    assert "member_assignment" in vars(StickyPartitionAssignor)


def test_can_a_coordinator_be_looked_up() -> None:
    """The doctor asks who has a transactional id, which needs a right on it."""
    wanted = list(inspect.signature(AIOKafkaClient.coordinator_lookup).parameters)
    assert wanted == ["self", "coordinator_type", "coordinator_key"]
    assert CoordinationType.TRANSACTION in CoordinationType


def test_is_what_was_fetched_one_of_two_things() -> None:
    assert inspect.isclass(FetchError)
    assert "_partition_records" in inspect.getsource(FetchResult)


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
