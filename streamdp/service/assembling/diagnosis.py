"""What an administrator's tools find about an assembly, judged: would its partitions start?

How far outcomes reach and which keys they have is for operators only. A finding that says so is
marked NOT PRIVATE; all others say only whether all is well.
"""

from __future__ import annotations

from dataclasses import replace

from streamdp.assembly.public import TELLING
from streamdp.core.errors import StreamdpError
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
from streamdp.service.assembling.spec import AssemblySpec
from streamdp.service.charges_by_others import ChargesByOthers, ChargesByOthersOf
from streamdp.service.diagnosis import retention
from streamdp.service.taking import open_partition, scope
from streamdp.wire.entries import Entries
from streamdp.wire.unprotected import NOT_PRIVATE


async def partitions(
    tools: Administrator, spec: AssemblySpec, by_others: ChargesByOthersOf
) -> list[Finding]:
    """Check that each partition would start and that the input still has what it needs."""
    number, partitions, findings = 0, 1, list[Finding]()
    while number < partitions:
        partition = Partition(spec.name, number)
        taken = await tools.peek(spec.topics, number, entries=_without_counts(partition))
        others = await by_others(spec.name, scope(spec, partition, taken))
        findings += _partition(spec, partition, taken, others)
        number, partitions = number + 1, taken.partitions
    return findings


def _without_counts(partition: Partition) -> EntriesThat:
    """The state without the counts of keys: how the partition goes on follows from the rest."""
    counts = Entries(partition.stream, partition.number).all_of("row")
    return EntriesThat(lambda place: not place.startswith(counts))


def _partition(
    spec: AssemblySpec, partition: Partition, taken: Taken, by_others: ChargesByOthers
) -> list[Finding]:
    subject = f"partition {partition}: state"
    try:
        opening = open_partition(spec, partition, taken, by_others=by_others)
    except StreamdpError as error:
        return [Finding(subject, Verdict.PROBLEM, str(error))]
    if not opening.goes_on:
        text = f"it would begin epoch {spec.epoch} at request {opening.position}"
        return [Finding(subject, Verdict.GOOD, text)]
    needed = opening.point.low_water
    text = f"at request {opening.position} of {taken.end_offset}"
    kept = retention(  # by requests: how long outcomes are kept may depend on what they contain
        partition,
        taken,
        needed=needed,
        text=f"a start reads from request {needed} on, they are retained from"
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
