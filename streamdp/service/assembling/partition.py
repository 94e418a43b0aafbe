"""A partition of an assembly at work: requests are delivered, rounds make events of them.

A round, in this order:

1. It is decided how many of the oldest requests may leave: by the clock and by requests alone.
2. If there are any, the outcomes are read up to where none can count for them any more.
3. They become events, and one commit makes events, both positions and counts durable together.

So what an outcome says decides neither when a round comes nor how many events are in it. When it is
not known how a round ended, this object must be dropped and the partition taken again.

How far the outcomes reach is for operators: no message of here has an offset of theirs.
"""

from __future__ import annotations

from streamdp.assembly.join import Join
from streamdp.assembly.persons import Persons
from streamdp.core.errors import StateMismatch, TransportLost, complaint
from streamdp.ports import Commit, PairedTransport, Partition, Records, Taken, Value
from streamdp.service.assembling.saved import POINT, Opened, encode_point, entry_of, open_assembly
from streamdp.service.assembling.spec import AssemblySpec
from streamdp.service.protocol import check_goes_on

_MOST_GONE = 20_000  # entries that one commit takes away at most


class PartitionAssembly:
    """One partition that was taken."""

    def __init__(
        self, spec: AssemblySpec, partition: Partition, taken: Taken, transport: PairedTransport
    ) -> None:
        self.partition = partition
        self._spec, self._taken, self._transport = spec, taken, transport
        self._opened: Opened = open_assembly(spec, partition, taken)
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
        self.committed = self._opened.positions.requests

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
        for at, offset in enumerate(records.offsets):
            self._join.request(
                offset,
                records.timestamps[at],
                records.keys[at],
                records.headers[at],
                records.values[at],
            )
        self._join.skip_requests(records.next_offset)

    async def round(self, now: int) -> int:
        """Let leave what may at this moment (milliseconds); how many events left."""
        count = self._join.due(now, most=self._spec.most_at_once)
        if count == 0 and not self._begins and not self._stale:
            return 0
        if count:
            await self._read_outcomes(self._join.until(count))
        events = self._join.emit(count)
        positions = self._join.positions
        counts = self._persons.save() if self._persons is not None else {}
        gone, self._stale = self._stale[:_MOST_GONE], self._stale[_MOST_GONE:]
        saved = {entry_of(key, epoch=self._spec.epoch): value for key, value in counts.items()}
        state: list[tuple[bytes, Value]] = [
            *((place, None) for place in gone),
            *saved.items(),
            (POINT, encode_point(self._spec, self._taken, positions)),
        ]
        await self._transport.commit(
            self.partition,
            Commit(
                next_offset=positions.requests,
                state=state,
                low_water=positions.history,
                beside=positions.outcomes,
                records=events,
            ),
        )
        self._begins, self.committed = False, positions.requests
        return count

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
            complaint(f"partition {self.partition}: outcomes", what, expected="all", got="less")
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
