"""One partition of an assembly on a transport: take, restore, and make events when they are due.

A round comes when requests may leave: by the clock, or because a later request was read. Outcomes
never trigger one. Two rounds are at least `commit_seconds` apart, unless there was more than one
commit may hold.

A consumer that stalls in silence counts as a lost transport, as for a worker that learns.

Back-pressure: when as many requests wait for their deadline as `most_open` allows, no more are read
until some have left. Nothing is ever dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from streamdp.core.errors import InvalidConfig
from streamdp.ports import PairedTransport, Partition, Records, Transport
from streamdp.service.assembling.partition import PartitionAssembly
from streamdp.service.assembling.spec import AssemblySpec
from streamdp.service.charges_by_others import Scope
from streamdp.service.life import Life, Surroundings, check_not_stalled, wall_clock
from streamdp.service.view import Status


class AssemblyWorker:
    """Works on one partition until it is revoked, drained or halted."""

    def __init__(
        self,
        spec: AssemblySpec,
        partition: Partition,
        around: Surroundings,
        *,
        now: Callable[[], int] = wall_clock,
    ) -> None:
        self.partition = partition
        self.has_room = asyncio.Event()  # always set: a round takes all there is
        self.has_room.set()
        self.appetite = around.settings.batch_records
        self._spec = spec
        self._around = around
        self._now = now
        self.life = Life(partition, around, live=self._live, drop=self._drop)
        self._work: PartitionAssembly | None = None
        self._inbox: list[Records] = []
        self._paused = False
        self._heard_at = 0.0

    @property
    def at_work(self) -> bool:
        """Whether the partition was taken and restored."""
        return self._work is not None

    def deliver(self, records: Records) -> None:
        """Take in requests of this partition, in order."""
        if self._work is not None and self.life.failure is None:
            self._inbox.append(records)
            end = self._around.transport.end_offset(self.partition)
            self._around.view.part(self.partition).stamp(records, end=end, now=self._now())

    def apply(self) -> None:
        """Read what was delivered; a failure is this partition's alone."""
        inbox, self._inbox = self._inbox, []
        if not inbox or self._work is None or self.life.failure is not None:
            return
        self._heard_at = self._around.clock()
        try:
            for records in inbox:
                self._work.absorb(records)
        except Exception as error:
            self.life.fail(error)
            return
        if self._work.full and not self._paused:
            self._paused = True
            self._around.transport.pause(self.partition)
            self._around.log.info("partition_paused", partition=str(self.partition))
        self.life.stirred.set()

    def _drop(self) -> None:
        self._work, self._inbox = None, []

    async def _live(self) -> None:
        work = await self._take()
        self._work, self._paused = work, False
        self._heard_at = self._around.clock()
        self._around.transport.resume(self.partition, work.position)
        self._around.view.turn(self.partition, Status.RUNNING)
        self._show(work)
        self._around.log.info(
            "partition_running",
            partition=str(self.partition),
            position=work.committed,
            open=work.open,
        )
        while not self.life.draining:
            if self.life.failure is not None:
                raise self.life.failure
            count = await self._round(work)
            if count < self._spec.most_at_once:
                await self._wait(work)
        self._around.view.turn(self.partition, Status.DRAINED)
        self._around.log.info("partition_drained", partition=str(self.partition))

    async def _take(self) -> PartitionAssembly:
        around, transport = self._around, self._around.transport
        check_event_sizes(self._spec, transport)
        assert isinstance(transport, PairedTransport), "looked at there"
        around.view.turn(self.partition, Status.TAKING)
        around.log.info("partition_taking", partition=str(self.partition))
        taken = await transport.take(self.partition)
        around.view.part(self.partition).look_ahead(
            position=taken.group_offset, end=taken.end_offset, now=around.clock()
        )
        work = PartitionAssembly(
            self._spec,
            self.partition,
            taken,
            transport,
            by_others=await around.by_others(self._spec.name, Scope.ALL),
            observe=around.observe,
            clock=around.clock,
        )
        around.view.turn(self.partition, Status.REBUILDING)
        await work.bring_back()
        return work

    async def _round(self, work: PartitionAssembly) -> int:
        begun, before = self._around.clock(), work.committed
        count = await work.round(self._now())
        self._heard_at += self._around.clock() - begun  # no poll was looked at meanwhile
        if count or work.committed != before:
            self._show(work)
        if self._paused and not work.full:
            self._paused, self._heard_at = False, self._around.clock()
            self._around.transport.resume(self.partition, work.position)
            self._around.log.info("partition_resumed", partition=str(self.partition))
        return count

    async def _wait(self, work: PartitionAssembly) -> None:
        """Wait until something may leave, or may have come."""
        await self.life.rest(self._around.settings.commit_seconds)
        self._show(work)
        self._watch(work)
        due = work.next_due()
        seconds = self._around.settings.idle_commit_seconds
        if due is not None:
            seconds = min(seconds, max(0.0, (due - self._now()) / 1000))
        if self.life.failure is None and not self.life.draining:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.life.stirred.wait()
        self.life.stirred.clear()

    def _watch(self, work: PartitionAssembly) -> None:
        """Notice a consumer that stalls in silence."""
        end = self._around.transport.end_offset(self.partition)
        if end is None or end <= work.position or self._paused:
            self._heard_at = self._around.clock()
        check_not_stalled(self.partition, self._around, heard_at=self._heard_at)

    def _show(self, work: PartitionAssembly) -> None:
        """Show how far requests were read and have become events."""
        part = self._around.view.part(self.partition)
        part.position, part.low_water = work.position, work.history
        part.open, part.events = work.open, work.events
        due = work.next_due()
        ahead = None if due is None else (due - self._now()) / 1000
        part.due_at = None if ahead is None else self._around.clock() + ahead
        part.look(
            first=self._around.transport.first_offset(self.partition),
            end=self._around.transport.end_offset(self.partition),
            retain=self._around.transport.retain,
            now=self._around.clock(),
        )


def check_event_sizes(spec: AssemblySpec, transport: Transport) -> None:
    """Refuse an assembly whose values this transport cannot hold, or that it cannot run at all."""
    where = f"assemblies.{spec.name}"
    if not isinstance(transport, PairedTransport):
        kind = type(transport).__name__
        raise InvalidConfig(
            where, "needs two inputs", expected="a transport that pairs them", got=kind
        )
    largest = transport.largest_value(spec.name)
    if spec.largest_value > largest:
        raise InvalidConfig(
            where,
            "its largest value does not fit",
            expected=f"≤ {largest} bytes, what the topics that it writes to take",
            got=spec.largest_value,
        )
