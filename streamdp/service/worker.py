"""One partition of a stream on a transport: take, rebuild, work. (`Life` handles the errors.)

Commits come at once when something was drawn or waits to be published, or when `low_water` falls
behind; otherwise once in `idle_commit_seconds` while the position moves.

Back-pressure is by partition: when more than `most_waiting` records are applied and not durable,
this partition alone is paused until a commit has caught up. (A pause throws away what was fetched
ahead, so it should be rare.) A burst of releases, such as every key's first blocks, takes far more
room than its records, so a partition also says when it has no room for more of them before its next
commit. Polling waits for that commit, but only for a moment, as it is everybody's; where commits
take longer, the partition is paused once `most_waiting_bytes` of releases wait for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from streamdp.ports import Partition
from streamdp.service.allocation import without_collecting
from streamdp.service.input_fingerprint import read_proof
from streamdp.service.life import Life, Surroundings
from streamdp.service.protocol import PartitionWork, Restoring
from streamdp.service.saved_entries import SavedEntries
from streamdp.service.spec import StreamSpec
from streamdp.service.view import Status

_TOLD_SECONDS = 2.0
"""Seconds between two log lines about the progress of taking or rebuilding."""


_PRESSED = 0.5
"""Share of what may wait from which on a commit should not: see `Worker._waiting`."""

INLINE_ENTRIES = 10_000
"""A state of more entries is restored in a thread: a million keys take minutes, and the loop goes
on. A smaller one takes less than a tenth of a second, and the order of steps stays fixed."""


class Worker:
    """Works on one partition until it is revoked, drained or halted."""

    def __init__(self, spec: StreamSpec, partition: Partition, around: Surroundings) -> None:
        self.partition = partition
        self.has_room = asyncio.Event()  # for more releases before the next commit
        self.has_room.set()
        settings = around.settings
        most_records = settings.most_waiting_bytes // spec.bytes_a_line
        self.most_records = max(1, min(settings.batch_records, most_records))
        """Most records of one batch: each may draw, and a line may have thousands of actions."""
        self.appetite = self.most_records  # records that draw about `most_drawn`
        self._spec = spec
        self._around = around
        most = around.settings.most_drawn_bytes // spec.largest_value
        self._most_drawn = max(1, min(around.settings.most_drawn, most))
        """Most releases that may wait for a commit: a feedback stream's grow with its actions."""
        self.life: Life[PartitionWork] = Life(
            partition, around, live=self._live, drop=self.has_room.set
        )
        self._committed_at = 0.0

    def apply(self) -> None:
        """Apply what was delivered."""
        self.appetite = self.most_records
        before, records = self.life.work, sum(map(len, self.life.inbox))
        drawn_before = 0 if before is None else before.unrecorded
        work = self.life.apply()
        if work is None:
            return
        if self._waiting(work) > 1:
            self.life.pause()
        most, drawn = self._most_drawn, work.unrecorded
        appetite = most * records // max(1, drawn - drawn_before)
        self.appetite = max(1, min(self.most_records, appetite))
        if drawn > most:
            self.has_room.clear()

    # -- one taking --------------------------------------------------------------------------------

    async def _live(self) -> None:
        work = await self._take()
        around = self._around
        self._committed_at = around.clock()
        self.life.begin(work, work.engine.position)
        around.view.running(self.partition, work)
        self.life.look()
        around.log.info(
            "partition_running",
            partition=str(self.partition),
            position=work.engine.position,
            keys=len(work.engine),
        )
        while await self._wait_for_reason(work):
            await self._commit(work)
        self.life.drained()

    async def _take(self) -> PartitionWork:
        around = self._around
        self.life.taking(self._spec)
        report = self._teller("partition_taking")
        with without_collecting():
            entries = SavedEntries(
                self._spec, self.partition, told=lambda entries: report(entries=entries)
            )
            taken, by_others = await self.life.take(self._spec, entries=entries)
            apart = entries.entered > INLINE_ENTRIES
            restore = partial(Restoring, self._spec, self.partition, taken, by_others=by_others)
            restoring = await asyncio.to_thread(restore) if apart else restore()
            # An expired record proves nothing of the input.
            proof = await read_proof(self.partition, restoring.proof, around.transport.read)
            for records in proof:
                restoring.prove(records)
            await self._rebuild(restoring)
            return await asyncio.to_thread(restoring.finish) if apart else restoring.finish()

    async def _rebuild(self, restoring: Restoring) -> None:
        """Read again what the saved rows do not contain."""
        around, span = self._around, restoring.span
        around.view.turn(self.partition, Status.REBUILDING)
        around.log.info("partition_rebuilding", partition=str(self.partition), records=len(span))
        if not span:
            return
        report = self._teller("partition_rebuilding")
        async for records in around.transport.read(self.partition, span.start, span.stop):
            restoring.feed(records)
            done = (records.next_offset - span.start) / len(span)
            around.view.show(self.partition, progress=done)
            report(done=round(done, 3))
            await asyncio.sleep(0)

    def _teller(self, event: str) -> Callable[..., None]:
        """Returns a function that logs progress, but not too often."""
        clock, log = self._around.clock, self._around.log
        last = clock()

        def tell(**fields: object) -> None:
            nonlocal last
            if clock() - last > _TOLD_SECONDS:
                last = clock()
                log.info(event, partition=str(self.partition), **fields)

        return tell

    async def _wait_for_reason(self, work: PartitionWork) -> bool:
        """Wait until there is something to commit; False when drained."""
        settings, clock = self._around.settings, self._around.clock
        while True:
            if self.life.failure is not None:
                raise self.life.failure
            late = work.engine.position - work.point.low_water > settings.pace.records
            if work.urgent or late or self._waiting(work) > _PRESSED:
                return True
            if self.life.draining:
                return work.engine.position > work.point.next_offset
            due = self._committed_at + settings.idle_commit_seconds
            if clock() >= due:
                self.life.look()
                self.life.check_not_stalled(position=work.engine.position)
                self._committed_at = clock()
                if work.behind:
                    return True
                continue
            self.life.stirred.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - clock())):
                    await self.life.stirred.wait()

    async def _commit(self, work: PartitionWork) -> None:
        around, clock = self._around, self._around.clock
        begun = clock()
        cut = work.cut(now=begun, pace=around.settings.pace)
        self.has_room.set()
        self._let_go(work)
        await around.transport.commit(self.partition, cut.commit)
        ended = self._committed_at = clock()
        around.observe("commit", ended - begun)
        refused = work.keys_refused + work.engine.slots_refused
        learned = work.slots - work.engine.slots_refused
        around.view.committed(self.partition, cut, slots=learned, keys_refused=refused, now=ended)
        self.life.look()
        self._let_go(work)
        left = around.settings.commit_seconds - (ended - begun)
        if left > 0:
            await self.life.rest(left)

    # -- back-pressure -----------------------------------------------------------------------------

    def _let_go(self, work: PartitionWork) -> None:
        """Resume once a cut has caught up."""
        if self._waiting(work) <= _PRESSED:
            self.life.resume(work.engine.position)

    def _waiting(self, work: PartitionWork) -> float:
        """How much is not durable, or drawn and in no cut; beyond 1 the partition is paused."""
        settings, point, position = self._around.settings, work.point, work.engine.position
        beyond = position - point.low_water - 2 * settings.pace.records  # of a rebuild's bound
        return max(
            max(position - point.next_offset, beyond) / settings.most_waiting,
            work.unrecorded * work.bytes_a_line / settings.most_waiting_bytes,
        )
