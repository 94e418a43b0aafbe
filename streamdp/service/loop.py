"""The loop: many streams (or assemblies) and partitions in one process.

Batches are applied while commits are in flight.

One task polls and applies; each taken partition has its own task that takes, rebuilds and commits
(`worker`). A partition that is assigned again waits until its earlier task has left it: leaving
later would take it from its successor. The process ends after a drain, on a full disk, on an error
of the whole transport (such as `Fenced` from a poll: without a group nobody would ever give the
partition back), and, if so configured, when a partition halts.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from streamdp.core.errors import (
    DiskFull,
    Fenced,
    Occupied,
    StateMismatch,
    StreamdpError,
    TransportLost,
)
from streamdp.ports import Partition, Transport
from streamdp.service.assembling.worker import AssemblyWorker
from streamdp.service.assembly_spec import AssemblySpec
from streamdp.service.charges_by_others import ChargesByOthersOf
from streamdp.service.event_log import EventLog
from streamdp.service.life import Clock, Observe, Surroundings, check_sizes, unobserved, wall_clock
from streamdp.service.settings import LoopSettings, OnHalt
from streamdp.service.spec import StreamSpec
from streamdp.service.view import ON_ITS_WAY, Reason, Status, View
from streamdp.service.worker import Worker

_TURNS = 4
"""Turns of the event loop that other tasks get before a batch is applied; each costs microseconds.

A client whose buffer was emptied sends its next request in the meantime (aiokafka takes four
turns), so the answer comes while this batch is applied. A commit takes some thirty turns; without
these it would get one turn per batch under load.
"""

_LIST_SECONDS = 2.0
"""Seconds to wait for a stream's list."""


