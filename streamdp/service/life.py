"""The life of one worker with its partition: take it, work, and take it again after some errors.

An error stops only its own partition, except for the last:

1. The outcome of a step is unknown (`TransportLost`): forget everything, take the partition again.
2. Another process has the partition (`Fenced`): stop, and do not touch it any more.
3. State and log contradict each other, a charge is refused, or something unexpected happens: halt
   with a reason, once the transport has confirmed that the partition is still this process's. (A
   process that was frozen may compare what it read before with what a later owner has made of it.)
4. The state is of a later epoch than the configuration (`Superseded`): stand by until the partition
   is revoked or the process ends. In a rolling change of configuration this happens to a process
   that is yet to be restarted. An epoch never goes back, so trying again is no use.
5. The disk is full (`DiskFull`): this concerns all partitions, so the whole process ends.

The work itself is the worker's: learning (`worker`) or joining (`assembling.worker`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from streamdp.core.errors import (
    BudgetExceeded,
    ConfigurationMismatch,
    DiskFull,
    Fenced,
    InvalidConfig,
    Refused,
    StateMismatch,
    StreamdpError,
    Superseded,
    TransportLost,
    Unexpanded,
)
from streamdp.ports import LiveEntries, PairedTransport, Partition, Records, Taken, Transport
from streamdp.service.charges_by_others import ChargesByOthers, ChargesByOthersOf
from streamdp.service.event_log import EventLog, where_raised
from streamdp.service.settings import LoopSettings
from streamdp.service.taking import epochs_of_no_partition, scope
from streamdp.service.view import Reason, Status, View

if TYPE_CHECKING:
    from streamdp.service.assembly_spec import AssemblySpec
    from streamdp.service.spec import StreamSpec

Clock = Callable[[], float]
Observe = Callable[[str, float], None]
"""Receives how long a public step took: its name and seconds."""


def unobserved(step: str, seconds: float) -> None:
    """Nobody asked."""


def wall_clock() -> int:
    """Milliseconds since 1970, as brokers count them."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all workers of a process share."""

    transport: Transport
    by_others: ChargesByOthersOf
    settings: LoopSettings
    view: View
    log: EventLog
    clock: Clock
    observe: Observe
    halted: Callable[[Partition, Reason], None]
    give_up: Callable[[StreamdpError], None]
    heard: Callable[[], float]  # when records last came, of any partition
    now: Callable[[], int]  # milliseconds since 1970


_CALM_SECONDS = 60.0
"""Seconds of work after which a partition's retries start from the first again."""

_REASONS: tuple[tuple[type[StreamdpError], Reason], ...] = (
    (ConfigurationMismatch, Reason.MISMATCH),  # a subclass, so before its base
    (StateMismatch, Reason.STATE),
    (BudgetExceeded, Reason.BUDGET),
    (InvalidConfig, Reason.CONFIG),
)


class Work(Protocol):
    """What a worker has while its partition is taken."""

    def read(self, records: Records, /) -> list[Any]:
        """What must be kept of records until they are absorbed."""
        ...

    def absorb(self, records: list[Any], /) -> None:
        """Take in consecutive records that were read."""
        ...


W = TypeVar("W", bound=Work)


