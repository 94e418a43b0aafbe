"""Writes requests (what was shown) and outcomes (what came of it), for `streamdp.assembly`.

    with ActionsCache(kafka.publications, [source]) as actions:
        with Loop(kafka.producer, actions, stream="banners", topics=TOPICS) as loop:
            shown = loop.choose(b"fr")           # draws, and writes the request
            ...                                  # show shown.action; wait for the visitor
            loop.outcome(shown, 1)               # writes the outcome

`async with` is the same in a program with an event loop. Rules:

1. Only `flush` waits. Records are queued and written in the background, in the order of their
   topic, a thousand at a time.
2. Requests and outcomes have a queue, a task and a producer each. The number of outcomes and the
   state of their writing do not affect requests: requests are public, outcomes are not.
3. A record is written at most once. If a broker's answer does not come within the producer's own
   retries, the batch is given up and counted in `condition`, never sent again: a second copy of a
   request would take a slot of its own, and a second outcome would count twice under `SUM`. If
   nothing was sent yet, because no broker answers, the batch waits and is tried again.
4. A full queue refuses records and counts them. What is shown never depends on this.
5. A value that cannot be an outcome is refused by the call, and never written.

A request is its record's key (the learner's) with an id. The writer of the outcome, in this process
or another, needs both: `Request(key, id)`.

| header of a request | holds |
|---|---|
| `streamdp-request` | the id; outcomes have it too |
| `streamdp-action` | the action that was shown |
| `pscore` | the probability of the draw, decimal text |
| `streamdp-release` | partition/epoch/born/block of the release behind it; none for a fallback |
| `streamdp-person` | who was shown it, where a cap is configured |
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Self
from uuid import uuid4

from msgspec import Struct

from streamdp.assembly.contents import Asked, Reward, Said
from streamdp.assembly.public import PERSON_HEADER, REQUEST_HEADER
from streamdp.client.answers import Answer, Chooser, Why
from streamdp.client.arguments import checked_count, checked_key, checked_seconds, id_bytes
from streamdp.client.threaded import InThread
from streamdp.core.errors import InvalidConfig, StreamdpError, Unreached, complaint
from streamdp.ports import Headers, Key, Producer, Value
from streamdp.wire.feedback import ACTION_HEADER

RELEASE_HEADER = "streamdp-release"
PROPENSITY_HEADER = "pscore"
MOST_WAITING = 100_000
"""Records of a topic that wait to be written; further ones are refused and counted."""

_BATCH = 1000  # records handed to the producer at once
_PAUSE_SECONDS = 1.0  # after a batch that was given up
_FLUSH_SECONDS = 30.0
_CLOSE_SECONDS = 10.0  # to write what still waits at the end

_logger = logging.getLogger("streamdp.client")

Record = tuple[Key, Value, Headers]


class Request(NamedTuple):
    """Names the request that an outcome belongs to."""

    key: Key  # the learner's: the record key of request and outcome
    id: str


class Shown(Struct, frozen=True):
    """A request with its answer: what to show, and what the outcome needs."""

    request: Request
    choice: Answer

    @property
    def action(self) -> str:
        """What to show."""
        return self.choice.action

    @property
    def probability(self) -> float:
        """The probability of the draw."""
        return self.choice.probability


class LoopTopics(NamedTuple):
    """Where requests and outcomes are written."""

    requests: str
    outcomes: str


@dataclass(frozen=True, slots=True)
class WritingCondition:
    """The state of one topic's writing. That of outcomes is NOT PRIVATE: they are clicks."""

    waiting: int
    written: int
    lost: int  # given up, or refused because too many waited
    trouble: str  # why the newest one was lost, or waits


@dataclass(frozen=True, slots=True)
class LoopCondition:
    """The state of a loop's writing."""

    requests: WritingCondition
    outcomes: WritingCondition


