"""An assembly of visits, and a partition of it that is taken."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from streamdp.assembly.persons import Cap
from streamdp.assembly.recipes import Rewards
from streamdp.assembly.rules import Combine, Rules
from streamdp.core.errors import (
    TransportLost,
)
from streamdp.ports import (
    PairedTransport,
    Partition,
    Reach,
    Reached,
    StreamTopics,
    Taken,
    Technology,
    no_fault,
)
from streamdp.service.assembling.partition import PartitionAssembly
from streamdp.service.assembly_spec import AssemblySpec
from streamdp.service.settings import Start
from streamdp.testing.faults import Dice
from streamdp.testing.memory import MemoryTechnology, MemoryTransport
from streamdp.testing.memory_log import MemoryLog
from streamdp.testing.transport_room import Heard
from streamdp.wire.entries import Entries
from streamdp.wire.state import Checkpoint, Joined, encode_checkpoint
from tests.support.assembly_model import (
    GRACE,
    SECRET,
    WINDOW,
    Logs,
    encode,
)

TOPICS = StreamTopics(
    "shop", "clicks", "requests", headers=True, second_input="outcomes", output="events"
)

AT = Partition("clicks", 0)

RULES = Rules(window=WINDOW, grace=GRACE, combine=Combine.SUM, default=0.75)

SPEC = AssemblySpec(
    topics=TOPICS, rules=RULES, recipe=Rewards(), encode=encode, start=Start.EARLIEST,
    actions=("a", "b"), most_at_once=5,
)  # fmt: skip

CAP = Cap(2, 5, SECRET)

NOWHERE = MemoryTransport(MemoryLog(), worker="nowhere")


async def taken_over(
    technology: Technology, spec: AssemblySpec
) -> tuple[PartitionAssembly, PairedTransport]:
    """A worker that has taken the partition and brought it back."""
    transport = technology.transport(worker="test")
    assert isinstance(transport, PairedTransport)
    await transport.join([spec.topics], Heard())
    taken = await transport.take(AT)
    work = PartitionAssembly(spec, AT, taken, transport)
    await work.bring_back()
    transport.resume(AT, work.position)
    return work, transport


async def go_on(work: PartitionAssembly, transport: PairedTransport, now: int) -> None:
    """Read what has come, and let leave what may."""
    for records in await transport.poll(max_records=4, timeout=0):
        work.absorb([records])
    await work.round(now)


async def lived_through(
    logs: Logs, spec: AssemblySpec, *, seed: int, chance: Fraction
) -> MemoryLog:
    """Records come as time goes on, while workers are lost at any step and others take over."""
    log = MemoryLog(gap=1)
    for topic in (TOPICS.input, TOPICS.second_input, TOPICS.output):
        log.create(topic, partitions=1)
    reached: Reached = Dice(seed=seed, chance=chance) if chance else no_fault
    technology = MemoryTechnology(log, reached=reached)
    coming = {TOPICS.input: list(logs.requests), TOPICS.second_input: list(logs.outcomes)}
    end = max(record[0] for records in coming.values() for record in records)
    worker = None
    for now in range(0, end + 4 * WINDOW, 20):
        for topic, records in coming.items():
            while records and records[0][0] <= now:
                log.now, key, headers, value = records.pop(0)
                log.append(topic, [(key, value)], headers=[headers], partition=0)
        try:
            worker = worker or await taken_over(technology, spec)
            await go_on(*worker, now)
        except TransportLost:
            worker = None
    return log


def saved_point(
    spec: AssemblySpec = SPEC,
    *,
    at: tuple[int, int, int] = (7, 5, 3),
    lines: int = 0,
    declared: int = 0,
    taken: Taken | None = None,
    partition: int = 0,
) -> dict[bytes, bytes]:
    """A state with nothing but a checkpoint; `at`: requests, those read again, outcomes."""
    taken = taken or TAKEN
    requests, history, outcomes = at
    joined = Joined(
        declared=declared,
        outcomes=f"{outcomes:020d}",
        outcomes_id=taken.second_input.id,
        settings=spec.settings,
    )
    point = Checkpoint(
        next_offset=requests, low_water=history, rows=0, commit_seq=1, lines_recorded=lines,
        lines_published=lines, epoch=spec.epoch, digest=spec.digest, partitions=taken.partitions,
        began_with=taken.partitions, input_id=taken.input_id, joined=joined,
    )  # fmt: skip
    return {Entries(spec.name, partition).checkpoint: encode_checkpoint(point)}


TAKEN = Taken(
    state={}, first_offset=2, end_offset=9, group_offset=7, last_ledger_line=None, partitions=2,
    input_id="requests 1", second_input=Reach(1, 8, group=3, id="outcomes 1"),
)  # fmt: skip


def second_reaches(taken: Taken, **change: Any) -> Taken:
    """The same, but for how far the second input reaches."""
    return replace(taken, second_input=replace(taken.second_input, **change))
