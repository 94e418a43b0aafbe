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

**Requests and outcomes.** A request with its outcomes is charged through each topic that is
assembled from it. Ledgers say who assembled what: an assembly's ledger says which requests became
events of which topic, a stream's ledger what the events of a topic were charged. From them follow:

1. where an assembly may **begin**, and whether it may go on: at the earliest request from which on
   the budget covers what streams charge its events, beside the charges of all others. No other
   assembly may have written to its own output: a request is in a topic at most once, whatever the
   budget.
2. what is **left to a stream** that reads an assembled topic, or the requests: the pair's budget
   less the highest charge of every other way to the same requests. Offsets of different topics
   cannot be compared, so this counts for all records.

The requests of assemblies that share only outcomes cannot be compared by offset either, so what
goes through them counts for every request. So do streams that have read outcomes directly, which no
configuration allows.

Charges are taken at their highest: of an epoch the highest of each kind, added up. Other
applications charge at least what the configuration says is charged `elsewhere`.

This looks at ledgers as they are now. Two streams that run at the same time, under configurations
that do not name each other, can miss each other: stop the old stream before its successor starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction

from msgspec import UNSET

from streamdp.core.errors import StateMismatch
from streamdp.ports import LastCommit, Published, StreamTopics
from streamdp.service.config import Configuration
from streamdp.service.config.budgets import Way, connected, event_charge, way_of
from streamdp.wire.entries import Entries, parse_entry
from streamdp.wire.lines import Assembled, Charge
from streamdp.wire.published import decode_any_ledger
from streamdp.wire.recorded import head_of, lines_of
from streamdp.wire.state import decode_checkpoint

_NONE = Fraction(0)


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
            into[reading.ledger] = max(into.get(reading.ledger, _NONE), reading.charge)
        return sum(own.values(), _NONE) + max(self.elsewhere, sum(foreign.values(), _NONE))

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

ALONE = ChargesByOthers("", room=_NONE, elsewhere=_NONE)
"""The charges on an input that no other stream reads or has read."""


async def alone(stream: str, scope: Scope) -> ChargesByOthers:
    """Answers that there are none: for tests and the audit's own log."""
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
    entries = Entries(stream, commit.partition)
    where = f"state of {stream}/{commit.partition}"
    lines = list(commit.ledger)
    if entries.checkpoint not in commit.state:
        return lines
    decode_checkpoint(commit.state[entries.checkpoint], where=where)  # may be a newer version's
    for place, value in filter(lambda item: entries.is_waiting(item[0]), commit.state.items()):
        parse_entry(place, entries, where=where)
        lines.append(lines_of(head_of(place, value, where=where), value)[0])
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
        kinds[line.kind] = max(kinds.get(line.kind, _NONE), line.charge)
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
        return max((reading.charge for reading in self.readings(topic)), default=_NONE)

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
                charge=sum(kinds.values(), _NONE),
                last_offset=self._last[read, partition, epoch],
                first_offset=self._first[read, partition, epoch],
            )
            for (read, partition, epoch), kinds in self._kinds.items()
            if read == topic
        ]