def request_record(
    request: Request,
    *,
    choice: Answer | None = None,
    content: Asked | None = None,
    person: str | None = None,
) -> Record:
    """A request as its record.

    >>> shown = Answer("grid", Why.PUBLISHED, 0, 1, 7, 3, probability=0.25)
    >>> request_record(Request(b"fr", "r1"), choice=shown)
    ... # doctest: +NORMALIZE_WHITESPACE
    (b'fr', None, [('streamdp-request', b'r1'), ('streamdp-action', b'grid'), ('pscore', b'0.25'),
     ('streamdp-release', b'0/1/7/3')])
    """
    headers: list[tuple[str, bytes | None]] = [(REQUEST_HEADER, id_bytes(request.id, "request"))]
    if choice is not None:
        headers.append((ACTION_HEADER, choice.action.encode()))
        headers.append((PROPENSITY_HEADER, repr(choice.probability).encode()))
        if choice.why is Why.PUBLISHED:
            release = choice.partition, choice.epoch, choice.born, choice.block
            headers.append((RELEASE_HEADER, b"%d/%d/%d/%d" % release))
    if person is not None:
        headers.append((PERSON_HEADER, id_bytes(person, "person")))
    return checked_key(request.key), None if content is None else content.encode(), headers


def outcome_record(request: Request, said: Said | float) -> Record:
    """An outcome as its record; a bare number is a reward.

    >>> outcome_record(Request(b"fr", "r1"), 1)
    (b'fr', b'{"reward":1.0}', [('streamdp-request', b'r1')])
    """
    content = said if isinstance(said, Said) else Reward(said)
    return (
        checked_key(request.key),
        content.encode(),
        [(REQUEST_HEADER, id_bytes(request.id, "request"))],
    )


