"""A cache of published actions, fed by a transport's own readers.

    async with ActionsCache(technology.publications, [Source(topics, fallback="a")]) as cache:
        await cache.ready()
        cache.action("home", b"fr").action

Each stream has a task of its own that reads from the oldest record and then follows. When it loses
its source it says so (`Feed.LOST`), keeps answering, and tries again, a little later each time.
`stale_after` makes answers fall back once the source has been lost for so many seconds.

`action` may be called from any thread. `on_change` is called in the thread of the event loop, once
for each new release of a key, those of the first load included; what it raises is logged and
stops nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from streamdp.client.answers import Answer, Change, Feed, Source, Table, Why
from streamdp.core.errors import InvalidConfig, StreamdpError, TransportLost, complaint
from streamdp.ports import Key, Publications, Published

Clock = Callable[[], float]

RETRIES = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds until a lost source is tried again; the last one repeats."""

_logger = logging.getLogger("streamdp.client")


@dataclass(frozen=True, slots=True)
class Condition:
    """How a cache's knowledge of one stream is."""

    feed: Feed
    stale_seconds: float  # since the source was lost; 0 while it is not
    trouble: str  # why it was lost, in words
    keys: int
    several: int  # keys that live in more than one partition
    beyond: int  # records of keys beyond the limit
    refused: int  # lines that could not be read


@dataclass(slots=True)
class _Followed:
    source: Source
    table: Table
    unknown: Answer
    stale: Answer
    feed: Feed = Feed.LOADING
    loaded: bool = False
    lost_at: float | None = None
    trouble: str = ""
    mend: bool = False  # somebody must mend something before it can go on


class ActionsCache:
    """The actions in force of every key of some streams."""

    def __init__(
        self,
        publications: Callable[[], Publications],
        sources: Iterable[Source],
        *,
        most_keys: int = 1_000_000,
        stale_after: float | None = None,
        on_change: Callable[[Change], None] | None = None,
        retries: Sequence[float] = RETRIES,
        clock: Clock = time.monotonic,
    ) -> None:
        self._open = publications
        self._stale_after = stale_after
        self._on_change = on_change
        self._retries = retries
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._moved = asyncio.Event()
        self._streams = {
            source.stream: _Followed(
                source,
                Table(source.stream, source.fallback, most_keys=most_keys),
                Answer(source.fallback, Why.UNKNOWN_KEY),
                Answer(source.fallback, Why.STALE),
            )
            for source in sources
        }

    async def __aenter__(self) -> Self:
        """Begin to follow."""
        loop = asyncio.get_running_loop()
        for name, followed in self._streams.items():
            task = loop.create_task(self._follow(followed), name=f"actions of {name}")
            self._tasks.append(task)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop following; what is known can still be asked for."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    async def ready(self) -> None:
        """Wait until each stream was read to its end once, or raise what the user must mend."""
        while not self.is_ready:
            for followed in self._streams.values():
                if followed.mend:
                    raise InvalidConfig(followed.trouble)
            self._moved.clear()
            await self._moved.wait()

    @property
    def is_ready(self) -> bool:
        """Whether each stream was read to its end once."""
        return all(followed.loaded for followed in self._streams.values())

    @property
    def streams(self) -> Sequence[str]:
        """The streams that can be asked for."""
        return list(self._streams)

    def action(self, stream: str, key: Key) -> Answer:
        """What to play for a key, at once."""
        try:
            followed = self._streams[stream]
        except KeyError:
            raise InvalidConfig(unknown_stream(stream, self._streams)) from None
        if (
            self._stale_after is not None
            and followed.lost_at is not None
            and self._clock() - followed.lost_at > self._stale_after
        ):
            return followed.stale
        return followed.table.answers.get(key, followed.unknown)

    def answers(self, stream: str) -> Mapping[Key, Answer]:
        """Every key of a stream and its answer: to read, not to keep."""
        if stream not in self._streams:
            raise InvalidConfig(unknown_stream(stream, self._streams))
        return self._streams[stream].table.answers

    def condition(self, stream: str) -> Condition:
        """How the knowledge of a stream is."""
        if stream not in self._streams:
            raise InvalidConfig(unknown_stream(stream, self._streams))
        followed = self._streams[stream]
        table, lost_at = followed.table, followed.lost_at
        return Condition(
            feed=followed.feed,
            stale_seconds=0.0 if lost_at is None else max(0.0, self._clock() - lost_at),
            trouble=followed.trouble,
            keys=len(table.answers),
            several=table.several,
            beyond=table.beyond,
            refused=table.refused,
        )

    # -- following -------------------------------------------------------------------------------

    async def _follow(self, followed: _Followed) -> None:
        """Read, and begin again after what may pass."""
        attempt = 0
        while True:
            publications = self._open()
            try:
                async for batch in publications.actions(followed.source.topics, follow=True):
                    if not batch:
                        attempt = 0
                        self._turn(followed, Feed.CURRENT)
                    self._take(followed.table, batch)
                    await asyncio.sleep(0)
                raise TransportLost(_ended(followed.source))
            except InvalidConfig as error:
                followed.mend = True
                self._turn(followed, Feed.LOST, trouble=str(error))
            except StreamdpError as error:
                self._turn(followed, Feed.LOST, trouble=str(error))
            except Exception as error:
                _logger.exception("following the actions failed")
                self._turn(followed, Feed.LOST, trouble=type(error).__name__)
            finally:
                with suppress(StreamdpError):
                    await publications.close()
            await asyncio.sleep(self._retries[min(attempt, len(self._retries) - 1)])
            attempt += 1

    def _turn(self, followed: _Followed, feed: Feed, *, trouble: str = "") -> None:
        if feed is Feed.LOST and followed.lost_at is None:
            followed.lost_at = self._clock()
        if feed is Feed.CURRENT:
            followed.loaded, followed.mend, followed.lost_at = True, False, None
        followed.feed, followed.trouble = feed, trouble
        self._moved.set()

    def _take(self, table: Table, batch: Sequence[Published]) -> None:
        told = self._on_change
        for change in table.apply(batch, now=self._clock()):
            if told is not None:
                try:
                    told(change)
                except Exception:
                    _logger.exception("on_change failed")


def unknown_stream(stream: str, known: Iterable[str]) -> str:
    """The message for a stream that nobody follows."""
    return complaint("stream", "unknown", expected=sorted(known), got=repr(stream))


def _ended(source: Source) -> str:
    topic = source.topics.actions
    return complaint(f"topic {topic}", "the reader ended", expected="to follow", got="its end")