class Service:
    """Runs streams on a transport until it is told to drain."""

    def __init__(
        self,
        specs: Sequence[StreamSpec | AssemblySpec],
        transport: Transport,
        *,
        by_others: ChargesByOthersOf,
        view: View,
        log: EventLog,
        settings: LoopSettings | None = None,
        clock: Clock = time.monotonic,
        observe: Observe = unobserved,
        now: Callable[[], int] = wall_clock,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._roomy = {of.name for of in specs if isinstance(of, StreamSpec) and of.room}
        self._transport = transport
        self._settings = settings or LoopSettings()
        self._view = view
        view.inputs = {spec.name: spec.topics.input for spec in specs}
        self._log = log
        self._observe = observe
        self._workers: dict[Partition, Worker | AssemblyWorker] = {}
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        self._turns: defaultdict[Partition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._leaving: set[asyncio.Task[None]] = set()
        self._draining = asyncio.Event()
        self._ended_by: Reason | None = None
        self._fatal: StreamdpError | None = None
        self._heard_at = clock()
        self._around = Surroundings(
            transport,
            by_others,
            self._settings,
            view,
            log,
            clock,
            observe,
            self._halted,
            self._give_up,
            lambda: self._heard_at,
            now,
        )

    def drain(self) -> None:
        """Make what was drawn durable and public, then stop."""
        self._draining.set()

    async def run(self, *, ready: Callable[[], None] | None = None) -> Reason | None:
        """Join, work, drain, leave; return the reason if a halted partition ended it.

        Raises errors that the user must mend, such as a missing topic, and those that end the
        process.
        """
        try:
            if await self._join():
                for spec in self._specs.values():
                    check_sizes(spec, self._transport)
                self._log.info("joined", streams=sorted(self._specs))
                if ready is not None:
                    ready()
            await self._poll()
            if self._fatal is None:
                await self._drain()
            if self._fatal is not None:  # before the drain, or in it
                raise self._fatal
        finally:
            await self._stop()
        return self._ended_by

    # -- the transport's listener ----------------------------------------------------------------

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """Start to take these partitions, each in its own task."""
        if self._draining.is_set():
            return
        self._view.assigned += len(partitions)
        for partition in partitions:
            self._let_go(partition)
            worker = self._worker(partition)
            self._view.turn(partition, Status.TAKING)  # though its task may wait for its turn
            self._workers[partition] = worker
            self._tasks[partition] = asyncio.get_running_loop().create_task(
                self._run_in_turn(worker), name=f"partition {partition}"
            )

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """Stop working on these; nobody has seen what was drawn and is not durable."""
        self._view.revoked += len(partitions)
        for partition in partitions:
            self._let_go(partition)
            self._view.forget(partition)
            self._log.info("partition_revoked", partition=str(partition))

    def settled(self, stream: str) -> None:
        """Note that all of the stream's partitions of this process were announced."""
        self._view.work[stream].settled = True

    def failed(self, partition: Partition, error: StreamdpError) -> None:
        """Pass an error of the transport to the partition's worker, at work or still taking it."""
        worker = self._workers.get(partition)
        if worker is not None:
            worker.life.fail(error)

    def _let_go(self, partition: Partition) -> None:
        """Cancel a partition's task; it leaves in its own time."""
        self._workers.pop(partition, None)
        task = self._tasks.pop(partition, None)
        if task is not None and not task.done():
            task.cancel()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def _worker(self, partition: Partition) -> Worker | AssemblyWorker:
        """The worker of a partition: of a stream or of an assembly."""
        spec = self._specs[partition.stream]
        if isinstance(spec, AssemblySpec):
            return AssemblyWorker(spec, partition, self._around)
        return Worker(spec, partition, self._around)

    async def _run_in_turn(self, worker: Worker | AssemblyWorker) -> None:
        """Run a worker once the partition's earlier worker has left."""
        async with self._turns[worker.partition]:
            await worker.life.run()

    # -- callbacks of workers ----------------------------------------------------------------------

    def _halted(self, partition: Partition, reason: Reason) -> None:
        if self._settings.on_halt is OnHalt.EXIT:
            self._ended_by = self._ended_by or reason
            self.drain()

    def _give_up(self, error: StreamdpError) -> None:
        self._fatal = self._fatal or error
        self.drain()

    # -- tasks -----------------------------------------------------------------------------------

    async def _join(self) -> bool:
        """Join as soon as the transport answers; False if told to drain before that."""
        attempt = 0
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            while not self._draining.is_set():
                streams = [spec.topics for spec in self._specs.values()]
                joining = asyncio.ensure_future(self._transport.join(streams, self))
                try:
                    await asyncio.wait((joining, draining), return_when=asyncio.FIRST_COMPLETED)
                    if joining.done():
                        joining.result()
                        return True
                except (DiskFull, Fenced, Occupied):  # a retry would not help
                    raise
                except TransportLost as error:
                    seconds, attempt = self._retry_in(attempt), attempt + 1
                    self._view.lost = error.topic, error.kind
                    self._log.warning("join_lost", detail=str(error), retry_in=seconds)
                    await self._rest(seconds)
                finally:
                    joining.cancel()
                    await asyncio.gather(joining, return_exceptions=True)
            return False
        finally:
            draining.cancel()

    async def _poll(self) -> None:
        """Read and apply until drained."""
        attempt, lost_at = 0, 0.0
        while not self._draining.is_set():
            try:
                await self._poll_once()
                if attempt:
                    seconds = round(self._around.clock() - lost_at, 1)
                    self._log.info("poll_recovered", seconds=seconds)
                self._view.lost, attempt = None, 0
            except (DiskFull, Fenced):  # a retry would not help
                raise
            except TransportLost as error:
                lost_at = lost_at if attempt else self._around.clock()
                seconds, attempt = self._retry_in(attempt), attempt + 1
                self._view.lost = error.topic, error.kind
                self._look()
                self._log.warning("poll_lost", detail=str(error), retry_in=seconds)
                await self._rest(seconds)

    def _retry_in(self, attempt: int) -> float:
        """Seconds before the next attempt."""
        waits = self._settings.retry_seconds
        return waits[min(attempt, len(waits) - 1)]

    async def _rest(self, seconds: float) -> None:
        """Wait, but no longer than until told to drain."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._draining.wait()

    async def _poll_once(self) -> None:
        """Read one batch: poll until it is large enough or nothing more is ready, then apply it."""
        settings, clock = self._settings, self._around.clock
        gathered, timeout, asked = 0, settings.poll_seconds, set[str]()
        appetites = [worker.appetite for worker in self._workers.values()]
        at_once = [worker.most_records for worker in self._workers.values()]
        most = min([settings.poll_records, *at_once])
        while gathered < min([settings.batch_records, *appetites]):
            begun = clock()
            batches = await self._transport.poll(max_records=most, timeout=timeout)
            self._observe("poll", clock() - begun)
            await self._read_lists({of.partition.stream for of in batches} - asked)
            asked |= {of.partition.stream for of in batches} - self._roomy
            for records in batches:
                worker = self._workers.get(records.partition)
                if worker is not None:
                    worker.life.deliver(records)
            if batches:
                self._heard_at = clock()
            count = sum(len(records) for records in batches)
            gathered, timeout = gathered + count, 0.0
            if count < most:
                break
        self._look()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for worker in list(self._workers.values()):
            worker.apply()
        await self._brake()

    async def _read_lists(self, streams: Collection[str]) -> None:
        """Read the lists of some streams to their ends, whatever their records hold.

        Each is asked for once in a batch, after a fetch of its records and before they are decoded:
        a question for each fetch would take one part in thirty of a loaded process. Where lists may
        add actions it is asked for after every fetch, whose records may name them. One that is out
        of reach must not hold up the others' polls: it is asked for again later.
        """
        clock = self._around.clock
        for spec in (self._specs[name] for name in sorted(streams)):
            if not isinstance(spec, StreamSpec) or not spec.takes_lists:
                continue
            known = spec.catalogue
            if known.failures and clock() < known.again_at:
                continue
            try:
                async with asyncio.timeout(_LIST_SECONDS):
                    known.read(await self._transport.newest_list(spec.name))
                known.failures = 0
            except (StateMismatch, TransportLost, TimeoutError) as error:
                if not known.failures:
                    detail = str(error) or f"no answer within {_LIST_SECONDS:g} s"
                    self._log.warning("list_lost", stream=spec.name, detail=detail)
                known.again_at = clock() + self._retry_in(known.failures)
                known.failures += 1

    def _look(self) -> None:
        """Show which inputs are missing, and the lag of partitions that are being taken."""
        transport, now = self._transport, self._around.clock()
        self._view.missing = transport.missing()
        for partition, worker in self._workers.items():
            if worker.life.work is None and self._view.part(partition).status in ON_ITS_WAY:
                known = transport.last_known(partition)
                self._view.look_ahead(partition, position=known.group, end=known.end, now=now)

    async def _brake(self) -> None:
        """Pause polling for a moment, so that commits can take up a burst of releases.

        Not polling keeps what was fetched; a pause of the partition would throw it away. But it
        stops all partitions, so one whose commits hang holds the others up for a bounded time only.
        """
        full = [worker for worker in self._workers.values() if not worker.has_room.is_set()]
        waiting = {asyncio.ensure_future(worker.has_room.wait()) for worker in full}
        if not waiting:
            await asyncio.sleep(0)
            return
        try:
            await asyncio.wait(waiting, timeout=self._settings.brake_seconds)
        finally:
            for task in waiting:
                task.cancel()

    async def _drain(self) -> None:
        """Let every partition publish what it has drawn, within a bounded time."""
        self._log.info("draining", partitions=len(self._tasks))
        for partition, worker in list(self._workers.items()):
            if worker.life.work is not None:
                worker.apply()
                worker.life.drain()
            else:
                self._let_go(partition)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks.values(), timeout=self._settings.drain_seconds)
            if late:
                self._log.warning("drain_incomplete", partitions=len(late))

    async def _stop(self) -> None:
        tasks = [*self._tasks.values(), *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.close()
        self._log.info("stopped")

    @property
    def halted(self) -> list[Partition]:
        """The partitions that have stopped for good."""
        return [
            Partition(name, number)
            for name, work in self._view.work.items()
            for number, part in work.partitions.items()
            if part.status is Status.HALTED
        ]
