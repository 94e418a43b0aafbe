"""Judges what an administrator's tools find about a stream or an assembly.

Would its partitions start, and how near is retention to what a rebuild needs? And, NOT PRIVATE:
what is wrong with records, and do the requests and outcomes of a key share a partition?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streamdp.assembly.public import TELLING
from streamdp.core.errors import (
    ConfigurationMismatch,
    InvalidConfig,
    StateMismatch,
    TransportLost,
    counted,
)
from streamdp.core.events import NO_ARM
from streamdp.core.evidence.contexts import OTHER, Contexts
from streamdp.core.kinds.names import MOST_NAME_BYTES
from streamdp.ports import (
    Administrator,
    EntriesThat,
    Finding,
    Key,
    Partition,
    Publications,
    Records,
    StreamTopics,
    Taken,
    Verdict,
)
from streamdp.service.assembling.fingerprints import Inputs
from streamdp.service.carrying import has_its_scale
from streamdp.service.charges_by_others import ChargesByOthers, ChargesByOthersOf
from streamdp.service.spec import StreamSpec
from streamdp.service.taking import (
    Decision,
    carried_entries_at,
    check_configuration,
    epochs_of_no_partition,
    of_configuration,
    open_partition,
    scope,
)
from streamdp.wire.decoded import Decoded
from streamdp.wire.entries import Entries
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import Format
from streamdp.wire.lines import key_bytes
from streamdp.wire.published import decode_in_force
from streamdp.wire.quarantined import read_quarantined
from streamdp.wire.renewals import RenewalSource
from streamdp.wire.unprotected import NOT_PRIVATE

if TYPE_CHECKING:
    from streamdp.service.assembly_spec import AssemblySpec

MOST_TOLD = 20
"""Unusable records that are listed one by one."""

MOST_QUOTED = 60
"""Bytes that are quoted of a quarantined record."""


def are_good(findings: Iterable[Finding]) -> bool:
    """Whether no finding is a problem."""
    return all(finding.verdict is not Verdict.PROBLEM for finding in findings)


def there(streams: Sequence[StreamTopics], findings: Mapping[str, Finding]) -> list[StreamTopics]:
    """The streams whose topics all exist: rights on missing topics cannot be tried."""

    def is_there(topic: str) -> bool:
        finding = findings.get(f"topic {topic}")
        return finding is None or finding.verdict is not Verdict.PROBLEM

    return [
        stream
        for stream in streams
        if all(map(is_there, (stream.input, stream.actions, stream.ledger, stream.state)))
    ]


def retired(ledgers: Sequence[StreamTopics], *, alone: Sequence[str]) -> list[Finding]:
    """A finding that names ledgers of streams that are no longer configured, which still count.

    `alone`: ledgers without their stream's state.
    """
    if not ledgers:
        return []
    names = ", ".join(topics.ledger for topics in ledgers)
    what = f"{names}: their charges still count for the records that they read"
    if alone:
        what += (
            f". The state beside {', '.join(alone)} is gone or may not be read: if the stream has"
            " recorded releases and died before it published them, these do not count"
        )
    return [Finding("ledgers of streams that are no longer configured", Verdict.GOOD, what)]


async def compare(tools: Administrator, specs: Sequence[StreamSpec | AssemblySpec]) -> None:
    """Raise `ConfigurationMismatch` if a partition would halt because of its configuration.

    Also if it has an epoch for a partition that does not exist: the one that was meant would go on
    as it is. Any other fault of a partition must not stop a roll-out, which may be the remedy;
    unless the state cannot even be compared, as one that a newer streamdp has written. A topic that
    does not exist yet contradicts nothing.
    """
    await tools.check([spec.topics for spec in specs])  # raises if it cannot connect
    for spec in specs:
        with suppress(InvalidConfig):  # missing topics or files
            partitions = 0
            async for partition, taken in _peeks(tools, spec.topics, of_configuration):
                check_configuration(spec, partition, taken)
                partitions = taken.partitions
            unused = epochs_of_no_partition(spec, partitions)
            if unused is not None:
                raise ConfigurationMismatch(unused)


async def partitions(
    tools: Administrator, spec: StreamSpec | AssemblySpec, by_others: ChargesByOthersOf
) -> list[Finding]:
    """Check that each partition would start and that the input still has what it needs."""
    partitions, findings = 0, list[Finding]()
    entries = _without_counts if spec.topics.second_input else None
    async for partition, taken in _peeks(tools, spec.topics, entries):
        findings += await _partition(spec, partition, taken, by_others)
        partitions = taken.partitions
    unused = epochs_of_no_partition(spec, partitions)
    if unused is not None:
        findings.append(Finding(f"epochs of {spec.name}", Verdict.PROBLEM, unused))
    return findings


async def _peeks(
    tools: Administrator,
    topics: StreamTopics,
    entries: Callable[[Partition], EntriesThat] | None,
) -> AsyncIterator[tuple[Partition, Taken]]:
    """What is durable of each partition, in order; of its state these entries, or all."""
    number, partitions = 0, 1
    while number < partitions:
        partition = Partition(topics.stream, number)
        some = None if entries is None else entries(partition)
        taken = await tools.peek(topics, number, entries=some)
        yield partition, taken
        number, partitions = number + 1, taken.partitions


def _without_counts(partition: Partition) -> EntriesThat:
    """An assembly's state without the counts of keys: how it goes on follows from the rest."""
    counts = Entries(partition.stream, partition.number).all_of("row")
    return EntriesThat(lambda place: not place.startswith(counts))


