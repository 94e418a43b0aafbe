"""Does the doctor say whether an assembly would start, and where its producers disagree?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from streamdp.assembly.join import Positions
from streamdp.core.errors import ConfigurationMismatch, StateMismatch
from streamdp.ports import Finding, Headers, Partition, Taken, Verdict
from streamdp.serve.metrics import MetricsPage
from streamdp.service.assembling.diagnosis import _partition, compare_assemblies, keys, partitions
from streamdp.service.assembling.partition import PartitionAssembly
from streamdp.service.assembling.saved import encode_point, open_assembly
from streamdp.service.charges_by_others import ALONE, alone
from streamdp.service.metrics import Facts, ProcessMetrics
from streamdp.service.status import ASSEMBLES, ProcessStatus, StreamStatus
from streamdp.service.view import PartitionView
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.testing.transport_room import Heard
from streamdp_adapters.sqlite import Settings, Sqlite, SqliteTransport
from tests.support.showing import ABOUT, partition
from tests.support.visits import SPEC, TAKEN, TOPICS

AT = Partition(SPEC.name, 0)


def room() -> MemoryLog:
    """Two partitions of each topic."""
    log = MemoryLog()
    for topic in (TOPICS.input, TOPICS.second_input, TOPICS.output):
        log.create(topic, partitions=2)
    return log


def test_would_a_new_assembly_begin() -> None:
    async def looked() -> list[Finding]:
        tools = MemoryTechnology(room()).administrator()
        await compare_assemblies(tools, [SPEC])
        return await partitions(tools, SPEC, alone)

    findings = asyncio.run(looked())
    assert [finding.verdict for finding in findings] == [Verdict.GOOD] * 2
    assert findings[1].detail == "it would begin epoch 1 at request 0"


def test_is_a_configuration_of_another_state_refused_before_a_roll_out() -> None:
    """And by the doctor said; what else may be wrong is no reason to stop one."""
    log = room()
    other = replace(SPEC, rules=replace(SPEC.rules, window=5))
    point = encode_point(other, Taken({}, 0, 0, None, None, 2), Positions(0, 0, 0))
    log.replace_state(TOPICS, 1, {b"checkpoint": point})
    tools = MemoryTechnology(log).administrator()
    with pytest.raises(ConfigurationMismatch, match="needs a new epoch"):
        asyncio.run(compare_assemblies(tools, [SPEC]))
    findings = asyncio.run(partitions(tools, SPEC, alone))
    assert [finding.verdict for finding in findings] == [Verdict.GOOD, Verdict.PROBLEM]
    log.replace_state(TOPICS, 1, {b"checkpoint": b"nonsense"})
    asyncio.run(compare_assemblies(tools, [SPEC]))


Change = Callable[[Taken], Taken]


@pytest.mark.parametrize(
    ("verdict", "said", "change"),
    [
        (
            Verdict.GOOD,
            "retained from 0 on",
            lambda t: replace(t, first_offset=0, second_input_first=0),
        ),
        (Verdict.WARNING, "retention of requests", lambda t: replace(t, first_offset=5)),
        (Verdict.GOOD, "retained from 0 on", lambda t: replace(t, second_input_first=8)),
    ],
)
def test_is_retention_foreseen(verdict: Verdict, said: str, change: Change) -> None:
    """Of outcomes no offset is said."""
    point = encode_point(SPEC, TAKEN, Positions(7, 5, 3))
    taken = replace(TAKEN, state={b"checkpoint": point}, first_offset=0, second_input_first=0)
    state, retention = _partition(SPEC, AT, change(taken), ALONE)
    assert (state.verdict, retention.verdict) == (Verdict.GOOD, verdict)
    assert said in retention.detail


class Died(Exception):
    """A process ends here."""


def test_is_a_crash_between_two_files_no_lost_line(tmp_path: Path) -> None:
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
            work.absorb(records)
        with pytest.raises(Died):
            await work.round(2**50)
        await transport.close()

    async def looked() -> tuple[Taken, list[Finding]]:
        settings = Settings.from_mapping({"path": str(tmp_path / "log.db"), "partitions": 1})
        await crashed(settings)
        tools = Sqlite(settings).administrator()
        seen, findings = await tools.peek(TOPICS, 0), await partitions(tools, SPEC, alone)
        await tools.close()
        return seen, findings

    seen, findings = asyncio.run(looked())
    assert seen.last_ledger_line is not None
    assert [finding.verdict for finding in findings] == [Verdict.GOOD] * 2
    lost = replace(seen, last_ledger_line=None)
    with pytest.raises(StateMismatch, match=r"lost lines.*expected line 1, got an empty ledger"):
        open_assembly(SPEC, AT, lost)


def test_are_producers_that_disagree_about_partitions_found() -> None:
    log = room()
    tools = MemoryTechnology(log).administrator()
    log.append(TOPICS.input, [(b"fr", None), (b"de", None)], partition=0)
    log.append(TOPICS.second_input, [(b"fr", None)], partition=0)
    assert asyncio.run(keys(tools, TOPICS, count=10)).verdict is Verdict.GOOD
    log.append(TOPICS.second_input, [(b"de", None)], partition=1)
    finding = asyncio.run(keys(tools, TOPICS, count=10))
    assert finding.verdict is Verdict.PROBLEM
    assert finding.subject.startswith("NOT PRIVATE")
    assert "1 of 2 in several partitions, such as b'de' in 0, 1" in finding.detail


def test_is_an_event_overdue_in_whole_minutes() -> None:
    """Reading many outcomes takes seconds, and must not show."""
    part = PartitionView(due_at=100.0)
    late = [part.overdue(now=at) for at in (50.0, 159.9, 160.0, 219.0, 221.0)]
    assert late == [0, 0, 60, 60, 120]
    assert PartitionView().overdue(now=9.0) == 0


def test_are_partitions_beyond_the_bound_one() -> None:
    """The metrics page has so many series and no more; what is nearer to trouble is shown."""
    parts = [partition(n, open=n, events=10, overdue=float(n), lag=1) for n in range(500)]
    process = ProcessStatus(
        [], [], 0.1, assemblies=[StreamStatus("clicks", ASSEMBLES, parts)]
    )  # fmt: skip
    page = MetricsPage(
        ProcessMetrics(
            lambda: Facts([ABOUT], process, assemblies={"clicks": 1}), most_series=1000
        ).families,
        application="shop",
    )
    lines = page.render().decode().splitlines()
    (overdue,) = [x for x in lines if x.startswith("streamdp_event_overdue") and '"rest"' in x]
    assert overdue.endswith(" 499.0")
    events = [x for x in lines if x.startswith("streamdp_events_assembled_total{")]
    assert sum(float(x.rpartition(" ")[2]) for x in events) == 5000
    assert len([x for x in lines if x[0] != "#"]) <= 1000