class ChargesByLedgers:
    """What all others have charged, by the configuration and by ledgers."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._tables = configuration.tables
        self._streams = configuration.streams
        self._claims: list[Claim] = []
        self._tallies: list[Tally] = []

    def add(self, tally: Tally) -> None:
        """Add a ledger that has been read."""
        claims = tally.claims()
        self._claims += claims
        if not claims:
            self._tallies.append(tally)

    def by_others(self, name: str) -> ChargesByOthers:
        """The charges of all others on the input of this stream or assembly."""
        assembles = name in self._tables.assemblies
        return self._of_assembly(name) if assembles else self._of_stream(name)

    # -- for an assembly ---------------------------------------------------------------------------

    def _of_assembly(self, name: str) -> ChargesByOthers:
        """What all others have done with an assembly's requests."""
        own = way_of(self._tables, name)
        topics = self._tables.topics
        budget = min(topics[end].budget for end in own[:2] if end in topics)
        ledger = self._ledger(name)
        return ChargesByOthers(
            app=self._configuration.app,
            room=budget - event_charge(self._tables, self._streams, own.output),
            elsewhere=sum((self._elsewhere(end) for end in own[:2]), _NONE),
            configured=self._configured(name, own),
            readings=tuple(self._readings(own, budget, but=ledger)),
        )

    def _configured(self, name: str, own: Way) -> dict[str, Fraction]:
        """What others will charge each request from now on, by ledger."""
        charges: dict[str, Fraction] = {}
        for other in self._tables.assemblies:
            way = way_of(self._tables, other)
            if other != name and way.requests == own.requests:
                charges[self._ledger(other)] = event_charge(self._tables, self._streams, way.output)
        ways = {way for way in self._ways() if way.requests != own.requests}
        for way in ways.intersection(connected(self._ways(), own.requests)):  # that share outcomes
            charges[f"{way.requests} to {way.output}"] = self._highest(way.output)
        for stream in self._streams.values():
            if stream.table.input == own.requests:
                charges[stream.topics.ledger] = stream.charge
        charges[f"streams of {own.outcomes}"] = self._read_directly(own.outcomes)
        return charges

    def _readings(self, own: Way, budget: Fraction, *, but: str) -> Iterable[EpochReading]:
        """What others have done with requests up to an offset."""
        for claim in self._claims:
            if claim.requests == own.requests and claim.ledger != but:
                again = claim.output == own.output
                charge = budget + 1 if again else self._highest(claim.output)
                app = self._configuration.app if again else claim.app
                yield EpochReading(app, claim.ledger, claim.partition, charge, claim.stop - 1)
        for tally in self._tallies:
            yield from tally.readings(own.requests)

    # -- for a stream ------------------------------------------------------------------------------

    def _of_stream(self, name: str) -> ChargesByOthers:
        """What all others have charged a stream's records."""
        own = self._streams[name]
        ledger, topic = own.topics.ledger, own.table.input
        table = self._tables.topics[topic]
        return ChargesByOthers(
            app=self._configuration.app,
            room=min([table.budget, *self._left_to(topic)]) - own.charge,
            elsewhere=table.elsewhere,
            configured={
                other.topics.ledger: other.charge
                for other in self._streams.values()
                if other.table.input == topic and other is not own
            },
            readings=tuple(
                reading
                for tally in self._tallies
                if tally.ledger != ledger
                for reading in tally.readings(topic)
            ),
            input_ids={
                number: of
                for tally in self._tallies
                if tally.ledger == ledger
                for number, of in tally.input_ids(topic).items()
            },
        )

    def _left_to(self, topic: str) -> Iterator[Fraction]:
        """What the budgets of the pairs that a topic is in leave to all streams of it."""
        for end, table in self._tables.topics.items():
            group = connected(self._ways(), end)
            if any(topic in way for way in group):
                yield table.budget - self._through_others(topic, group)

    def concerns(self, topic: str) -> bool:
        """Whether a topic is requests, outcomes, or assembled from them."""
        return any(topic in way for way in self._ways())

    def _through_others(self, topic: str, group: Sequence[Way]) -> Fraction:
        """The highest charge on a request by every way but one."""
        outputs = {way.output for way in group} - {topic}
        inputs = {end for way in group for end in way[:2]} - {topic}
        charged = sum((self._highest(output) for output in outputs), _NONE)
        return charged + sum(
            (self._read_directly(end) + self._elsewhere(end) for end in inputs), _NONE
        )

    # -- parts -------------------------------------------------------------------------------------

    def _ways(self) -> set[Way]:
        """Configured ways, and those that ledgers name."""
        ways = {Way(claim.requests, claim.outcomes, claim.output) for claim in self._claims}
        return ways | {way_of(self._tables, name) for name in self._tables.assemblies}

    def _ledger(self, name: str) -> str:
        return f"{self._configuration.app}.{name}.ledger"

    def _elsewhere(self, topic: str) -> Fraction:
        return self._tables.topics[topic].elsewhere if topic in self._tables.topics else _NONE

    def _highest(self, topic: str) -> Fraction:
        """The highest charge on any record of a topic so far or from now on, elsewhere included."""
        return self._read_directly(topic) + self._elsewhere(topic)

    def _read_directly(self, topic: str) -> Fraction:
        """The highest charges of the streams whose ledgers are here, added up."""
        readers = (of for of in self._streams.values() if of.table.input == topic)
        charged = {of.topics.ledger: of.charge for of in readers}
        for tally in self._tallies:
            ledger = tally.ledger
            charged[ledger] = max(charged.get(ledger, _NONE), tally.highest(topic))
        return sum(charged.values(), _NONE)