async def _partition(
    spec: StreamSpec | AssemblySpec,
    partition: Partition,
    taken: Taken,
    by_others: ChargesByOthersOf,
) -> list[Finding]:
    subject = f"partition {partition}: state"
    stream = spec if isinstance(spec, StreamSpec) else None  # an assembly carries nothing over
    try:
        others = await by_others(spec.name, scope(spec, partition, taken))
        decision = open_partition(spec, partition, taken, by_others=others)
        shared = list[Finding]()
        if not isinstance(spec, StreamSpec):
            Inputs(spec, partition, taken, decision.saved.checkpoint)  # halts if one was cut off
        elif decision.goes_on:
            shared = _foreseen(spec, partition, taken, others)
    except StateMismatch as error:
        return [Finding(subject, Verdict.PROBLEM, str(error))]
    point = decision.saved.checkpoint
    if point is None:
        text = f"none yet: it would start at record {decision.position}"
        return [Finding(subject, Verdict.GOOD, text)]
    if decision.new_epoch is not None:
        text = f"epoch {spec.epoch_of(partition.number)} would begin at record {decision.position}"
        carried = "" if stream is None else _carried(stream, partition, decision)
        return [Finding(subject, Verdict.GOOD, text + carried)]
    text = f"at record {point.next_offset} of {taken.end_offset}"
    remedy = "raise retention now, also of outcomes"
    if stream is not None:
        remedy = "raise retention now"
        text = f"commit {point.commit_seq}, {counted(point.rows, 'learner')}, {text}"
        if decision.saved.older and (
            carry := len(carried_entries_at(stream, partition, decision).carried)
        ):
            text += f"; {counted(carry, 'key')} of earlier epochs will open with the next record"
            text += " of each, and carry over"
    headroom = point.low_water - taken.first_offset
    kept = f"a rebuild reads from {point.low_water}, input is retained from {taken.first_offset}"
    near = taken.first_offset > 0 and headroom < (taken.end_offset - point.low_water) // 10 + 1
    return [
        Finding(subject, Verdict.GOOD, text),
        Finding(
            f"partition {partition}: retention",
            Verdict.WARNING if near else Verdict.GOOD,
            f"{kept}: {remedy}" if near else kept,
        ),
        *shared,
    ]


def _carried(spec: StreamSpec, partition: Partition, decision: Decision) -> str:
    """How many keys would carry something over into an epoch that begins."""
    entries, saved = carried_entries_at(spec, partition, decision), decision.saved
    epochs = [saved.now, *saved.older.values()]
    keys = {key for e in epochs for key in (*e.rows, *(name.key for name in e.releases))}
    if not decision.carries:
        disagree = "the state is damaged or another version's, or its ledger ends with another line"
        before = saved.now.learner
        why = disagree if spec.carry else "carry = false"
        if spec.carry and before is not None and not has_its_scale(spec.settings, before):
            why = "another most, and what was clipped cannot be scaled"
        return f", where {counted(len(keys), 'key')} will open like new: {why}"
    text = f", with what is public of {len(entries.carried)} of {counted(len(keys), 'key')}"
    if len(entries.carried) < len(keys):
        text += "; the others open like new ones (their actions are gone)"
    return text


def _foreseen(
    spec: StreamSpec, partition: Partition, taken: Taken, by_others: ChargesByOthers
) -> list[Finding]:
    """Warn of open blocks whose records former streams may have charged."""
    if not by_others.ahead(partition.number, 0):
        return []
    from streamdp.service.protocol import Restoring  # loads the engine, so import it here

    ledgers = Restoring(spec, partition, taken, by_others=by_others).foresee()
    if not ledgers:
        return []
    text = (
        f"{', '.join(ledgers)} may have charged records of blocks that are open here; only the"
        " rebuild can tell. If so, the partition halts, and a new epoch begins behind them"
    )
    return [Finding(f"partition {partition}: open blocks", Verdict.WARNING, text)]


