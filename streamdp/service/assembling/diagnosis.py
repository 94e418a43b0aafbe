"""What an administrator's tools find about an assembly, judged: would its partitions start?

How far outcomes reach and which keys they have is for operators only. A finding that says so is
marked NOT PRIVATE; all others say only whether all is well.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from streamdp.assembly.public import TELLING
from streamdp.core.errors import ConfigurationMismatch, InvalidConfig, StreamdpError
from streamdp.ports import (
    Administrator,
    EntriesThat,
    Finding,
    Key,
    Partition,
    StreamTopics,
    Taken,
    Verdict,
)
from streamdp.service.assembling.saved import COUNTS, open_assembly
from streamdp.service.assembling.spec import AssemblySpec
from streamdp.service.charges_by_others import ALONE, ChargesByOthers, ChargesByOthersOf, Scope
from streamdp.service.diagnosis import retention
from streamdp.wire.unprotected import NOT_PRIVATE


async def compare_assemblies(tools: Administrator, specs: Sequence[AssemblySpec]) -> None:
    """Raise `ConfigurationMismatch` if a partition would halt for its configuration."""
    for spec in specs:
        with suppress(InvalidConfig):  # a topic that does not exist contradicts nothing
            for number, taken in enumerate(await _peeked(tools, spec)):
                _compare(spec, Partition(spec.name, number), taken)


def _compare(spec: AssemblySpec, partition: Partition, taken: Taken) -> None:
    try:
        open_assembly(spec, partition, taken, by_others=ALONE)
    except ConfigurationMismatch:
        raise
    except StreamdpError:
        return  # the roll-out may be what mends any other fault


async def partitions(
    tools: Administrator, spec: AssemblySpec, by_others: ChargesByOthersOf
) -> list[Finding]:
    """Check that each partition would start and that the input still has what it needs."""
    others = await by_others(spec.name, Scope.ALL)
    return [
        finding
        for number, taken in enumerate(await _peeked(tools, spec))
        for finding in _partition(spec, Partition(spec.name, number), taken, others)
    ]


async def _peeked(tools: Administrator, spec: AssemblySpec) -> list[Taken]:
    """Each partition, without the counts of its keys: how it goes on follows from the rest."""
    number, partitions, peeked = 0, 1, list[Taken]()
    while number < partitions:
        entries = EntriesThat(lambda place: not place.startswith(COUNTS))
        peeked.append(await tools.peek(spec.topics, number, entries=entries))
        number, partitions = number + 1, peeked[-1].partitions
    return peeked


def _partition(
    spec: AssemblySpec, partition: Partition, taken: Taken, by_others: ChargesByOthers
) -> list[Finding]:
    subject = f"partition {partition}: state"
    try:
        opened = open_assembly(spec, partition, taken, by_others=by_others)
    except StreamdpError as error:
        return [Finding(subject, Verdict.PROBLEM, str(error))]
    positions = opened.positions
    if opened.begins:
        text = f"it would begin epoch {spec.epoch} at request {positions.requests}"
        return [Finding(subject, Verdict.GOOD, text)]
    text = f"at request {positions.requests} of {taken.end_offset}"
    kept = retention(  # by requests: how long outcomes are kept may depend on what they contain
        partition,
        taken,
        needed=positions.history,
        text=f"a start reads from request {positions.history} on, they are retained from"
        f" {taken.first_offset} on",
        remedy="raise the retention of requests, and of outcomes, now",
    )
    return [Finding(subject, Verdict.GOOD, text), kept]


async def keys(tools: Administrator, topics: StreamTopics, *, count: int) -> Finding:
    """Check that the newest requests and outcomes of a key share a partition. NOT PRIVATE."""
    subject = f"{NOT_PRIVATE}: keys of {topics.input} and {topics.second_input}"
    homes: dict[Key, set[int]] = {}
    for end in (topics.input, topics.second_input):
        single = replace(topics, input=end, second_input="", output="")
        for batch in await tools.newest(single, count=count):
            for key in batch.keys:
                homes.setdefault(key, set()).add(batch.partition.number)
    several = {key: sorted(partitions) for key, partitions in homes.items() if len(partitions) > 1}
    if not several:
        return Finding(subject, Verdict.GOOD, f"{len(homes)}, each in one partition")
    key, partitions = min(several.items(), key=lambda item: item[0] or b"")
    text = (
        f"{len(several)} of {len(homes)} in several partitions, such as {key!r} in"
        f" {', '.join(map(str, partitions))}: an outcome in another partition finds no request. All"
        " producers, of both topics, must use one partitioner"
    )
    return Finding(subject, Verdict.PROBLEM, text)


async def telling(tools: Administrator, topics: StreamTopics, *, count: int) -> Finding:
    """Check that the newest private requests say nothing outside their contents.

    Headers and lengths are public, so this finding is, too.
    """
    subject = f"private requests in {topics.input}"
    headers, lengths = set[str](), set[int]()
    single = replace(topics, second_input="", output="")
    for batch in await tools.newest(single, count=count):
        headers |= TELLING.intersection(name for pairs in batch.headers for name, _ in pairs)
        lengths |= {len(value or b"") for value in batch.values}
    if headers:
        text = f"headers {', '.join(sorted(headers))} say what was shown, or to whom: {_REMEDY}"
    elif len(lengths) > 1:
        text = f"lengths from {min(lengths)} to {max(lengths)} bytes name levels: {_REMEDY}"
    else:
        return Finding(subject, Verdict.GOOD, "one length, and no header that tells")
    return Finding(subject, Verdict.PROBLEM, text)


_REMEDY = "they are public for good. Write such requests by `Loop`, `rank` or `send --assembly`"