class Life(Generic[W]):
    """Lives with one partition until it is revoked, drained or halted."""

    def __init__(
        self,
        partition: Partition,
        around: Surroundings,
        *,
        live: Callable[[], Awaitable[None]],
        drop: Callable[[], None] = lambda: None,
    ) -> None:
        """`drop`: called when everything is forgotten: it is taken anew, or has another owner."""
        self.partition = partition
        self.work: W | None = None  # None until the partition was taken and restored
        self.inbox: list[Any] = []  # records that were read and not applied
        self.stirred = asyncio.Event()  # a waiting worker should look: records or an end have come
        self.draining = False
        self.failure: BaseException | None = None  # found elsewhere, since the taking began
        self.heard_at = 0.0  # when records last came, or none was expected
        self.paused = False
        self._around = around
        self._live = live
        self._drop = drop
        self._ending = asyncio.Event()  # whoever rests is told to drain

    def fail(self, error: BaseException) -> None:
        """Let the worker raise this error before it uses any input, unless there is one already."""
        self.failure = self.failure or error
        self.stirred.set()

    def deliver(self, records: Records) -> None:
        """Take in records of this partition, in order; a failure is this partition's alone."""
        if self.work is None or self.failure is not None:
            return
        try:
            self.inbox += self.work.read(records)
            self.stamp(records)
        except Exception as error:
            self.fail(error)
        self.heard_at = self._around.clock()

    def apply(self) -> W | None:
        """Apply what was delivered, and return the work; None if there was nothing, or it failed.

        A failure is this partition's alone.
        """
        inbox, self.inbox = self.inbox, []
        if not inbox or self.work is None or self.failure is not None:
            return None
        try:
            self.work.absorb(inbox)
        except Exception as error:
            self.fail(error)
            return None
        self.stirred.set()
        return self.work

    def drain(self) -> None:
        """Let the worker end as soon as everything is durable."""
        self.draining = True
        self.stirred.set()
        self._ending.set()

    async def rest(self, seconds: float) -> None:
        """Wait, but no longer than until told to drain."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    # -- what the worker asks of its transport -----------------------------------------------------

    def taking(self, spec: StreamSpec | AssemblySpec) -> None:
        """Show that the partition is being taken, if the transport can hold what it will write."""
        check_sizes(spec, self._around.transport)
        self._around.view.turn(self.partition, Status.TAKING)
        self._around.log.info("partition_taking", partition=str(self.partition))

    async def take(
        self, spec: StreamSpec | AssemblySpec, *, entries: LiveEntries | None = None
    ) -> tuple[Taken, ChargesByOthers]:
        """What is durable of the partition, and what others have charged its input.

        It shows how far the partition is behind before it works, as far as that is known.
        """
        around, partition = self._around, self.partition
        taken = await around.transport.take(partition, entries=entries)
        unused = epochs_of_no_partition(spec, taken.partitions)
        if unused is not None and partition.number == 0:  # one line for all partitions
            around.log.warning("partition_epochs_unused", stream=spec.name, detail=unused)
        around.view.look_ahead(
            partition, position=taken.group_offset, end=taken.end_offset, now=around.clock()
        )
        return taken, await around.by_others(spec.name, scope(spec, partition, taken))

    def begin(self, work: W, position: int) -> None:
        """Let records come to a partition that was restored."""
        self.work = work
        self.go_on(position)

    def go_on(self, position: int) -> None:
        """Let records come from this position on."""
        self.paused, self.heard_at = False, self._around.clock()
        self._around.transport.resume(self.partition, position)

    def pause(self) -> None:
        """Let no more records come."""
        if not self.paused:
            self.paused = True
            self._around.transport.pause(self.partition)
            self._around.log.info("partition_paused", partition=str(self.partition))

    def resume(self, position: int) -> None:
        """End a pause, if there is one."""
        if self.paused:
            self.go_on(position)
            self._around.log.info("partition_resumed", partition=str(self.partition))

    def look(self) -> None:
        """Note how far the input reaches."""
        known = self._around.transport.last_known(self.partition)
        self._around.view.look(self.partition, known, now=self._around.clock())

    def stamp(self, records: Records) -> None:
        """Compare clocks by records that have come."""
        end, now = self._around.transport.last_known(self.partition).end, self._around.now()
        self._around.view.stamp(self.partition, records, end=end, now=now)

    def check_not_stalled(self, *, position: int) -> None:
        """Raise `TransportLost` if records wait, but none came for long: a stall in silence.

        While the consumer delivers other partitions' records it has not stalled: they take turns.
        """
        around, end = self._around, self._around.transport.last_known(self.partition).end
        if end is None or end <= position or self.paused:
            self.heard_at = around.clock()
        silent = around.clock() - max(self.heard_at, around.heard())
        if silent > around.settings.stall_seconds:
            raise TransportLost(
                f"partition {self.partition}",
                "records wait in the input, but none comes",
                expected=f"records within {around.settings.stall_seconds} s",
                got=f"none for {silent:.0f} s",
            )

    def drained(self) -> None:
        """Show that everything is durable."""
        self._around.view.turn(self.partition, Status.DRAINED)
        self._around.log.info("partition_drained", partition=str(self.partition))

    # -- from the first taking to the end ----------------------------------------------------------

    async def run(self) -> None:
        """Take the partition, work, and end."""
        attempt = 0
        while not self.draining:
            started, self.failure = self._around.clock(), None
            try:
                await self._live_as_owner()
                return
            except Fenced as error:
                self._around.log.warning(
                    "partition_fenced", partition=str(self.partition), detail=str(error)
                )
                self._around.view.forget(self.partition)
                return
            except DiskFull as error:
                self._around.give_up(error)
                return
            except (Superseded, TransportLost) as error:
                ended_by = error
            except Exception as error:
                self._halt(error)
                return
            finally:
                self.work, self.inbox = None, []
                self._drop()
                await self._leave()
            if isinstance(ended_by, Superseded):
                await self._stand_by(ended_by)
                return
            calm = self._around.clock() - started > _CALM_SECONDS
            attempt = 0 if calm else attempt
            await self._pause_before_retry(ended_by, attempt)
            attempt += 1

    async def _leave(self) -> None:
        with suppress(StreamdpError):
            self._around.transport.pause(self.partition)
            await self._around.transport.leave(self.partition)

    async def _stand_by(self, why: Superseded) -> None:
        """Leave the partition alone, and show it, until it is revoked or the process drains."""
        self._around.view.turn(self.partition, Status.WAITING, str(why))
        self._around.log.warning(
            "partition_waiting", partition=str(self.partition), detail=str(why)
        )
        while not self.draining:
            self.stirred.clear()
            await self.stirred.wait()

    async def _pause_before_retry(self, error: TransportLost, attempt: int) -> None:
        waits = self._around.settings.retry_seconds
        seconds = waits[min(attempt, len(waits) - 1)]
        if isinstance(error, Unexpanded):
            self._around.view.turn(self.partition, Status.RETRYING, lacking=error.topic)
        elif isinstance(error, Refused):
            self._around.view.refuse(self.partition, error.named, now=self._around.clock())
        else:
            self._around.view.retry(self.partition, error.kind)
        self._around.log.warning(
            "partition_lost", partition=str(self.partition), detail=str(error), retry_in=seconds
        )
        await self.rest(seconds)

    def _halt(self, error: Exception) -> None:
        """Halt this partition and say why; an unexpected error's text may quote content."""
        reason = next((why for kind, why in _REASONS if isinstance(error, kind)), Reason.INTERNAL)
        message = str(error) if reason is not Reason.INTERNAL else type(error).__name__
        self._around.view.halt(self.partition, reason, message)
        self._around.log.error(
            "partition_halted",
            partition=str(self.partition),
            reason=str(reason),
            detail=message,
            where=where_raised(error),
        )
        self._around.halted(self.partition, reason)

    async def _live_as_owner(self) -> None:
        """Work, and trust an error only if this process still owns the partition."""
        try:
            await self._live()
        except TransportLost:
            raise
        except Exception:
            try:
                await self._around.transport.confirm(self.partition)
            except TransportLost:
                raise
            except Exception:  # noqa: S110  # what the partition halts for says more
                pass
            raise


def check_sizes(spec: StreamSpec | AssemblySpec, transport: Transport) -> None:
    """Refuse values too large for a commit, which would fail for what it drew, and an assembly on a
    transport with one input.

    Sizes are the worst case over all draws, so this says nothing of any draw (P5).
    """
    where = f"{'assemblies' if spec.topics.second_input else 'streams'}.{spec.name}"
    if spec.topics.second_input and not isinstance(transport, PairedTransport):
        kind = type(transport).__name__
        expected = "a transport that pairs them"
        raise InvalidConfig(where, "needs two inputs", expected=expected, got=kind)
    largest = transport.largest_value(spec.name)
    if spec.largest_value > largest:
        raise InvalidConfig(
            where,
            "its largest value does not fit; use fewer actions, or shorter names or keys",
            expected=f"≤ {largest} bytes, what the topics that it writes to take"
            " (Kafka: max.message.bytes; `streamdp topics check` says of which)",
            got=spec.largest_value,
        )
