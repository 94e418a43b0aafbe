"""A partition of an assembly at work: requests are delivered, rounds turn them into events.

The steps of a round:

1. Decide how many of the oldest requests may leave: by the clock and by requests alone.
2. If the newest ledger line does not cover them, commit a line that covers all requests read by
   now, and nothing else. So the ledger knows of every event before the event exists, and an
   assembly with another name, which knows nothing of this state, can begin behind them.
3. Read the outcomes up to where none can count for these requests any more.
4. Make events of the requests; one commit makes events, both positions and counts durable together.

**Quiet times.** While nothing is open and no request comes, the positions move on by the clock, at
most once in a window and a minute: logs expire also where nobody writes, and the last requests
would be demanded again at the next start. It is asked first whether the requests really end where
they were read. A record may be in its log for a while before anybody can see it (`_UNSEEN_MS`), so
what counts is where the requests ended so long ago. When such a commit comes and what it says of
requests does not depend on outcomes, and it comes whether or not there are new ones.

A request that cannot be written as it is still takes its slot, by a rule that looks at its public
side alone. A key longer than any stream's `most_key_bytes` is cut to one byte beyond that limit (it
has no learner either way). Headers that make an event too large for the output are left out (the
event names no action then).

So an outcome's content decides neither when a round comes nor how many events it has. When the
result of a round is unknown, drop this object and take the partition again.

**The state** holds a checkpoint (positions, digest, topics' ids, the newest records read), under a
cap each key's counts as its row, and what contents are read by. It holds no open request and no
outcome: these are read again from the logs. A consumer group could remember two positions without a
state topic, but group offsets expire and any tool may reset them, and a request that is emitted
again would be charged again (P11). Its size is a function of requests alone: what depends on
outcomes has a fixed width. `taking` has how a partition goes on from it.

How far the outcomes reach is for operators: no message here contains an offset of outcomes, and the
measured time of a commit leaves out the reading of outcomes.

**Contents** of requests or outcomes are read by a registry's schemas, as the JSON of the recipes.
Schemas that a timer has fetched hold from the next record that is read. When that is looked at, and
when it is saved, does not depend on whether there are records: an outcome's existence is a secret.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import UNSET, structs

from streamdp import __version__
from streamdp.assembly.join import Event, Join, Positions
from streamdp.assembly.persons import Cap, Persons
from streamdp.core.errors import StateMismatch, TransportLost
from streamdp.ports import (
    Commit,
    Key,
    OutputRecord,
    PairedTransport,
    Partition,
    Records,
    Taken,
    Value,
)
from streamdp.service.assembling.fingerprints import Inputs
from streamdp.service.assembly_spec import LONGEST_KEY, AssemblySpec
from streamdp.service.charges_by_others import ALONE, ChargesByOthers
from streamdp.service.life import Observe, unobserved
from streamdp.service.protocol import check_goes_on
from streamdp.service.renewed_formats import RenewedFormats
from streamdp.service.taking import open_partition
from streamdp.wire.entries import Entries
from streamdp.wire.formats import ContentFormat
from streamdp.wire.lines import LEDGER_SCHEMA, Assembled, PersonsCap
from streamdp.wire.published import encode_assembled
from streamdp.wire.renewals import Renewal, encode_renewal
from streamdp.wire.state import Remark, encode_checkpoint, encode_remark


class Contents:
    """The contents of one topic's records in one partition."""

    def __init__(self, what: str, format_: ContentFormat | None, saved: Sequence[Renewal]) -> None:
        """`what`: requests or outcomes; the names of their saved renewals begin so."""
        self._what = f"{what} "
        own = [
            structs.replace(of, what=of.what.removeprefix(self._what))
            for of in saved
            if of.what.startswith(self._what)
        ]
        self._formats = None if format_ is None else RenewedFormats(format_, own)

    def renew(self, *, since: int) -> None:
        """Let schemas that were fetched hold from the next record on, which has this offset."""
        if self._formats is not None:
            self._formats.renew(since)

    def read(self, records: Records) -> Sequence[Value]:
        """The records' values as JSON."""
        if self._formats is None:
            return records.values
        parts = self._formats.cut(records)
        return [value for format_, part in parts for value in format_.as_json(part.values)]

    def unsaved(self) -> list[Renewal]:
        """What the next commit has to save."""
        unsaved = [] if self._formats is None else self._formats.unsaved()
        return [structs.replace(of, what=self._what + of.what) for of in unsaved]