async def in_several_partitions(
    publications: Publications, stream: StreamTopics, *, epoch: int
) -> Finding:
    """Find keys in several partitions, which have a learner in each: do producers disagree?"""
    homes: dict[Key, set[int]] = {}
    async for batch in publications.actions(stream, follow=False):
        for line in map(decode_in_force, (record.value for record in batch)):
            if line.epoch == epoch:
                homes.setdefault(key_bytes(line), set()).add(line.partition)
    return _apart(
        f"keys of {stream.stream}",
        homes,
        Verdict.WARNING,
        "readers take the one with the most slots; do all producers use one partitioner? (adding"
        " partitions moves keys too)",
    )


async def requests_apart(tools: Administrator, topics: StreamTopics, *, count: int) -> Finding:
    """Check that the newest requests and outcomes of a key share a partition. NOT PRIVATE."""
    homes: dict[Key, set[int]] = {}
    for end in (topics.input, topics.second_input):
        single = replace(topics, input=end, second_input="", output="")
        for batch in await tools.newest(single, count=count):
            for key in batch.keys:
                homes.setdefault(key, set()).add(batch.partition.number)
    return _apart(
        f"{NOT_PRIVATE}: keys of {topics.input} and {topics.second_input}",
        homes,
        Verdict.PROBLEM,
        "an outcome in another partition finds no request. All producers, of both topics, must use"
        " one partitioner",
    )


def _apart(subject: str, homes: Mapping[Key, set[int]], verdict: Verdict, so: str) -> Finding:
    """Whether a key is in several partitions, and what follows from that."""
    several = {key: numbers for key, numbers in homes.items() if len(numbers) > 1}
    if not several:
        return Finding(subject, Verdict.GOOD, f"{len(homes)}, each in one partition")
    key, numbers = min(several.items(), key=lambda item: item[0] or b"")
    text = (
        f"{len(several)} of {len(homes)} in several partitions, such as {key!r} in"
        f" {', '.join(map(str, sorted(numbers)))}: {so}"
    )
    return Finding(subject, verdict, text)


async def telling(
    tools: Administrator, topics: StreamTopics, *, count: int, room: int = 0
) -> Finding:
    """Check that the newest private requests say nothing outside their contents.

    Headers and lengths are public, so this finding is, too. In a stream with room one length must
    hold the longest name that may come.
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
    elif room and lengths and min(lengths) < _LEAST_ROOM:
        text = (
            f"{min(lengths)} bytes cannot hold the name of an action that may come: fill all"
            f" requests up for one of {MOST_NAME_BYTES} bytes, before it names itself by its length"
        )
    else:
        return Finding(subject, Verdict.GOOD, "one length, and no header that tells")
    return Finding(subject, Verdict.PROBLEM, text)


_LEAST_ROOM = len('{"action":""}') + MOST_NAME_BYTES  # bytes, and as many more as the context takes
_REMEDY = "they are public for good. Write such requests by `Loop`, `rank` or `send --assembly`"


async def records(
    tools: Administrator,
    stream: StreamTopics,
    *,
    format_: Format,
    count: int,
) -> list[Finding]:
    """The faults of about `count` of the newest records. NOT PRIVATE."""
    looked, unusable, findings = 0, 0, []
    nameless, slots, feedback = 0, 0, format_.feedback
    others: Counter[str] = Counter()
    for batch in await tools.newest(stream, count=count):
        for offset, fault in _unusable(batch, format_):
            unusable += 1
            if unusable <= MOST_TOLD:
                subject = f"{NOT_PRIVATE}: {stream.input} {batch.partition.number}@{offset}"
                findings.append(Finding(subject, Verdict.WARNING, fault))
        looked += len(batch)
        if feedback is not None:
            read = format_.decode(batch.values, batch.headers)
            nameless += _nameless(read)
            slots += _count_others(read, feedback, others)
    if feedback is not None:
        findings.append(_named(stream, format_, feedback, looked=looked, nameless=nameless))
        if feedback.contexts is not None:
            findings.append(_listed(stream, feedback.contexts, others, slots))
    verdict = Verdict.GOOD if not unusable else Verdict.PROBLEM
    subject = f"{NOT_PRIVATE}: {stream.input}, format of {stream.stream}"
    return [
        *findings,
        Finding(subject, verdict, f"{unusable} of {counted(looked, 'record')} unusable"),
    ]


async def schemas(source: RenewalSource | None) -> list[Finding]:
    """Whether a stream's registry answers, and which of its schemas can be read. Public."""
    if source is None:
        return []
    subject = f"schemas of {source.subject}"
    try:
        await source.fetch()
    except TransportLost as error:
        return [Finding(subject, Verdict.PROBLEM, str(error))]
    faults = source.faults()
    if not faults:
        return [Finding(subject, Verdict.PROBLEM, "the registry has none under this subject")]
    findings = [
        Finding(f"{subject}: id {number}", Verdict.WARNING, f"its records are not used: {fault}")
        for number, fault in faults.items()
        if fault is not None
    ]
    good = ", ".join(str(number) for number, fault in faults.items() if fault is None)
    verdict = Verdict.GOOD if good else Verdict.PROBLEM
    return [*findings, Finding(subject, verdict, f"ids {good}" if good else "none can be read")]