class Loop:
    """Draws actions, and writes requests and outcomes. May be called from any thread."""

    def __init__(
        self,
        producer: Callable[[], Producer],
        actions: Chooser | None = None,
        *,
        stream: str = "",
        topics: LoopTopics,
        most_waiting: int = MOST_WAITING,
        pause: float = _PAUSE_SECONDS,
        close_within: float = _CLOSE_SECONDS,
    ) -> None:
        checked_count("most_waiting", most_waiting)
        checked_seconds("pause", pause)
        checked_seconds("close_within", close_within)
        self._actions, self._stream = actions, stream
        self._close_within = close_within
        self._requests, self._outcomes = (
            _Queue(topic, producer, most_waiting=most_waiting, pause=pause) for topic in topics
        )
        self._events: asyncio.AbstractEventLoop | None = None
        self._thread = InThread(self)

    async def __aenter__(self) -> Self:
        """Begin to write."""
        self._events = asyncio.get_running_loop()
        for queue in (self._requests, self._outcomes):
            queue.begin(self._events)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write what waits, for a bounded time, and end."""
        self._events = None
        queues = self._requests, self._outcomes
        await asyncio.gather(*(queue.end(within=self._close_within) for queue in queues))

    def __enter__(self) -> Self:
        """Like `async with`, in a thread of its own."""
        self._thread.open()
        return self

    def __exit__(self, *_: object) -> None:
        """Like `async with`, in a thread of its own."""
        self._thread.close()

    def choose(self, key: Key, *, request: str | None = None, person: str | None = None) -> Shown:
        """Draw the action to show for a key, and write that it is shown.

        Without an id the request gets a fresh random one. A call with the id of an earlier request
        shows it again, which the join takes for a repetition: keep the first result.
        """
        if self._actions is None:
            raise InvalidConfig(
                complaint(
                    "choose",
                    "nothing to draw actions from",
                    expected="`actions`, such as an `ActionsCache`",
                    got=None,
                )
            )
        asked = Request(key, uuid4().hex if request is None else request)
        id_bytes(asked.id, "request")
        choice = self._actions.choose(self._stream, key, asked.id)
        self.write(asked, choice=choice, person=person)
        return Shown(asked, choice)

    def write(
        self,
        request: Request,
        *,
        choice: Answer | None = None,
        content: Asked | None = None,
        person: str | None = None,
    ) -> None:
        """Write a request that was answered elsewhere: what was shown, and its content."""
        self._put(
            self._requests,
            request_record(request, choice=choice, content=content, person=person),
        )

    def outcome(self, of: Shown | Request, said: Said | float) -> None:
        """Write an outcome of a request, as often as you like: the join combines them."""
        request = of.request if isinstance(of, Shown) else of
        self._put(self._outcomes, outcome_record(request, said))

    @property
    def condition(self) -> LoopCondition:
        """The state of the writing."""
        return LoopCondition(self._requests.condition, self._outcomes.condition)

    def flush(self, within: float = _FLUSH_SECONDS) -> bool:
        """Wait until all queued records are durable or given up; return whether that was in time.

        In an event loop: `await asyncio.to_thread(loop.flush)`.
        """
        events = self._opened()
        if events is _current_loop():
            expected = "another thread: `await asyncio.to_thread(loop.flush)`"
            raise InvalidConfig(
                complaint("flush", "would wait for itself", expected=expected, got="its own loop")
            )
        waiting = asyncio.run_coroutine_threadsafe(self._flushed(), events)
        try:
            waiting.result(within)
        except TimeoutError:
            waiting.cancel()
            return False
        return True

    async def _flushed(self) -> None:
        await asyncio.gather(self._requests.flush(), self._outcomes.flush())

    def _put(self, queue: _Queue, record: Record) -> None:
        self._opened()
        queue.put(record)

    def _opened(self) -> asyncio.AbstractEventLoop:
        if self._events is None:
            expected = "`with Loop(…)` or `async with Loop(…)`"
            raise InvalidConfig(
                complaint("loop", "is not open", expected=expected, got="a call before or after")
            )
        return self._events


class _Queue:
    """The records of one topic that wait to be written."""

    def __init__(
        self, topic: str, producer: Callable[[], Producer], *, most_waiting: int, pause: float
    ) -> None:
        self._topic, self._open = topic, producer
        self._most_waiting, self._pause = most_waiting, pause
        self._lock = threading.Lock()
        self._waiting: deque[Record] = deque()
        self._put = self._settled = 0  # records that were queued, and that are done
        self._written = self._lost = 0
        self._trouble = self._said = ""
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

    def begin(self, events: asyncio.AbstractEventLoop) -> None:
        """Start to write."""
        self._events = events
        self._task = events.create_task(self._write(), name=f"writes to {self._topic}")

    def put(self, record: Record) -> None:
        """Queue one more record, from any thread."""
        with self._lock:
            if len(self._waiting) >= self._most_waiting:
                self._lost += 1
                self._trouble = f"topic {self._topic}: {self._most_waiting} records wait already"
                return
            self._put += 1
            self._waiting.append(record)
            first = len(self._waiting) == 1
        if first and self._events is not None:
            self._events.call_soon_threadsafe(self._stirred.set)

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

    def _take(self) -> Sequence[Record]:
        with self._lock:
            count = min(_BATCH, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]

    def _return(self, batch: Sequence[Record], trouble: str) -> None:
        """Put a batch back at its place in the order, and log the trouble once."""
        with self._lock:
            self._waiting.extendleft(reversed(batch))
            self._trouble = trouble
        if trouble != self._said:
            _logger.warning("records wait to be written: %s", trouble)
        self._said = trouble

    async def _sent(self, producer: Producer, batch: Sequence[Record]) -> bool:
        """Write a batch; return whether it succeeded. If nothing was sent, it waits again."""
        records = [(key, value) for key, value, _ in batch]
        trouble = ""
        try:
            await producer.send(self._topic, records, headers=[pairs for *_, pairs in batch])
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
            else:
                self._written += len(batch)
        self._moved.set()
        if trouble:
            _logger.warning("records were not written: %s", trouble)
        return not trouble


def _current_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if one runs."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None
