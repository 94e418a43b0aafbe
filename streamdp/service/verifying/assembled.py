"""What ledgers of assemblies prove: which requests became events of which topic, and how often.

1. Within a partition of an assembly, ordinals have no gap, epochs never fall and topics never
   change.
2. No request is assembled twice: a line begins where the requests of the line before it end, or
   later. Only a new epoch may begin earlier, at the exact place that the epoch before had reached,
   since that epoch's last line overstates it; but never before the beginning of that line.
3. A request with its outcomes was charged at most the sum, over every topic that it was assembled
   into, of the highest charge on an event there, once for each assembly, and what was charged for
   the requests themselves (P11). Assemblies that share only outcomes add up at their highest, since
   their offsets cannot be compared.
4. No partition of a topic that is assembled has more events than requests were declared for it:
   each request becomes one event at most, and nobody else writes to that topic. So lines that are
   missing, or that declare less than what became of them, are found by what streams charged.
5. A line names its place and the configured topics. Up to the last line that the state knows, it
   has the state's epoch, digest and cap, and declares no request that the state had not reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from msgspec import UNSET, UnsetType

from streamdp.ports import StreamTopics
from streamdp.service.config.budgets import Way, connected
from streamdp.service.verifying.terms import SavedProgress
from streamdp.wire.lines import Assembled, PersonsCap


@dataclass(frozen=True, slots=True)
class PersonsClaim:
    """What an assembly's cap bounds for one person, by what its events were charged (loop.md).

    A stretch is fixed, so any n consecutive slots, or any 24 hours, lie in at most two of them; an
    epoch starts its stretches anew. All of it is for one key: multiply by the keys that a person
    touches. A day may have any number of slots, so a cap by the day says nothing about slots.
    """

    app: str
    assembly: str
    requests: str
    most: int | None  # None: requests were assembled without a cap, so nothing is bounded
    slots: int | None  # None: a calendar day, or no cap
    epsilon: Fraction  # the highest charge on a request with its outcomes

    @property
    def of_stretch(self) -> Fraction | None:
        """m·ε: what one person costs in one key and stretch."""
        return None if self.most is None else self.most * self.epsilon

    @property
    def of_any(self) -> Fraction | None:
        """2m·ε: what one person costs in any window of the cap's slots or hours."""
        return None if self.most is None else 2 * self.most * self.epsilon


Charged = Callable[[str], Fraction]
"""Returns the most that any record of a topic was charged."""


@dataclass(slots=True)
class _AssemblyPartition:
    """The lines of one partition of an assembly."""

    app: str
    lines: list[Assembled] = field(default_factory=list)