def _nameless(read: Decoded) -> int:
    """Count records with a slot that names no action."""
    owner = np.repeat(np.arange(len(read.slots)), read.slots)
    return len(np.unique(owner[read.content["played"] == NO_ARM]))


def _count_others(read: Decoded, feedback: Feedback, others: Counter[str]) -> int:
    """Count slots of each field whose level is none of those listed; return the slots."""
    contexts, played = feedback.contexts, read.content["played"]
    if contexts is None:
        return 0
    named = played[played != NO_ARM]
    for cell, times in Counter(feedback.cells(named).tolist()).items():
        levels = contexts.levels(cell)
        others.update({name: times for name, level in levels.items() if level == OTHER})
    return len(named)


def _listed(stream: StreamTopics, contexts: Contexts, others: Counter[str], slots: int) -> Finding:
    """Whether contexts name levels that are listed."""
    of = ", ".join(f"{field.name} {others[field.name]}" for field in contexts.fields)
    text = f"of {slots} slots with a known action, a level that is not listed or missing: {of}"
    verdict = Verdict.WARNING if others else Verdict.GOOD
    return Finding(f"{NOT_PRIVATE}: {stream.input}, contexts of {stream.stream}", verdict, text)


def _named(
    stream: StreamTopics, format_: Format, feedback: Feedback, *, looked: int, nameless: int
) -> Finding:
    """Whether records name the actions that were shown; without that nothing is learned."""
    header = f"header {feedback.header}{'s' if format_.frames else ''}"
    where = header if feedback.played == "header" else "member action"
    text = f"{nameless} of {looked} records name no action of the stream in the {where}"
    verdict = Verdict.GOOD if not nameless else Verdict.PROBLEM
    return Finding(
        f"{NOT_PRIVATE}: {stream.input}, shown actions of {stream.stream}", verdict, text
    )


def _unusable(batch: Records, format_: Format) -> list[tuple[int, str]]:
    """Each unusable record's offset, and why."""
    reasons = [
        (at, format_.explain(value)) for at, value in zip(batch.offsets, batch.values, strict=True)
    ]
    return [(at, why) for at, why in reasons if why is not None]


async def quarantined(tools: Administrator, stream: StreamTopics, *, count: int) -> list[Finding]:
    """About the `count` newest quarantined records. NOT PRIVATE."""
    subject = f"{NOT_PRIVATE}: quarantine of {stream.stream}"
    if not stream.quarantined:
        text = f"off: streams.{stream.stream}.quarantine = true sets unusable records aside"
        return [Finding(subject, Verdict.GOOD, text)]
    aside = await tools.newest(replace(stream, input=stream.quarantine), count=count)
    entries = sorted(entry for batch in aside for entry in _entries(batch))[-count:]
    findings = [
        Finding(f"{NOT_PRIVATE}: {stream.input} {number}@{offset}", Verdict.WARNING, text)
        for number, offset, text in entries
    ]
    return [*findings, Finding(subject, Verdict.GOOD, f"{counted(len(entries), 'record')} shown")]


def _entries(batch: Records) -> Iterator[tuple[int, int, str]]:
    """The position of each quarantined record, and its fault."""
    for key, value in zip(batch.keys, batch.values, strict=True):
        entry = read_quarantined(value)
        quoted = None if entry.value is None else entry.value[:MOST_QUOTED]
        text = f"{entry.reason}; key {key!r}, {entry.length or 0} bytes: {quoted!r}"
        yield entry.partition, entry.offset, text