_HEADER_ROOM = 16  # bytes of a header beside its name and value, at most
_UNSEEN_MS = 60_000  # between a record's timestamp and the end of its replication, at most
_CALM_MS = 60_000  # for so much longer nothing may be needed before positions move in a quiet time
_MOST_GONE = 20_000  # entries that one commit deletes at most


class PartitionAssembly:
    """One partition that was taken."""

    def __init__(
        self,
        spec: AssemblySpec,
        partition: Partition,
        taken: Taken,
        transport: PairedTransport,
        *,
        by_others: ChargesByOthers = ALONE,
        observe: Observe = unobserved,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.partition = partition
        self._spec, self._transport = spec, transport
        self._observe, self._clock = observe, clock
        decision = open_partition(spec, partition, taken, by_others=by_others)
        point, saved, goes_on = decision.point, decision.saved, decision.goes_on
        assert point.joined, "an assembly's"
        self._point, self._joined = point, point.joined
        self._entries = Entries(partition.stream, partition.number)
        self._restored = Positions(point.next_offset, point.low_water, int(self._joined.outcomes))
        self._inputs = Inputs(spec, partition, taken, saved.checkpoint)
        counts, renewals = (saved.rows, saved.now.renewals) if goes_on else ({}, [])
        self._persons = Persons(spec.cap, counts) if spec.cap else None
        self._join = Join(
            spec.rules,
            spec.recipe,
            spec.encode,
            positions=self._restored,
            persons=self._persons,
        )
        self._requests = Contents("requests", spec.requests, renewals)
        self._outcomes = Contents("outcomes", spec.outcomes, renewals)
        earlier = (
            saved.stale if goes_on else [of for of in taken.state if of != self._entries.checkpoint]
        )
        self._stale = list(earlier)
        self._begins = not goes_on  # whether nothing of this epoch is durable yet
        self.committed, self.history = point.next_offset, point.low_water
        self.events = 0  # events written since the partition was taken

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
        """The time, in milliseconds, at which the next round is due."""
        return self._join.next_due()

    async def bring_back(self) -> None:
        """Read again the requests that have left but still decide which later ones are repeats.

        Before that, look whether requests and outcomes are still those that were read.
        """
        await self._inputs.prove(self._transport)
        positions = self._restored
        reading = self._transport.read(self.partition, positions.history, positions.requests)
        async for records in reading:
            self.absorb([records])
        self._join.skip_requests(positions.requests)

    def read(self, records: Records) -> list[Records]:
        """What must be kept of records until they are absorbed: all of them."""
        return [records]

    def absorb(self, records: Sequence[Records]) -> None:
        """Read requests that follow the ones before."""
        for part in records:
            self._absorb(part)

    def _absorb(self, records: Records) -> None:
        check_goes_on(records, position=self._join.request_at)
        _check_columns(records)
        self._inputs.read_requests(records)
        if records.start >= self._restored.requests:  # not read again
            self._requests.renew(since=records.start)
        columns = (records.keys, records.headers, self._requests.read(records))
        for offset, timestamp, key, headers, value in zip(
            records.offsets, records.timestamps, *columns, strict=True
        ):
            self._join.request(offset, timestamp, _cut(key), headers, value)
        self._join.skip_requests(records.next_offset)

    async def round(self, now: int) -> int:
        """Let requests leave that may at this time (milliseconds); return the number of events."""
        count = self._join.due(now, most=self._spec.most_at_once)
        if count == 0 and not self._begins and not self._stale:
            await self._move_on(now - _UNSEEN_MS)
            return 0
        if self._begins or (count and self._join.last_of(count) >= self._joined.declared):
            await self._declare()
        if count:
            await self._read_outcomes(self._join.until(count))
        room = self._transport.largest_value(self._spec.name)
        events = [_fitted(event, room) for event in self._join.emit(count)]
        await self._commit(events)
        return count

    async def _move_on(self, time: int) -> None:
        """Move the positions on if nothing that was read matters to requests after this time."""
        join = self._join
        if not join.may_move_on(time - _CALM_MS):
            return
        if await self._transport.end_now(self.partition) > join.request_at:
            return
        await self._read_outcomes(join.reach(time))
        await self._commit([])

    async def _declare(self) -> None:
        """Commit a ledger line that covers these requests, before the first of them is an event."""
        start = max(self._join.positions.requests, self._joined.declared)
        stop, cap, ordinal = self._join.request_at, self._spec.cap, self._point.lines_recorded + 1
        line = Assembled(
            schema=LEDGER_SCHEMA,
            stream=self._spec.name,
            partition=self.partition.number,
            epoch=self._spec.epoch,
            input=self._spec.topics.input,
            outcomes=self._spec.topics.second_input,
            output=self._spec.topics.output,
            start=start,
            stop=stop,
            ordinal=ordinal,
            persons=_persons_cap(cap) if cap else UNSET,
            digest=self._spec.digest,
            version=__version__,
        )
        self._point = structs.replace(self._point, lines_recorded=ordinal, lines_published=ordinal)
        self._joined = structs.replace(self._joined, declared=stop)
        await self._commit([], ledger=[(None, encode_assembled(line))])

    async def _commit(
        self, events: Sequence[OutputRecord], *, ledger: Sequence[tuple[Key, bytes]] = ()
    ) -> None:
        positions, entries, epoch = self._join.positions, self._entries, self._spec.epoch
        counts = self._persons.save() if self._persons is not None else {}
        gone, self._stale = self._stale[:_MOST_GONE], self._stale[_MOST_GONE:]
        request, outcome = self._inputs.newest()
        self._joined = structs.replace(
            self._joined, outcomes=f"{positions.outcomes:020d}", newest_outcome=outcome
        )
        self._point = structs.replace(
            self._point,
            next_offset=positions.requests,
            low_water=positions.history,
            commit_seq=self._point.commit_seq + 1,
            last_record=request,
            joined=self._joined,
        )
        state: list[tuple[bytes, Value]] = [
            *((place, None) for place in gone),
            *((entries.row(key, epoch=epoch), value) for key, value in counts.items()),
            *(
                (entries.renewal(of.what, of.number, epoch=epoch), encode_renewal(of))
                for of in (*self._requests.unsaved(), *self._outcomes.unsaved())
            ),
            (entries.checkpoint, encode_checkpoint(self._point)),
        ]
        remark = Remark(epoch=epoch, began_with=self._point.began_with)
        begun = self._clock()
        await self._transport.commit(
            self.partition,
            Commit(
                next_offset=positions.requests,
                state=state,
                ledger=ledger,
                low_water=positions.history,
                remark=encode_remark(remark),
                second_input=positions.outcomes,
                records=events,
            ),
        )
        self._observe("commit", self._clock() - begun)
        self._begins, self.committed = False, positions.requests
        self.history, self.events = positions.history, self.events + len(events)

    async def _read_outcomes(self, until: int) -> None:
        """Read all outcomes that are older than a time."""
        start = self._join.outcome_at
        self._outcomes.renew(since=start)
        stop = await self._transport.stop_second_input(self.partition, start, timestamp=until)
        await self._read_up_to(start, stop)
        if self._join.outcome_at != stop:
            raise TransportLost(str(self._outcomes_lack("reading ended before its end")))

    def _outcomes_lack(self, what: str) -> StateMismatch:
        return StateMismatch(
            f"partition {self.partition}: outcomes",
            what,
            expected="every outcome since the newest that was read",
            got="fewer",
        )

    async def _read_up_to(self, start: int, stop: int) -> None:
        async for records in self._transport.read_second_input(self.partition, start, stop):
            if records.start != self._join.outcome_at:
                raise TransportLost(str(self._outcomes_lack("a batch leaves some out")))
            _check_columns(records)
            self._inputs.read_outcomes(records)
            self._join.outcomes(
                records.timestamps,
                records.keys,
                records.headers,
                self._outcomes.read(records),
                next_offset=records.next_offset,
            )


def _persons_cap(cap: Cap) -> PersonsCap:
    """A cap in the form of the ledger."""
    if cap.slots is None:
        return PersonsCap(most=cap.most, per="day")
    return PersonsCap(most=cap.most, slots=cap.slots)


def _cut(key: Key) -> Key:
    """Cut a key that is too long to have a learner, to a length that is still too long."""
    return key if key is None else key[: LONGEST_KEY + 1]


def _fitted(event: Event, room: int) -> Event:
    """An event that fits the output: without its headers, if they are too large."""
    key, value, headers = event
    size = len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name.encode()) + len(content or b"") + _HEADER_ROOM
    return event if size <= room else (key, value, [])


def _check_columns(records: Records) -> None:
    """Refuse records that lack headers or timestamps."""
    columns = {len(records.headers), len(records.timestamps)}
    if columns != {len(records)}:
        raise StateMismatch(
            f"partition {records.partition}",
            "records came without their headers or timestamps",
            expected=f"{len(records)} of each",
            got=f"{len(records.headers)} and {len(records.timestamps)}",
        )
