"""Writes requests (what was shown) and outcomes (what came of it), for `streamdp.assembly`.

    with ActionsCache(kafka.publications, [source]) as actions:
        with Loop(kafka.producer, actions, stream="banners", topics=TOPICS) as loop:
            shown = loop.choose(b"fr")           # draws, and writes the request
            ...                                  # show shown.action; wait for the visitor
            loop.outcome(shown, 1)               # writes the outcome

`async with` is the same in a program with an event loop. Rules:

1. Only `flush` waits. Records are queued and written in the background (`client.writing`).
2. Requests and outcomes have a queue, a task and a producer each. The number of outcomes and the
   state of their writing do not affect requests: requests are public, outcomes are not.
3. A record is written at most once: a second copy of a request would take a slot of its own, and a
   second outcome would count twice under `SUM`. What is lost is counted in `condition`; what is
   shown never depends on it.
4. A value that cannot be an outcome is refused by the call, and never written.

A request is its record's key (the learner's) with an id. The writer of the outcome, in this process
or another, needs both: `Request(key, id)`.

| header of a request | holds |
|---|---|
| `streamdp-request` | the id; outcomes have it too |
| `streamdp-action` | the action that was shown |
| `streamdp-context` | the levels of its fields, in a stream with public contexts |
| `pscore` | the probability of the draw, decimal text |
| `streamdp-filter` | the digest of the actions that were left, where list or request exclude some |
| `streamdp-list` | the ordinal of the stream's list, if it has one |
| `streamdp-release` | partition/epoch/born/block of the release behind it, then the ordinal of |
| | the list that it follows, if it follows one; none for a fallback |
| `streamdp-person` | who was shown it, where a cap is configured |

Where contexts are private (`played = "value"`), action, context and probability stand in the
request's content instead, which has one length; its headers say nothing of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from uuid import uuid4

from msgspec import Struct

from streamdp.assembly.contents import Asked, Reward, Said
from streamdp.assembly.public import (
    FILTER_HEADER,
    LIST_HEADER,
    PERSON_HEADER,
    PROPENSITY_HEADER,
    REQUEST_HEADER,
)
from streamdp.client.answers import Answer, Chooser, Context, Protected
from streamdp.client.arguments import checked_count, checked_key, checked_seconds, id_bytes
from streamdp.client.threaded import InThread
from streamdp.client.writing import Record, TopicWriter, WritingCondition
from streamdp.core.errors import InvalidConfig
from streamdp.ports import Key, Producer
from streamdp.wire.feedback import ACTION_HEADER, CONTEXT_HEADER

RELEASE_HEADER = "streamdp-release"
MOST_WAITING = 100_000
"""Records of a topic that wait to be written; further ones are refused and counted."""

_PAUSE_SECONDS = 1.0  # after a batch that was given up
_FLUSH_SECONDS = 30.0
_CLOSE_SECONDS = 10.0  # to write what still waits at the end


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

    >>> from streamdp.client.answers import Why
    >>> shown = Answer("grid", Why.PUBLISHED, 0, 1, 7, 3, probability=0.25)
    >>> request_record(Request(b"fr", "r1"), choice=shown)
    ... # doctest: +NORMALIZE_WHITESPACE
    (b'fr', None, [('streamdp-request', b'r1'), ('streamdp-action', b'grid'), ('pscore', b'0.25'),
     ('streamdp-release', b'0/1/7/3')])
    """
    headers: list[tuple[str, bytes | None]] = [(REQUEST_HEADER, id_bytes(request.id, "request"))]
    value = None if content is None else content.encode()
    if choice is not None:
        if isinstance(choice.context, Protected):
            if content is not None:
                raise InvalidConfig(
                    "request",
                    "has its choice as its content",
                    expected="no other content where contexts are private",
                    got=type(content).__name__,
                )
            value = choice.context.content(choice)
        else:
            headers.append((ACTION_HEADER, choice.action.encode()))
            if choice.context:
                headers.append((CONTEXT_HEADER, choice.context.encode()))
            headers.append((PROPENSITY_HEADER, repr(choice.probability).encode()))
            if choice.filter:
                headers.append((FILTER_HEADER, choice.filter.encode()))
        if choice.list:
            headers.append((LIST_HEADER, b"%d" % choice.list))
        if choice.partition >= 0:  # `why` may depend on what a private request excludes
            release = [choice.partition, choice.epoch, choice.born, choice.block]
            release += [choice.computed_under] * bool(choice.computed_under)
            headers.append((RELEASE_HEADER, b"/".join(b"%d" % part for part in release)))
    if person is not None:
        headers.append((PERSON_HEADER, id_bytes(person, "person")))
    return checked_key(request.key), value, headers


def outcome_record(request: Request, said: Said | float, *, most: float | None = None) -> Record:
    """An outcome as its record; a bare number is a reward, of a stream with this `most`.

    >>> outcome_record(Request(b"fr", "r1"), 1)
    (b'fr', b'{"reward":1.0}', [('streamdp-request', b'r1')])
    """
    content = said if isinstance(said, Said) else Reward(said, most)
    return (
        checked_key(request.key),
        content.encode(),
        [(REQUEST_HEADER, id_bytes(request.id, "request"))],
    )


class Loop:
    """Draws actions, and writes requests and outcomes. May be called from any thread.

    `most`: the largest reward that counts, if the stream's table says one; rewards are then in its
    unit.
    """

    def __init__(
        self,
        producer: Callable[[], Producer],
        actions: Chooser | None = None,
        *,
        stream: str = "",
        topics: LoopTopics,
        most: float | None = None,
        most_waiting: int = MOST_WAITING,
        pause: float = _PAUSE_SECONDS,
        close_within: float = _CLOSE_SECONDS,
    ) -> None:
        checked_count("most_waiting", most_waiting)
        checked_seconds("pause", pause)
        checked_seconds("close_within", close_within)
        self._actions, self._stream, self._most = actions, stream, most
        self._close_within = close_within
        self._requests, self._outcomes = (
            TopicWriter(topic, producer, most_waiting=most_waiting, pause=pause) for topic in topics
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

    def choose(
        self,
        key: Key,
        *,
        request: str | None = None,
        person: str | None = None,
        context: Context | None = None,
        exclude: Collection[str] = (),
    ) -> Shown:
        """Draw the action to show for a key and a context, and write that it is shown.

        A context in a header is public for good, and so are exclusions: their digest stands in a
        header. Where contexts are private neither leaves the content.

        Without an id the request gets a fresh random one. A call with the id of an earlier request
        shows it again, which the join takes for a repetition: keep the first result.
        """
        if self._actions is None:
            raise InvalidConfig(
                "choose",
                "nothing to draw actions from",
                expected="`actions`, such as an `ActionsCache`",
                got=None,
            )
        asked = Request(key, uuid4().hex if request is None else request)
        id_bytes(asked.id, "request")
        given: dict[str, Any] = {} if context is None else {"context": context}
        if exclude:
            given["exclude"] = exclude
        choice = self._actions.choose(self._stream, key, asked.id, **given)
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
        self._put(self._outcomes, outcome_record(request, said, most=self._most))

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
                "flush", "would wait for itself", expected=expected, got="its own loop"
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

    def _put(self, queue: TopicWriter, record: Record) -> None:
        self._opened()
        queue.put(record)

    def _opened(self) -> asyncio.AbstractEventLoop:
        if self._events is None:
            expected = "`with Loop(…)` or `async with Loop(…)`"
            raise InvalidConfig(
                "loop", "is not open", expected=expected, got="a call before or after"
            )
        return self._events


def _current_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if one runs."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None
