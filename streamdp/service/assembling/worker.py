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
from contextlib import suppress

from streamdp.ports import PairedTransport, Partition
from streamdp.service.assembling.partition import PartitionAssembly
from streamdp.service.assembly_spec import AssemblySpec
from streamdp.service.life import Life, Surroundings
from streamdp.service.view import Status


class AssemblyWorker:
    """Works on one partition until it is revoked, drained or halted."""

    def __init__(
        self,
        spec: AssemblySpec,
        partition: Partition,
        around: Surroundings,
    ) -> None:
        self.partition = partition
        self.has_room = asyncio.Event()  # always set: a round takes all there is
        self.has_room.set()
        self.appetite = self.most_records = around.settings.batch_records
        self._spec = spec
        self._around = around
        self.life: Life[PartitionAssembly] = Life(partition, around, live=self._live)

    def apply(self) -> None:
        """Read what was delivered."""
        work = self.life.apply()
        if work is not None and work.full:
            self.life.pause()

    async def _live(self) -> None:
        work = await self._take()
        self.life.begin(work, work.position)
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
        self.life.drained()

    async def _take(self) -> PartitionAssembly:
        around, transport = self._around, self._around.transport
        self.life.taking(self._spec)
        assert isinstance(transport, PairedTransport), "looked at there"
        taken, by_others = await self.life.take(self._spec)
        work = PartitionAssembly(
            self._spec,
            self.partition,
            taken,
            transport,
            by_others=by_others,
            observe=around.observe,
            clock=around.clock,
        )
        around.view.turn(self.partition, Status.REBUILDING)
        await work.bring_back()
        return work

    async def _round(self, work: PartitionAssembly) -> int:
        begun, before = self._around.clock(), work.committed
        count = await work.round(self._around.now())
        self.life.heard_at += self._around.clock() - begun  # no poll was looked at meanwhile
        if count or work.committed != before:
            self._show(work)
        if not work.full:
            self.life.resume(work.position)
        return count

    async def _wait(self, work: PartitionAssembly) -> None:
        """Wait until something may leave, or may have come."""
        await self.life.rest(self._around.settings.commit_seconds)
        self._show(work)
        self.life.check_not_stalled(position=work.position)
        due = work.next_due()
        seconds = self._around.settings.idle_commit_seconds
        if due is not None:
            seconds = min(seconds, max(0.0, (due - self._around.now()) / 1000))
        if self.life.failure is None and not self.life.draining:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.life.stirred.wait()
        self.life.stirred.clear()

    def _show(self, work: PartitionAssembly) -> None:
        """Show how far requests were read and have become events."""
        view, due = self._around.view, work.next_due()
        ahead = None if due is None else (due - self._around.now()) / 1000
        view.due(self.partition, None if ahead is None else self._around.clock() + ahead)
        view.show(
            self.partition,
            position=work.position,
            low_water=work.history,
            open=work.open,
            events=work.events,
        )
        self.life.look()
