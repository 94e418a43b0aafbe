"""Does the doctor say whether an assembly would start, and where its producers disagree?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from streamdp.core.errors import ConfigurationMismatch, StateMismatch
from streamdp.ports import (
    Headers,
    PairedTransport,
    Partition,
    Taken,
    Value,
    Verdict,
)
from streamdp.serve.metrics import MetricsPage
from streamdp.service.assembling.partition import PartitionAssembly
from streamdp.service.charges_by_others import ALONE, alone
from streamdp.service.config import Configuration
from streamdp.service.diagnosis import _partition, compare, partitions, requests_apart
from streamdp.service.metrics import ProcessMetrics, ServiceFacts
from streamdp.service.taking import open_partition
from streamdp.service.view import ProcessStatus, Status, Steps, StreamStatus, View, status_of
from streamdp.testing.memory import MemoryAdministrator, MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.testing.transport_room import Heard
from streamdp.wire.entries import Entries
from streamdp.wire.state import decode_checkpoint, encode_checkpoint
from streamdp_adapters.sqlite import Settings, Sqlite, SqliteTransport
from tests.support.command_line import run_command
from tests.support.shop_files import joined_shop
from tests.support.showing import ABOUT, partition
from tests.support.visits import SPEC, TAKEN, TOPICS, saved_point, second_reaches

AT = Partition(SPEC.name, 0)
EMPTY = Taken({}, 0, 0, None, None, 2)


def room() -> MemoryLog:
    """Two partitions of each topic."""
    log = MemoryLog()
    for topic in (TOPICS.input, TOPICS.second_input, TOPICS.output):
        log.create(topic, partitions=2)
    return log


async def test_would_a_new_assembly_begin() -> None:
    tools = MemoryTechnology(room()).administrator()
    await compare(tools, [SPEC])
    findings = await partitions(tools, SPEC, alone)
    assert [finding.verdict for finding in findings] == [Verdict.GOOD] * 2
    assert findings[1].detail == "none yet: it would start at record 0"


def test_is_a_configuration_of_another_state_refused_before_a_roll_out() -> None:
    """And by the doctor said; what else may be wrong is no reason to stop one."""
    log = room()
    other = replace(SPEC, rules=replace(SPEC.rules, window=5))
    state = saved_point(other, at=(0, 0, 0), taken=EMPTY, partition=1)
    log.replace_state(TOPICS, 1, state)
    tools = MemoryTechnology(log).administrator()
    with pytest.raises(ConfigurationMismatch, match="needs a new epoch"):
        asyncio.run(compare(tools, [SPEC]))
    findings = asyncio.run(partitions(tools, SPEC, alone))
    assert [finding.verdict for finding in findings] == [Verdict.GOOD, Verdict.PROBLEM]
    log.replace_state(TOPICS, 1, dict.fromkeys(state, b"nonsense"))
    with pytest.raises(StateMismatch, match="damaged"):
        asyncio.run(compare(tools, [SPEC]))


def test_are_counts_of_keys_read_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many as keys; whether a partition would start does not follow from them."""
    log, held = room(), list[list[bytes]]()
    state = saved_point(at=(0, 0, 0), taken=EMPTY, partition=1)
    row = Entries(SPEC.name, 1).row(b"key", epoch=1)
    log.replace_state(TOPICS, 1, {row: b"1", **state})

    async def peek(tools: MemoryAdministrator, *args: Any, **options: Any) -> Taken:
        taken = await plain(tools, *args, **options)
        held.append(list(taken.state))
        return taken

    plain = MemoryAdministrator.peek
    monkeypatch.setattr(MemoryAdministrator, "peek", peek)
    tools = MemoryTechnology(log).administrator()
    asyncio.run(compare(tools, [SPEC]))
    assert [finding.verdict for finding in asyncio.run(partitions(tools, SPEC, alone))] == [
        Verdict.GOOD
    ] * 3
    assert held == [[], [*state]] * 2


Change = Callable[[Taken], Taken]


