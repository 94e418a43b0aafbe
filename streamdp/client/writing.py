"""Writes records to one topic in the background: a queue, a task and a producer.

1. `put` never waits. Records are written in their order, a thousand at a time; with each call the
   producer answers when they are durable.
2. A record is written at most once. If a broker's answer does not come within the producer's own
   retries, the batch is given up and counted as lost, never sent again. If nothing was sent yet,
   because no broker answers, the batch waits and is tried again.
3. A full queue refuses records and counts them.
4. `silent_seconds` says how long the log has acknowledged nothing of what it was given. Some
   seconds after the last attempt nobody knows any more, so a caller may try again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from streamdp.core.errors import StreamdpError, Unreached
from streamdp.ports import Headers, Key, Producer, Value

Record = tuple[Key, Value, Headers]

_BATCH = 1000  # records handed to the producer at once
_KNOWN_SECONDS = 5.0  # how long a failed attempt says that the log is silent

_logger = logging.getLogger("streamdp.client")


@dataclass(frozen=True, slots=True)
class WritingCondition:
    """The state of one topic's writing. That of outcomes is NOT PRIVATE: they are clicks."""

    waiting: int
    written: int
    lost: int  # given up, or refused because too many waited
    trouble: str  # why the newest one was lost, or waits


class Queued(NamedTuple):
    """A record that waits, and who is called when it is durable (True) or given up (False)."""

    record: Record
    settled: Callable[[bool], None] | None = None


class TopicWriter:
    """The records of one topic that wait to be written. `put` may be called from any thread."""

    def __init__(
        self,
        topic: str,
        producer: Callable[[], Producer],
        *,
        most_waiting: int,
        pause: float,
        silent: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic, self._open = topic, producer
        self._most_waiting, self._pause = most_waiting, pause
        self._silent = silent  # a log line would show that there was a record
        self._lock = threading.Lock()
        self._waiting: dict[int, Queued] = {}  # by the number of the record, in order
        self._put = self._settled = 0  # records that were queued, and that are done
        self._written = self._lost = 0
        self._trouble = self._said = ""
        self._clock = clock
        self._since: float | None = None  # the first attempt behind the last success
        self._failed_at: float | None = None  # the end of the last attempt; None while one goes on
        self._stirred = asyncio.Event()
        self._moved = asyncio.Event()
        self._events: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def condition(self) -> WritingCondition:
        """The state of the writing."""
        with self._lock:
            waiting = self._put - self._settled
            return WritingCondition(waiting, self._written, self._lost, self._trouble)

    @property
    def silent_seconds(self) -> float:
        """Seconds since the log was given records and has acknowledged none; 0 if it does."""
        with self._lock:
            return self._silent_at(self._clock())

    def _silent_at(self, now: float) -> float:
        known = self._failed_at is None or self._waiting or now - self._failed_at < _KNOWN_SECONDS
        return now - self._since if self._since is not None and known else 0.0

    def begin(self, events: asyncio.AbstractEventLoop) -> None:
        """Start to write."""
        self._events = events
        self._task = events.create_task(self._write(), name=f"writes to {self._topic}")

    def put(self, record: Record, settled: Callable[[bool], None] | None = None) -> int | None:
        """Queue one more record: its number, or None if too many wait.

        `settled` is called in the event loop.
        """
        with self._lock:
            if len(self._waiting) >= self._most_waiting:
                self._lost += 1
                self._trouble = f"topic {self._topic}: {self._most_waiting} records wait already"
                return None
            self._put += 1
            number = self._put
            self._waiting[number] = Queued(record, settled)
            first = len(self._waiting) == 1
        if first and self._events is not None:
            self._events.call_soon_threadsafe(self._stirred.set)
        return number

    def withdraw(self, number: int) -> bool:
        """Take a record back; False if it was handed to the producer, and may be written."""
        with self._lock:
            found = self._waiting.pop(number, None) is not None
            self._settled += found
            return found

    async def flush(self) -> None:
        """Wait until all records that are queued by now are done."""
        goal = self._put
        while self._settled < goal:
            self._moved.clear()
            await self._moved.wait()

    async def end(self, *, within: float) -> None:
        """Write what waits, for at most this time, and stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.flush()
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        with self._lock:
            left = self._put - self._settled
            self._settled, self._lost = self._put, self._lost + left
            self._waiting.clear()

    async def _write(self) -> None:
        """Write batch after batch; replace a producer that has failed."""
        producer: Producer | None = None
        try:
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                while batch := self._take():
                    producer = producer or self._open()
                    if not await self._sent(producer, batch):
                        failed, producer = producer, None
                        await failed.close()
                        await asyncio.sleep(self._pause)
                    else:
                        self._said = ""
        finally:
            if producer is not None:
                await producer.close()

    def _take(self) -> dict[int, Queued]:
        with self._lock:
            numbers = list(islice(self._waiting, _BATCH))
            if numbers:
                now = self._clock()
                self._since = now - self._silent_at(now)
                self._failed_at = None
            return {number: self._waiting.pop(number) for number in numbers}

    def _return(self, batch: dict[int, Queued], trouble: str) -> None:
        """Put a batch back at its place in the order, and log the trouble once."""
        with self._lock:
            self._waiting = batch | self._waiting
            self._trouble, self._failed_at = trouble, self._clock()
        if trouble != self._said and not self._silent:
            _logger.warning("records wait to be written: %s", trouble)
        self._said = trouble

    async def _sent(self, producer: Producer, batch: dict[int, Queued]) -> bool:
        """Write a batch; return whether it succeeded. If nothing was sent, it waits again."""
        records = [(queued.record[0], queued.record[1]) for queued in batch.values()]
        headers = [queued.record[2] for queued in batch.values()]
        trouble = ""
        try:
            await producer.send(self._topic, records, headers=headers)
        except Unreached as error:
            self._return(batch, str(error))
            return False
        except StreamdpError as error:
            trouble = str(error)
        except Exception as error:  # another library's error
            trouble = f"topic {self._topic}: {type(error).__name__}"
        with self._lock:
            self._settled += len(batch)
            if trouble:
                self._lost, self._trouble = self._lost + len(batch), trouble
                self._failed_at = self._clock()
            else:
                self._written += len(batch)
                self._since = None
        self._moved.set()
        for queued in batch.values():
            if queued.settled is not None:
                queued.settled(not trouble)
        if trouble and not self._silent:
            _logger.warning("records were not written: %s", trouble)
        return not trouble
