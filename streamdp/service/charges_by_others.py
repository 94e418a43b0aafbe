"""What other streams have charged the records of an input, as their ledgers say.

The budget belongs to the input topic, not to a stream's name (P11). A stream that is renamed has no
state under its new name and would read everything again; the ledger under the old name shows what
that would spend twice. So whoever takes a partition reads every ledger of the application that read
the same input (and, where ledgers share a place such as a file, every ledger there):

1. A stream *begins*, for the first time or with a new epoch, at the earliest record from which on
   the topic's budget covers everything: its own charge, the charges past and future of other
   configured streams, and what former streams have charged.
2. A stream *goes on* only if former streams, and configured ones in an earlier epoch, have charged
   no more than the budget covers beside what it will charge itself: the records ahead of it, and
   those behind it in open blocks or in releases that wait. Otherwise the partition halts; a new
   epoch begins behind the others' charges.

A release that is recorded and not published counts like a charge in the ledger: its publication may
have been cut while readers of uncommitted records saw it (P5). So what a former stream has recorded
is read too, unless its state is gone or may not be read. Of a configured stream that matters only
where an earlier epoch may have charged more.

What is assembled from requests and outcomes has a budget too (`pair_charges_by_others`): the other
assemblies of its requests are to an assembly what other streams are to a stream.

Charges are taken at their highest: of an epoch the highest of each kind, added up. Other
applications charge at least what the configuration says is charged `elsewhere`.

This looks at ledgers as they are now. Two streams that run at the same time, under configurations
that do not name each other, can miss each other: stop the old stream before its successor starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction

from msgspec import UNSET

from streamdp.core.errors import StateMismatch
from streamdp.ports import LastCommit, Published, StreamTopics
from streamdp.wire.entries import Entries, parse_entry
from streamdp.wire.lines import Assembled, Charge
from streamdp.wire.published import decode_any_ledger
from streamdp.wire.recorded import head_of, lines_of
from streamdp.wire.state import decode_checkpoint


class Scope(Enum):
    """Which other ledgers matter to a partition that is taken."""

    ALL = "all"  # when a stream begins
    EARLIER = "earlier"  # when it goes on: former streams, and those that have had an earlier epoch
    LOST = "lost"  # when its state is lost: all, and its own, which says what the input was


@dataclass(frozen=True, slots=True)
class EpochReading:
    """What one epoch of another stream has read and charged of one partition."""

    app: str
    ledger: str
    partition: int
    charge: Fraction  # the highest on any record
    last_offset: int
    first_offset: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """Up to where an assembly may have made events of one partition's requests."""

    app: str
    ledger: str
    requests: str
    outcomes: str
    output: str
    partition: int
    stop: int


@dataclass(frozen=True, slots=True)
class ChargesByOthers:
    """The readings of an input by all streams but one, and what they leave to that one."""

    app: str
    room: Fraction  # the topic's budget without the stream's own charge
    elsewhere: Fraction  # what other applications are said to charge
    configured: Mapping[str, Fraction] = field(default_factory=dict)  # by ledger, from now on
    readings: tuple[EpochReading, ...] = ()
    input_ids: Mapping[int, str] = field(default_factory=dict)  # by partition, from its own ledger

    def begin(self, partition: int, position: int) -> int:
        """The earliest record, at or after a position, from which on everything fits the budget."""
        ends = [reading.last_offset + 1 for reading in self._from(partition, position)]
        starts = [position, *sorted(ends)]
        fitting = (start for start in starts if self.charged(partition, start) <= self.room)
        start = next(fitting, None)
        if start is None:
            raise StateMismatch(
                f"partition {partition}",
                "what is assembled from the same requests or outcomes has been charged so much"
                " that no beginning is within their budget; use topics with other names, or a"
                " larger budget",
                expected=f"others to charge at most {self.room}",
                got=self.charged(partition, starts[-1]),
            )
        return start

    def charged(self, partition: int, start: int, *, last: int | None = None) -> Fraction:
        """The most that others have charged, or will charge, a record from `start` to `last`."""
        own, foreign = dict(self.configured), dict[str, Fraction]()
        for reading in self._from(partition, start, last):
            into = own if reading.app == self.app else foreign
            into[reading.ledger] = max(into.get(reading.ledger, Fraction(0)), reading.charge)
        return sum(own.values(), Fraction(0)) + max(
            self.elsewhere, sum(foreign.values(), Fraction(0))
        )

    def ahead(self, partition: int, position: int, *, last: int | None = None) -> list[str]:
        """The ledgers that have read beyond a position, and not only beyond `last`."""
        return sorted({reading.ledger for reading in self._from(partition, position, last)})

    def _from(self, partition: int, start: int, last: int | None = None) -> list[EpochReading]:
        return [
            reading
            for reading in self.readings
            if reading.partition == partition
            and reading.last_offset >= start
            and (last is None or reading.first_offset <= last)
        ]