class AssembledRequests:
    """Reads lines of assemblies, then says what requests were charged."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, str, int], _AssemblyPartition] = {}
        self._ways: dict[Way, None] = {}
        self._claimed: dict[tuple[str, str, str, int | None, int | None], None] = {}

    def read(
        self,
        stream: StreamTopics,
        partition: int,
        line: Assembled,
        reached: SavedProgress | None,
    ) -> list[str]:
        """Read the next line of a partition of an assembly; return its faults."""
        app, name = stream.app, stream.stream
        part = self._partitions.setdefault((app, name, partition), _AssemblyPartition(app))
        wrong = [*_of_topics(stream, line, partition)]
        wrong += _follows(part.lines[-1] if part.lines else None, line)
        wrong += () if reached is None else _as_reached(reached, line)
        part.lines.append(line)
        self._ways[Way(line.input, line.outcomes, line.output)] = None
        if line.stop > line.start:
            cap = line.persons if isinstance(line.persons, PersonsCap) else None
            slots = cap.slots if cap and isinstance(cap.slots, int) else None
            self._claimed[app, name, line.input, cap.most if cap else None, slots] = None
        return wrong

    def lines(self, app: str, name: str, partition: int) -> int:
        """The ordinal of the newest line of a partition; 0 if there is none."""
        part = self._partitions.get((app, name, partition))
        return part.lines[-1].ordinal if part else 0

    def declared(self) -> dict[tuple[str, int], int]:
        """How many requests may have become events of which topic and partition."""
        declared: defaultdict[tuple[str, int], int] = defaultdict(int)
        for (_, _, number), part in self._partitions.items():
            for start, stop, _, output in _ranges(part.lines):
                declared[output, number] += stop - start
        return declared

    def all_outputs(self) -> set[str]:
        """Every topic that lines say is assembled."""
        return {output for _, _, output in self._ways}

    def outputs(self, topic: str) -> list[str]:
        """The topics that requests, or outcomes, of a topic were assembled into."""
        return sorted({output for _, _, output in connected(self._ways, topic)})

    def claims(self, highest: Charged) -> list[PersonsClaim]:
        """One claim for each cap that an assembly has had."""
        return [
            PersonsClaim(app, name, requests, most, slots, highest(requests))
            for app, name, requests, most, slots in self._claimed
        ]

    def highest(
        self, topic: str, charged: Charged, directly: Charged, *, without: Collection[str] = ()
    ) -> Fraction:
        """The most that a request of a topic was charged with its outcomes, whichever way it went.

        `charged`: for the events of a topic; `directly`: for the records of an end.
        """
        around = connected(self._ways, topic)
        inputs = {requests for requests, _, _ in around}
        ends = {end for way in around for end in way[:2]}
        of_events = {output: charged(output) for _, _, output in around}
        total = Fraction(0)
        for requests in inputs:
            total += self._through(requests, of_events, without)
        return total + sum(map(directly, ends), Fraction(0))

    def _through(
        self, requests: str, charged: Mapping[str, Fraction], without: Collection[str]
    ) -> Fraction:
        """The most that a request of one topic was charged through its events."""
        steps: defaultdict[int, list[tuple[int, Fraction]]] = defaultdict(list)
        for (_, _, number), part in self._partitions.items():
            if part.app in without:
                continue
            for start, stop, named, output in _ranges(part.lines):
                if named == requests:
                    steps[number] += [(start, charged[output]), (stop, -charged[output])]
        highest = Fraction(0)
        for steps_of_key in steps.values():
            here = Fraction(0)
            for _, change in sorted(steps_of_key):  # at one offset, ends come before beginnings
                here += change
                highest = max(highest, here)
        return highest


def _ranges(lines: list[Assembled]) -> Iterator[tuple[int, int, str, str]]:
    """Which requests of which topic became events of which; a line ends where the next begins."""
    for at, line in enumerate(lines):
        after = lines[at + 1].start if at + 1 < len(lines) else line.stop
        stop = min(line.stop, after)
        if stop > line.start:
            yield line.start, stop, line.input, line.output


def _follows(before: Assembled | None, line: Assembled) -> Iterator[str]:
    """Yield the faults of a line, given the line before it."""
    if line.ordinal != (before.ordinal if before else 0) + 1:
        yield f"line {line.ordinal} where {(before.ordinal if before else 0) + 1} was due"
    if line.stop < line.start:
        yield f"requests [{line.start}, {line.stop})"
    if before is None:
        return
    if line.epoch < before.epoch:
        yield f"epoch falls from {before.epoch} to {line.epoch}"
    least = before.start if line.epoch > before.epoch else before.stop
    if line.start < least:
        yield f"request {line.start} is assembled again, expected {least} or later"
    topics = [(known.input, known.outcomes, known.output) for known in (before, line)]
    if topics[0] != topics[1]:
        yield f"the topics change from {' and '.join(topics[0])} to {' and '.join(topics[1])}"


def _of_topics(stream: StreamTopics, line: Assembled, partition: int) -> Iterator[str]:
    """Check that an assembly's line names its place and its topics, if it is configured."""
    if (line.stream, line.partition) != (stream.stream, partition):
        yield f"it names {line.stream}/{line.partition}, expected {stream.stream}/{partition}"
    for what, topic, expected in (
        ("input", line.input, stream.input),
        ("outcomes", line.outcomes, stream.second_input),
        ("output", line.output, stream.output),
    ):
        if stream.input and topic != expected:
            yield f"its {what} is {topic}, but that of {stream.app}.{stream.stream} is {expected}"


def _as_reached(reached: SavedProgress, line: Assembled) -> Iterator[str]:
    """Compare an assembly's line with the state."""
    late = line.ordinal > reached.recorded
    newest = line.ordinal == reached.recorded and reached.next_offset > 0
    ahead, behind = line.epoch > reached.epoch, line.epoch < reached.epoch
    if (ahead and not late) or (behind and (late or newest)):
        yield f"line {line.ordinal} is of epoch {line.epoch}, but the state of {reached.epoch}"
    if ahead or behind:
        return  # an epoch's last line overstates what was done, so the next may begin earlier
    if line.digest != reached.digest:
        yield f"its digest is {line.digest}, the state's {reached.digest}"
    cap, of_state = _in_words(line.persons), reached.persons.partition(", of ")[0]
    if cap != of_state:
        yield f"its cap on persons is {cap or 'none'}, the state's is {of_state or 'none'}"
    if not late and line.stop > reached.next_offset:
        got = f"record {line.stop - 1} was read"
        yield f"{got}, but the state had reached {reached.next_offset} alone"
    if newest and line.stop < reached.next_offset:
        yield f"requests end at {line.stop}, but the state says at {reached.next_offset}"


def _in_words(cap: PersonsCap | UnsetType) -> str:
    """A cap as an assembly's settings say it."""
    if cap is UNSET:
        return ""
    return f"{cap.most} in a stretch of {'day' if cap.slots is UNSET else f'{cap.slots} slots'}"