@pytest.mark.parametrize(
    ("verdict", "said", "change"),
    [
        (
            Verdict.GOOD,
            "is retained from 0",
            lambda t: second_reaches(replace(t, first_offset=0), first=0),
        ),
        (
            Verdict.WARNING,
            "raise retention now, also of outcomes",
            lambda t: replace(t, first_offset=5),
        ),
        (Verdict.GOOD, "is retained from 0", lambda t: second_reaches(t, first=8)),
    ],
)
def test_is_retention_foreseen(verdict: Verdict, said: str, change: Change) -> None:
    """Of outcomes no offset is said."""
    taken = second_reaches(replace(TAKEN, state=saved_point(), first_offset=0), first=0)
    state, retention = asyncio.run(_partition(SPEC, AT, change(taken), alone))
    assert (state.verdict, retention.verdict) == (Verdict.GOOD, verdict)
    assert said in retention.detail


def test_is_an_input_foreseen_that_ends_before_what_was_read() -> None:
    """Without topic ids; outcomes are read further than they are needed."""
    ((place, value),) = saved_point().items()
    point = decode_checkpoint(value)
    assert point.joined
    joined = structs.replace(point.joined, newest_outcome=f"{7:020d}:{1:032x}", outcomes_id=None)
    state = {place: encode_checkpoint(structs.replace(point, joined=joined))}
    taken = second_reaches(replace(TAKEN, state=state), end=7, id=None)
    (finding,) = asyncio.run(_partition(SPEC, AT, taken, alone))
    assert finding.verdict is Verdict.PROBLEM
    assert "the input was replaced" in finding.detail
    assert asyncio.run(_partition(SPEC, AT, second_reaches(taken, end=8), alone))[1:]


class Died(Exception):
    """A process ends here."""


async def test_is_a_crash_between_two_files_no_lost_line(tmp_path: Path) -> None:
    """The line was recorded, and the next take publishes it: until then, too, all is well."""

    def dies(step: str, partition: Partition) -> None:
        if step == "commit: recorded":
            raise Died

    async def crashed(settings: Settings) -> None:
        producer = Sqlite(settings).producer()
        requests: list[Headers] = [[("streamdp-request", b"r")]]
        await producer.send(TOPICS.input, [(b"k", None)], headers=requests, partition=0)
        await producer.close()
        transport = SqliteTransport(settings, worker="w", reached=dies)
        await transport.join([TOPICS], Heard())
        work = PartitionAssembly(SPEC, AT, await transport.take(AT), transport)
        transport.resume(AT, work.position)
        for records in await transport.poll(max_records=1, timeout=1):
            work.absorb([records])
        with pytest.raises(Died):
            await work.round(2**50)
        await transport.close()

    settings = Settings.from_mapping({"path": str(tmp_path / "log.db"), "partitions": 1})
    await crashed(settings)
    tools = Sqlite(settings).administrator()
    seen, findings = await tools.peek(TOPICS, 0), await partitions(tools, SPEC, alone)
    await tools.close()
    assert seen.last_ledger_line is not None
    assert [finding.verdict for finding in findings] == [Verdict.GOOD] * 2
    lost = replace(seen, last_ledger_line=None)
    with pytest.raises(StateMismatch, match=r"lost lines.*expected line 1, got an empty ledger"):
        open_partition(SPEC, AT, lost, by_others=ALONE)


def test_are_producers_that_disagree_about_partitions_found() -> None:
    log = room()
    tools = MemoryTechnology(log).administrator()
    log.append(TOPICS.input, [(b"fr", None), (b"de", None)], partition=0)
    log.append(TOPICS.second_input, [(b"fr", None)], partition=0)
    assert asyncio.run(requests_apart(tools, TOPICS, count=10)).verdict is Verdict.GOOD
    log.append(TOPICS.second_input, [(b"de", None)], partition=1)
    finding = asyncio.run(requests_apart(tools, TOPICS, count=10))
    assert finding.verdict is Verdict.PROBLEM
    assert finding.subject.startswith("NOT PRIVATE")
    assert "1 of 2 in several partitions, such as b'de' in 0, 1" in finding.detail