ChargesByOthersOf = Callable[[str, Scope], Awaitable[ChargesByOthers]]
"""Answers what others have charged, whenever a partition is taken."""

ALONE = ChargesByOthers("", room=Fraction(0), elsewhere=Fraction(0))
"""The past of an input that no other stream reads or has read."""


async def alone(stream: str, scope: Scope) -> ChargesByOthers:
    """A past without other streams: for tests and the audit's own log."""
    return ALONE


@dataclass(frozen=True, slots=True)
class RecordedLines:
    """The ledger lines in the states of a stream's partitions."""

    lines: list[bytes] = field(repr=False)
    partitions: frozenset[int] | None  # those that have a state; None: all are gone or unreadable


def recorded_lines(commit: LastCommit, stream: str) -> list[bytes]:
    """The ledger lines that a partition's newest commit has recorded, published or not.

    An assembly's state records no line: its ledger says everything before it is done.
    """
    places = Entries(stream, commit.partition)
    where = f"state of {stream}/{commit.partition}"
    lines = list(commit.ledger)
    if places.checkpoint not in commit.state:
        return lines
    decode_checkpoint(commit.state[places.checkpoint], where=where)  # may be a newer version's
    for entry, value in filter(lambda item: places.is_waiting(item[0]), commit.state.items()):
        parse_entry(entry, places, where=where)
        lines.append(lines_of(head_of(entry, value, where=where), value)[0])
    return lines


class Tally:
    """Reads one ledger, and adds up what it has charged on which input."""

    def __init__(self, topics: StreamTopics) -> None:
        self._topics = topics
        self._kinds: defaultdict[tuple[str, int, int], dict[str, Fraction]] = defaultdict(dict)
        self._first: dict[tuple[str, int, int], int] = {}
        self._last: dict[tuple[str, int, int], int] = {}
        self._input_ids: dict[str, dict[int, str]] = {}  # by input and partition: the newest
        self._claims: dict[int, Claim] = {}  # by partition: an assembly keeps its topics
        self._partitions: set[int] = set()  # those that have a line

    def read(self, records: Iterable[Published]) -> None:
        """Read some lines; one that cannot be read is an error, since it may hide a charge."""
        for record in records:
            where = f"{self._topics.ledger} partition {record.partition} offset {record.offset}"
            self._line(record.value, where)

    def read_recorded(self, recorded: RecordedLines) -> bool:
        """Read the newest lines, which the ledger may not have yet; it was read before.

        Returns whether they are all there: a partition that has a ledger has had a state, and
        what an assembly does is in its ledger before it is done.
        """
        had_state = frozenset(self._partitions)
        for line in recorded.lines:
            self._line(line, f"a line recorded for {self._topics.ledger}")
        if self._claims:
            return True
        return recorded.partitions is not None and had_state <= recorded.partitions

    def _line(self, value: bytes, where: str) -> None:
        try:
            line = decode_any_ledger(value)
        except StateMismatch as error:
            raise StateMismatch(f"{where}: {error}") from None
        self._partitions.add(line.partition)
        if isinstance(line, Assembled):
            self._claim(line)
            return
        if line.input_id is not UNSET:
            self._input_ids.setdefault(line.input, {})[line.partition] = line.input_id
        if not isinstance(line, Charge) or line.stop <= line.start:
            return
        epoch = (line.input, line.partition, line.epoch)
        kinds = self._kinds[epoch]
        kinds[line.kind] = max(kinds.get(line.kind, Fraction(0)), line.charge)
        self._first[epoch] = min(self._first.get(epoch, line.first_offset), line.first_offset)
        self._last[epoch] = max(self._last.get(epoch, 0), line.last_offset)

    def _claim(self, line: Assembled) -> None:
        """Note how far an assembly may have made events.

        A new epoch begins at the exact end of the one before, which that one's last line
        overstates.
        """
        self._claims[line.partition] = Claim(
            self._topics.app,
            self._topics.ledger,
            line.input,
            line.outcomes,
            line.output,
            line.partition,
            line.stop,
        )

    @property
    def ledger(self) -> str:
        """The ledger's name."""
        return self._topics.ledger

    def claims(self) -> list[Claim]:
        """How far an assembly may have made events, by partition."""
        return list(self._claims.values())

    def highest(self, topic: str) -> Fraction:
        """The highest charge of this ledger on any record of an input."""
        return max((reading.charge for reading in self.readings(topic)), default=Fraction(0))

    def input_ids(self, topic: str) -> Mapping[int, str]:
        """The topic id of each partition of an input, where lines name it."""
        return self._input_ids.get(topic, {})

    def readings(self, topic: str) -> list[EpochReading]:
        """The readings of one input."""
        return [
            EpochReading(
                app=self._topics.app,
                ledger=self._topics.ledger,
                partition=partition,
                charge=sum(kinds.values(), Fraction(0)),
                last_offset=self._last[read, partition, epoch],
                first_offset=self._first[read, partition, epoch],
            )
            for (read, partition, epoch), kinds in self._kinds.items()
            if read == topic
        ]
