"""A partition of an assembly at work: requests are delivered, rounds make events of them.

A round, in this order:

1. It is decided how many of the oldest requests may leave: by the clock and by requests alone.
2. If there are any that no ledger line has told of, one commit tells of all requests that were read
   by now, and nothing else. So the ledger knows of every event before it is there (`saved`).
3. The outcomes are read up to where none can count for these requests any more.
4. They become events, and one commit makes events, both positions and counts durable together.

A request that nobody could write again as it is takes its slot all the same, by a rule that looks
at its public side alone: a key longer than any stream's `most_key_bytes` is cut to one byte beyond
that (it has no learner either way), and headers that make an event larger than the output takes are
left out (it names no action then).

So what an outcome says decides neither when a round comes nor how many events are in it. When it is
not known how a round ended, this object must be dropped and the partition taken again.

How far the outcomes reach is for operators: no message of here has an offset of theirs, and how
long a commit takes is measured without the time in which outcomes are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import UNSET

from streamdp import __version__
from streamdp.assembly.join import Event, Join, Positions
from streamdp.assembly.persons import Cap, Persons
from streamdp.core.errors import StateMismatch, TransportLost, complaint
from streamdp.ports import (
    Commit,
    Key,
    PairedTransport,
    Partition,
    Records,
    Taken,
    Value,
    Written,
)
from streamdp.service.assembling.saved import POINT, Opened, encode_point, entry_of, open_assembly
from streamdp.service.assembling.spec import AssemblySpec
from streamdp.service.past import ALONE, Past
from streamdp.service.protocol import check_goes_on
from streamdp.wire.lines import LEDGER_SCHEMA, Assembled, PersonsCap
from streamdp.wire.published import encode_assembled

Observe = Callable[[str, float], None]
"""Told how long a public step took."""

LONGEST_KEY = 65_536  # bytes: the most that `limits.most_key_bytes` may be
_HEADER_ROOM = 16  # bytes of a header beside its name and value, at most
_MOST_GONE = 20_000  # entries that one commit takes away at most


def unobserved(step: str, seconds: float) -> None:
    """Nobody asked."""


class PartitionAssembly:
    """One partition that was taken."""

    def __init__(
        self,
        spec: AssemblySpec,
        partition: Partition,
        taken: Taken,
        transport: PairedTransport,
        *,
        past: Past = ALONE,
        observe: Observe = unobserved,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.partition = partition
        self._spec, self._taken, self._transport = spec, taken, transport
        self._observe, self._clock = observe, clock
        self._opened: Opened = open_assembly(spec, partition, taken, past=past)
        self._persons = Persons(spec.cap, self._opened.counts) if spec.cap else None
        self._join = Join(
            spec.rules,
            spec.recipe,
            spec.encode,
            positions=self._opened.positions,
            persons=self._persons,
        )
        self._stale = list(self._opened.stale)
        self._begins = self._opened.begins
        self._lines, self._declared = self._opened.lines, self._opened.declared
        self.committed = self._opened.positions.requests
        self.history = self._opened.positions.history
        self.events = 0  # that have left since it was taken

    @property
    def position(self) -> int:
        """The next request to be delivered: resume here after `bring_back`."""
        return self._join.request_at

    @property
    def open(self) -> int:
        """Requests that wait for their deadline."""
        return self._join.open

    @property
    def full(self) -> bool:
        """Whether no more requests should be delivered before some have left."""
        return self._join.open >= self._spec.most_open

    def next_due(self) -> int | None:
        """The moment from which a round has something to do by the clock."""
        return self._join.next_due()

    async def bring_back(self) -> None:
        """Read again the requests that have left and still decide who repeats whom."""
        positions = self._opened.positions
        reading = self._transport.read(self.partition, positions.history, positions.requests)
        async for records in reading:
            self.absorb(records)
        self._join.skip_requests(positions.requests)

    def absorb(self, records: Records) -> None:
        """Requests, where those before ended."""
        check_goes_on(records, position=self._join.request_at)
        _check_columns(records)
        columns = (records.keys, records.headers, records.values)
        for offset, timestamp, key, headers, value in zip(
            records.offsets, records.timestamps, *columns, strict=True
        ):
            self._join.request(offset, timestamp, _cut(key), headers, value)
        self._join.skip_requests(records.next_offset)

    async def round(self, now: int) -> int:
        """Let leave what may at this moment (milliseconds); how many events left."""
        count = self._join.due(now, most=self._spec.most_at_once)
        if count == 0 and not self._begins and not self._stale:
            return 0
        if self._begins or (count and self._join.last_of(count) >= self._declared):
            await self._declare()
        if count:
            await self._read_outcomes(self._join.until(count))
        room = self._transport.largest_value(self._spec.name)
        events = [_fitted(event, room) for event in self._join.emit(count)]
        await self._commit(events)
        return count

    async def _declare(self) -> None:
        """Say up to where requests may become events, before the first of them does."""
        start = max(self._join.positions.requests, self._declared)
        stop, cap = self._join.request_at, self._spec.cap
        line = Assembled(
            schema=LEDGER_SCHEMA,
            stream=self._spec.name,
            partition=self.partition.number,
            epoch=self._spec.epoch,
            input=self._spec.topics.input,
            outcomes=self._spec.topics.beside,
            output=self._spec.topics.output,
            start=start,
            stop=stop,
            ordinal=self._lines + 1,
            persons=_persons_cap(cap) if cap else UNSET,
            digest=self._spec.digest,
            version=__version__,
        )
        self._lines, self._declared = line.ordinal, stop
        await self._commit([], ledger=[(None, encode_assembled(line))])

    async def _commit(
        self, events: Sequence[Written], *, ledger: Sequence[tuple[Key, bytes]] = ()
    ) -> None:
        positions = self._join.positions
        counts = self._persons.save() if self._persons is not None else {}
        gone, self._stale = self._stale[:_MOST_GONE], self._stale[_MOST_GONE:]
        saved = {entry_of(key, epoch=self._spec.epoch): value for key, value in counts.items()}
        state: list[tuple[bytes, Value]] = [
            *((place, None) for place in gone),
            *saved.items(),
            (POINT, self._point(positions)),
        ]
        begun = self._clock()
        await self._transport.commit(
            self.partition,
            Commit(
                next_offset=positions.requests,
                state=state,
                ledger=ledger,
                low_water=positions.history,
                beside=positions.outcomes,
                records=events,
            ),
        )
        self._observe("commit", self._clock() - begun)
        self._begins, self.committed = False, positions.requests
        self.history, self.events = positions.history, self.events + len(events)

    def _point(self, positions: Positions) -> bytes:
        return encode_point(
            self._spec, self._taken, positions, lines=self._lines, declared=self._declared
        )

    async def _read_outcomes(self, until: int) -> None:
        """All that are older than a moment."""
        start = self._join.outcome_at
        stop = await self._transport.stop_beside(self.partition, start, timestamp=until)
        try:
            await self._read_up_to(start, stop)
        except StateMismatch:
            raise self._outcomes_lack("what open requests need is no longer retained") from None
        if self._join.outcome_at != stop:
            raise TransportLost(str(self._outcomes_lack("reading ended before its end")))

    def _outcomes_lack(self, what: str) -> StateMismatch:
        return StateMismatch(
            complaint(
                f"partition {self.partition}: outcomes",
                what,
                expected="every outcome that open requests wait for",
                got="fewer",
            )
        )

    async def _read_up_to(self, start: int, stop: int) -> None:
        async for records in self._transport.read_beside(self.partition, start, stop):
            if records.start != self._join.outcome_at:
                raise TransportLost(str(self._outcomes_lack("a batch leaves some out")))
            _check_columns(records)
            self._join.outcomes(
                records.timestamps,
                records.keys,
                records.headers,
                records.values,
                next_offset=records.next_offset,
            )


def _persons_cap(cap: Cap) -> PersonsCap:
    """A cap as the ledger tells it."""
    if cap.slots is None:
        return PersonsCap(most=cap.most, per="day")
    return PersonsCap(most=cap.most, slots=cap.slots)


def _cut(key: Key) -> Key:
    """A key that is too long to have a learner, still too long for that."""
    return key if key is None else key[: LONGEST_KEY + 1]


def _fitted(event: Event, room: int) -> Event:
    """An event that the output takes: without its headers, if they are too large."""
    key, value, headers = event
    size = len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name.encode()) + len(content or b"") + _HEADER_ROOM
    return event if size <= room else (key, value, [])


def _check_columns(records: Records) -> None:
    """Headers and timestamps come with every record, or nothing of this is right."""
    columns = {len(records.headers), len(records.timestamps)}
    if columns != {len(records)}:
        raise StateMismatch(
            complaint(
                f"partition {records.partition}",
                "records came without their headers or timestamps",
                expected=f"{len(records)} of each",
                got=f"{len(records.headers)} and {len(records.timestamps)}",
            )
        )
