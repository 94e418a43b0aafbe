"""Does a process that learns say how it is, whatever it is doing and whoever else asks?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from streamdp.ports import Partition
from streamdp.service import worker
from streamdp.service.config import Configuration
from streamdp.service.operations import SILENT_SECONDS, LatestStatus, operations_face
from streamdp.service.protocol import Restoring
from streamdp.service.run import Running
from streamdp.service.view import (
    PartitionStatus,
    ProcessStatus,
    Reason,
    Status,
    Steps,
    StreamStatus,
    View,
    status_of,
)
from streamdp.testing.memory_log import MemoryLog
from tests.support.asking import Answer, Process, free_port, raw
from tests.support.showing import ABOUT, partition, process
from tests.support.streams import events, spec
from tests.support.watched_observers import RECORDS, Lines, worked


def asked(latest: LatestStatus, target: str, **headers: str) -> Answer:
    """One answer of the operations listener."""
    return asyncio.run(Process(latest, ABOUT).ask(target, **headers))


def taken(*statuses: ProcessStatus) -> LatestStatus:
    """Snapshots of a process, one after another."""
    latest = LatestStatus(lambda: 0.0)
    for status in statuses:
        latest.take(status)
    return latest


def readiness(latest: LatestStatus) -> list[str]:
    """Why a process is not ready; nothing if it is."""
    answer = asked(latest, "/readyz")
    assert (answer.status == 200) == answer.json["ready"] == (not answer.json["why"])
    why: list[str] = answer.json["why"]
    return why


NOTHING_YET = ProcessStatus([StreamStatus("home", [], settled=False)], [], None)
STANDS_BY = ProcessStatus([StreamStatus("home", [], settled=True)], [], 0.1)


def test_a_process_without_snapshots_is_not_ready_and_a_silent_one_is_not_alive() -> None:
    now = [0.0]
    latest = LatestStatus(lambda: now[0])
    assert asked(latest, "/healthz").status == 200
    assert readiness(latest) == ["the learning process has not started"]
    latest.take(process())
    assert readiness(latest) == []
    now[0] += SILENT_SECONDS
    assert asked(latest, "/healthz").status == 503
    assert readiness(latest) == ["the learning process is silent"]
    latest.take(process())
    assert asked(latest, "/healthz").status == 200


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (NOTHING_YET, ["home: its partitions are not assigned yet"]),
        (process(partition(status="taking"), partition(1)), ["home/0 is taking"]),
        (process(partition(status="rebuilding")), ["home/0 is rebuilding"]),
        (process(partition(status="retrying", lost="Gone")), ["home/0 is retrying"]),
        (
            process(partition(status="halted", reason="state_mismatch")),
            ["every partition is halted"],
        ),
    ],
)
def test_a_process_is_not_ready_before_its_partitions_are_taken(
    before: ProcessStatus, why: list[str]
) -> None:
    assert readiness(taken(before)) == why
    assert readiness(taken(before, process())) == []


def test_a_process_that_stands_by_is_ready() -> None:
    """There may be more processes than partitions, in a roll-out above all."""
    assert readiness(taken(NOTHING_YET, STANDS_BY)) == []


@pytest.mark.parametrize("status", ["taking", "rebuilding", "retrying"])
def test_a_process_stays_ready_while_it_takes_more_partitions(status: str) -> None:
    """A dead broker must not take every process away."""
    assert after_the_start(partition(), partition(1, status=status)) == []
    assert after_the_start(partition(status="halted", reason="state_mismatch")) == []
    taking = taken(process(), process(partition(), partition(1, status=status)))
    assert asked(taking, "/readyz").json["away"] == [f"home/1 is {status}"]


def after_the_start(*parts: PartitionStatus) -> list[str]:
    """Why a process is not ready whose partitions were all taken before; nothing if it is."""
    return readiness(taken(process(), process(*parts)))


def test_a_process_that_was_ready_stays_so_through_losses_and_halts() -> None:
    """By the view itself."""
    made = spec()
    view, steps, latest = View([made]), Steps(lambda: 0.0), LatestStatus(lambda: 0.0)
    at = Partition(made.name, 0)

    def now() -> list[str]:
        latest.take(status_of(view, steps, now=0.0))
        return readiness(latest)

    view.work[made.name].settled = True
    view.turn(at, Status.TAKING)
    assert now() == ["home/0 is taking"]
    for status in (Status.RUNNING, Status.RETRYING):
        view.turn(at, status)
        assert now() == []
    view.halt(at, Reason.STATE, "the state is gone")
    assert now() == []
    assert asked(latest, "/readyz").json["halted"] == ["home/0: state_mismatch: the state is gone"]


@pytest.mark.parametrize("reason", ["configuration_mismatch", "invalid_config"])
def test_a_halt_by_the_configuration_makes_a_process_unready(reason: str) -> None:
    """At once and also later: the roll-out that brought it must stop."""
    halted = process(partition(status="halted", reason=reason), partition(1))
    assert readiness(taken(halted)) == ["home/0 is halted by this configuration"]
    assert readiness(taken(process(), halted)) == readiness(taken(halted))


def test_the_status_names_each_partition_of_streams_and_assemblies() -> None:
    joins = [StreamStatus("clicks", [partition(0, open=7)])]
    status = asked(taken(structs.replace(process(partition(3)), assemblies=joins)), "/v1/status")
    ((home,), (clicks,)) = status.json["streams"], status.json["assemblies"]
    assert [part["number"] for part in home["partitions"]] == [3]
    assert [part["open"] for part in clicks["partitions"]] == [7]
    assert status.json["transport_up"] is True


def test_other_paths_and_methods_are_refused() -> None:
    latest = taken(process())
    assert asked(latest, "/v1/streams/home/keys/fr/action").status == 404
    assert asyncio.run(Process(latest, ABOUT).ask("/metrics", method="POST")).status == 405


async def test_metrics_need_the_token_and_probes_do_not() -> None:
    made = Process(taken(process()), ABOUT, token=b"x" * 16)

    answers = [await made.ask(path) for path in ("/healthz", "/readyz", "/metrics", "/v1/status")]
    answers.append(await made.ask("/metrics", authorization="Bearer " + "x" * 16))
    assert [answer.status for answer in answers] == [200, 200, 401, 401, 200]


CONFIGURATION = """
app = "shop"
transport = {{ kind = "sqlite", path = "{folder}/log.db" }}
topics = {{ feedback = {{ budget = "1" }} }}
operations = {{ listen = "127.0.0.1:{port}" }}
[streams.home]
input = "feedback"
start = "earliest"
actions = ["a", "b", "c"]
learner = {{ epsilon = "1" }}
"""


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[tuple[str, int]]:
    """The listener of a process whose learning loop is this one."""
    port, path = free_port(), folder / "streamdp.toml"
    path.write_text(CONFIGURATION.format(folder=folder, port=port))
    configuration = Configuration.load(path, {})
    specs = configuration.specs()
    technology = configuration.technology()
    running = Running(configuration, specs, technology, View(specs), Lines(), "worker")
    async with operations_face(running):
        yield "127.0.0.1", port


REQUEST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def test_probes_and_metrics_are_answered_while_the_learning_loop_is_busy(
    tmp_path: Path,
) -> None:
    """This loop runs Python without a pause until a thread has its answers."""
    answers: list[bytes] = []

    async with listening(tmp_path) as address:
        await until_taken(address)
        client = threading.Thread(target=lambda: answers.extend(asked_twice(address)))
        client.start()
        turns = 0
        while client.is_alive():
            turns += 1
    probe, page = answers
    assert probe.endswith(b"alive\n")
    assert b"streamdp_transport_up" in page


def asked_twice(address: tuple[str, int]) -> list[bytes]:
    """What the listener says of its health, and its metrics."""
    requests = [REQUEST, REQUEST.replace(b"/healthz", b"/metrics")]
    return [asyncio.run(raw(address, request)) for request in requests]


async def until_taken(address: tuple[str, int]) -> None:
    """Wait for the first snapshot."""
    ready = REQUEST.replace(b"/healthz", b"/v1/status")
    while b'"name":"home"' not in await raw(address, ready):
        await asyncio.sleep(0.01)


async def test_the_listener_ends_with_its_process_and_connections_that_stay_do_not_hold_it(
    tmp_path: Path,
) -> None:
    async with listening(tmp_path) as address:
        _, writer = await asyncio.open_connection(*address)
    writer.close()
    assert "operations" not in {thread.name for thread in threading.enumerate()}


async def test_the_learning_loop_goes_on_while_a_partition_is_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a million keys it takes minutes, and a loop that is silent counts as hung."""
    begun, let_go = threading.Event(), threading.Event()

    def restoring(*arguments: Any, **named: Any) -> Restoring:
        begun.set()
        assert let_go.wait(20)
        return Restoring(*arguments, **named)

    monkeypatch.setattr(worker, "Restoring", restoring)
    monkeypatch.setattr(worker, "INLINE_ENTRIES", -1)
    made, log = spec(), MemoryLog()
    log.create(made.topics.input, partitions=1)
    log.append(made.topics.input, events(RECORDS))

    async def turn() -> None:
        while not begun.is_set():
            await asyncio.sleep(0)
        let_go.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(turn())
        working = group.create_task(worked(log, made, Lines()))
    assert working.result().part(Partition(made.name, 0)).position == RECORDS
