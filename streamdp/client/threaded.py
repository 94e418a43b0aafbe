"""A cache in a thread of its own, for programs without an event loop.

    with cached(technology.publications, [Source(topics, fallback="a")]) as cache:
        cache.action("home", b"fr").action

The look-up is the same as in `ActionsCache`: a dictionary's, with no lock and no thread switch.
`looped` does the same for a `Loop`: its records are written in that thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from streamdp.client.answers import Change, Source
from streamdp.client.cache import ActionsCache, Clock
from streamdp.client.following import RETRIES
from streamdp.client.requests import MOST_WAITING, Chooser, Loop, LoopTopics
from streamdp.client.table import MOST_BYTES
from streamdp.ports import Producer, Publications


@contextmanager
def cached(
    publications: Callable[[], Publications],
    sources: Iterable[Source],
    *,
    ready_within: float = 30.0,
    most_keys: int = 1_000_000,
    most_bytes: int = MOST_BYTES,
    stale_after: float | None = None,
    on_change: Callable[[Change], None] | None = None,
    retries: Sequence[float] = RETRIES,
    clock: Clock = time.monotonic,
) -> Iterator[ActionsCache]:
    """A cache that has read everything once, or has been given `ready_within` seconds to."""

    async def follow(known: Future[ActionsCache], stop: asyncio.Event) -> None:
        try:
            cache = ActionsCache(
                publications,
                sources,
                most_keys=most_keys,
                most_bytes=most_bytes,
                stale_after=stale_after,
                on_change=on_change,
                retries=retries,
                clock=clock,
            )
            async with cache:
                try:
                    async with asyncio.timeout(ready_within):
                        await cache.ready()
                except TimeoutError:
                    pass  # loading goes on; until it is done the fallback action answers
                known.set_result(cache)
                await stop.wait()
        except BaseException as error:
            if known.done():
                raise
            known.set_exception(error)

    with _loop_thread() as loop:
        known: Future[ActionsCache] = Future()
        stop = asyncio.Event()
        running = asyncio.run_coroutine_threadsafe(follow(known, stop), loop)
        try:
            yield known.result()
        finally:
            loop.call_soon_threadsafe(stop.set)
            running.result()


@contextmanager
def looped(
    producer: Callable[[], Producer],
    actions: Chooser | None = None,
    *,
    stream: str = "",
    topics: LoopTopics,
    most_waiting: int = MOST_WAITING,
) -> Iterator[Loop]:
    """A loop that writes in a thread of its own; records that wait at the end are written first."""
    loop = Loop(producer, actions, stream=stream, topics=topics, most_waiting=most_waiting)
    with _loop_thread() as events:
        asyncio.run_coroutine_threadsafe(loop.__aenter__(), events).result()
        try:
            yield loop
        finally:
            asyncio.run_coroutine_threadsafe(loop.__aexit__(), events).result()


@contextmanager
def _loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread while it is needed."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="streamdp-client", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
