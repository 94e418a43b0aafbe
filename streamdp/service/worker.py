"""One partition on a transport: take, rebuild, work, and take again after what may pass.

A worker owns its partition's memory. When the outcome of a step is unknown (`TransportLost`) it
drops all of it and takes the partition again; when another process has the partition (`Fenced`) it
stops; when state and log contradict each other, or a charge is refused, it halts with a reason and
leaves the other partitions alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from streamdp.core.errors import (
    BudgetExceeded,
    Fenced,
    InvalidConfig,
    StateMismatch,
    StreamdpError,
    TransportLost,
    complaint,
)
from streamdp.ports import Partition, Records, Transport
from streamdp.service.protocol import Pace, PartitionWork, Restoring
from streamdp.service.spec import StreamSpec
from streamdp.service.view import Reason, Status, View
from streamdp.wire.published import Mode


class Log(Protocol):
    """Structured logging: an event's name and its fields, none of them from content."""

    def info(self, event: str, **fields: object) -> object:
        """Something happened as it should."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Something that passes by itself."""
        ...

    def error(self, event: str, **fields: object) -> object:
        """Somebody must act."""
        ...


Clock = Callable[[], float]
Observe = Callable[[str, float], None]
"""Told how long a public step took: its name and seconds."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How the service paces itself. None of it can change what is released."""

    poll_records: int = 2000
    poll_seconds: float = 0.05
    batch_records: int = 8192  # applied at once under load
    most_waiting: int = 50_000  # records read but not applied: then polling waits
    commit_seconds: float = 0.02  # between two commits of a partition that has something to say
    idle_commit_seconds: float = 1.0
    drain_seconds: float = 30.0
    stall_seconds: float = 60.0
    retry_seconds: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all workers of a process share."""

    transport: Transport
    settings: LoopSettings
    view: View
    log: Log
    clock: Clock
    mode: Callable[[str], Mode]
    observe: Observe


_REASONS: tuple[tuple[type[StreamdpError], Reason], ...] = (
    (StateMismatch, Reason.STATE),
    (BudgetExceeded, Reason.BUDGET),
    (InvalidConfig, Reason.CONFIG),
)


class Worker:
    """Works on one partition until it is revoked, drained or halted."""

    def __init__(self, spec: StreamSpec, partition: Partition, around: Surroundings) -> None:
        self.partition = partition
        self._spec = spec
        self._around = around
        self._work: PartitionWork | None = None
        self._inbox: list[Records] = []
        self._stirred = asyncio.Event()
        self._draining = False
        self._failure: BaseException | None = None
        self._heard_at = 0.0

    @property
    def waiting(self) -> int:
        """Records that were delivered but not applied."""
        return sum(len(records) for records in self._inbox)

    def deliver(self, records: Records) -> None:
        """Records of this partition, in order."""
        if self._work is not None and self._failure is None:
            self._inbox.append(records)
            self._heard_at = self._around.clock()

    def apply(self) -> None:
        """Apply what was delivered; a failure is this partition's alone."""
        inbox, self._inbox = self._inbox, []
        if not inbox or self._work is None or self._failure is not None:
            return
        try:
            self._work.absorb(inbox, mode=self._around.mode(self._spec.name))
        except Exception as error:
            self.fail(error)
        self._stirred.set()

    def fail(self, error: BaseException) -> None:
        """What was found elsewhere to be wrong with this partition."""
        self._failure = self._failure or error
        self._stirred.set()

    def drain(self) -> None:
        """Make durable and publish what was drawn, then stop."""
        self._draining = True
        self._stirred.set()

    async def run(self) -> None:
        """The partition's life in this process."""
        attempt = 0
        while not self._draining:
            started = self._around.clock()
            try:
                await self._live()
                return
            except Fenced as error:
                self._around.log.warning(
                    "partition_fenced", partition=str(self.partition), detail=str(error)
                )
                self._around.view.forget(self.partition)
                return
            except TransportLost as error:
                waits = self._around.settings.retry_seconds
                if self._around.clock() - started > 60:
                    attempt = 0
                await self._pause_before_retry(error, waits[min(attempt, len(waits) - 1)])
                attempt += 1
            except Exception as error:
                self._halt(error)
                return
            finally:
                self._work, self._inbox, self._failure = None, [], None
                await self._leave()

    async def _leave(self) -> None:
        with suppress(StreamdpError):
            self._around.transport.pause(self.partition)
            await self._around.transport.leave(self.partition)

    async def _pause_before_retry(self, error: TransportLost, seconds: float) -> None:
        self._around.view.turn(self.partition, Status.RETRYING)
        self._around.log.warning(
            "partition_lost", partition=str(self.partition), detail=str(error), retry_in=seconds
        )
        await asyncio.sleep(seconds)

    def _halt(self, error: Exception) -> None:
        """Stop this partition and say why; an unexpected error's text may quote content."""
        reason = next((each for kind, each in _REASONS if isinstance(error, kind)), Reason.INTERNAL)
        message = str(error) if reason is not Reason.INTERNAL else type(error).__name__
        self._around.view.halt(self.partition, reason, message)
        self._around.log.error(
            "partition_halted",
            partition=str(self.partition),
            reason=str(reason),
            detail=message,
            where=_where(error),
        )

    # -- one taking --------------------------------------------------------------------------------

    async def _live(self) -> None:
        work = await self._take()
        self._work = work
        self._heard_at = self._around.clock()
        self._around.transport.resume(self.partition, work.engine.position)
        self._around.view.turn(self.partition, Status.RUNNING)
        self._around.log.info(
            "partition_running",
            partition=str(self.partition),
            position=work.engine.position,
            keys=len(work.engine),
        )
        while await self._wait_for_reason(work):
            await self._commit(work)
        self._around.view.turn(self.partition, Status.DRAINED)
        self._around.log.info("partition_drained", partition=str(self.partition))

    async def _take(self) -> PartitionWork:
        around, name = self._around, str(self.partition)
        around.view.turn(self.partition, Status.TAKING)
        around.log.info("partition_taking", partition=name)
        taken = await around.transport.take(self.partition)
        restoring = Restoring(self._spec, self.partition, taken)
        span = restoring.span
        around.view.turn(self.partition, Status.REBUILDING)
        around.log.info("partition_rebuilding", partition=name, records=len(span))
        told = around.clock()
        if span:
            async for records in around.transport.read(self.partition, span.start, span.stop):
                restoring.feed(records)
                done = (records.next_offset - span.start) / len(span)
                around.view.part(self.partition).progress = done
                if around.clock() - told > 2:
                    told = around.clock()
                    around.log.info("partition_rebuilding", partition=name, done=round(done, 3))
                await asyncio.sleep(0)
        return restoring.finish()

    async def _wait_for_reason(self, work: PartitionWork) -> bool:
        """Wait until there is something to commit; False when drained."""
        settings = self._around.settings
        while True:
            self._check()
            if work.urgent:
                return True
            if self._draining:
                return False
            self._stirred.clear()
            try:
                async with asyncio.timeout(settings.idle_commit_seconds):
                    await self._stirred.wait()
            except TimeoutError:
                self._watch(work)
                if work.behind:
                    return True

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _watch(self, work: PartitionWork) -> None:
        """A consumer can stall in silence: lag without progress is a lost transport."""
        transport, part = self._around.transport, self._around.view.part(self.partition)
        part.end_offset = transport.end_offset(self.partition)
        part.first_offset = transport.first_offset(self.partition)
        silent = self._around.clock() - self._heard_at
        lagging = part.end_offset is not None and part.end_offset > work.engine.position
        if not lagging:
            self._heard_at = self._around.clock()
        elif silent > self._around.settings.stall_seconds:
            raise TransportLost(
                complaint(
                    f"partition {self.partition}",
                    "input does not come although there is some",
                    expected=f"records within {self._around.settings.stall_seconds} s",
                    got=f"none for {silent:.0f} s",
                )
            )

    async def _commit(self, work: PartitionWork) -> None:
        around, clock = self._around, self._around.clock
        begun = clock()
        cut = work.cut(now=begun, pace=around.settings.pace)
        await around.transport.commit(self.partition, cut.commit)
        ended = clock()
        around.observe("commit", ended - begun)
        refused = work.keys_refused + work.engine.slots_refused
        around.view.committed(self.partition, cut, keys_refused=refused, now=ended)
        part = around.view.part(self.partition)
        part.end_offset = around.transport.end_offset(self.partition)
        part.first_offset = around.transport.first_offset(self.partition)
        left = around.settings.commit_seconds - (ended - begun)
        if left > 0 and not self._draining:
            await asyncio.sleep(left)


def _where(error: BaseException) -> str:
    """The place an error was raised at, without what it was about."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "unknown"
    return f"{trace.tb_frame.f_globals.get('__name__', '?')}:{trace.tb_lineno}"


def total_waiting(workers: Sequence[Worker]) -> int:
    """Records that were read for some workers but not applied."""
    return sum(worker.waiting for worker in workers)