ASSEMBLY = ["state", "inspect", "--assembly", "join"]
COMMANDS = [
    ["doctor"], ["doctor", "--json"], ["topics", "check"], ["check", "--with-state"],
    ASSEMBLY, [*ASSEMBLY, "--json"],
    ["ledger", "show"], ["ledger", "verify"], ["ledger", "verify", "--persons"],
]  # fmt: skip
MANY: list[Value] = [b'{"reward":1}', b"\xff", None] * 7


def told(folder: Path, outcomes: Sequence[Value], *, more: Sequence[Value] = ()) -> list[str]:
    """What all public commands say of an assembly that has turned requests into events."""
    folder.mkdir()
    with chdir(folder):  # the paths that commands print are the same
        path = Path("shop.toml")
        path.write_text(joined_shop())
        configuration = Configuration.load(path, {})
        (spec,) = configuration.assemblies()
        technology = configuration.technology()
        named: Headers = [("streamdp-request", b"r")]

        async def sent(topic: str, values: Sequence[Value]) -> None:
            producer = technology.producer()
            headers = [named] * len(values)
            await producer.send(topic, [(b"k", value) for value in values], headers=headers)
            await producer.close()

        async def lived() -> None:
            await sent("requests", [None] * 3)
            if outcomes:
                await sent("outcomes", outcomes)
            transport = technology.transport(worker="w")
            assert isinstance(transport, PairedTransport)
            await transport.join([spec.topics], Heard())
            at = Partition(spec.name, 0)
            work = PartitionAssembly(spec, at, await transport.take(at), transport)
            await work.bring_back()
            transport.resume(at, work.position)
            for records in await transport.poll(max_records=9, timeout=1):
                work.absorb([records])
            assert await work.round(2**50) == 3
            assert await work.round(2**51) == 0  # in a quiet time both positions move on
            await transport.close()
            if more:
                await sent("outcomes", more)

        assert run_command(["topics", "create", "--config", "shop.toml"]).exit_code == 0
        asyncio.run(lived())
        results = [run_command([*words, "--config", "shop.toml"]) for words in COMMANDS]
        assert [result.exit_code for result in results] == [0] * len(COMMANDS)
        return [re.sub(r"\d+ MiB free", "", result.output) for result in results]


@pytest.mark.slow
def test_no_command_says_how_many_outcomes_there_are(tmp_path: Path) -> None:
    """None, or many that were read and more that were not: what is said is the same to the byte."""
    without = told(tmp_path / "without", [])
    assert any("at record 3 of 3" in output for output in without)
    assert told(tmp_path / "with", MANY, more=MANY) == without


def test_is_an_event_overdue_in_whole_minutes() -> None:
    """Reading many outcomes takes seconds, and must not show."""
    view = View([], assemblies=[SPEC.name])
    view.turn(AT, Status.RUNNING)

    def late(now: float) -> float:
        return status_of(view, Steps(lambda: 0.0), now=now).assemblies[0].partitions[0].overdue

    assert late(9.0) == 0
    view.due(AT, 100.0)
    assert [late(at) for at in (50.0, 159.9, 160.0, 219.0, 221.0)] == [0, 0, 60, 60, 120]


def test_are_partitions_beyond_the_bound_one() -> None:
    """The metrics page has so many series and no more; what is nearer to trouble is shown."""
    parts = [partition(n, open=n, events=10, overdue=float(n), lag=1) for n in range(500)]
    process = ProcessStatus(
        [], [], 0.1, assemblies=[StreamStatus("clicks", parts)]
    )  # fmt: skip
    page = MetricsPage(
        ProcessMetrics(
            lambda: ServiceFacts([ABOUT], process, assemblies={"clicks": 1}), most_series=1000
        ).families,
        application="shop",
    )
    lines = page.render().decode().splitlines()
    (overdue,) = [x for x in lines if x.startswith("streamdp_event_overdue") and '"rest"' in x]
    assert overdue.endswith(" 499.0")
    events = [x for x in lines if x.startswith("streamdp_events_assembled_total{")]
    assert sum(float(x.rpartition(" ")[2]) for x in events) == 5000
    assert len([x for x in lines if x[0] != "#"]) <= 1000
