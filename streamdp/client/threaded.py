"""Opens a client in a thread of its own, for programs without an event loop.

`with ActionsCache(…)` and `with Loop(…)` run their `async with` in an event loop of this thread.
Look-ups do not pass through here: they read a dictionary, with no lock and no thread switch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager


class InThread:
    """A client and the thread in which it is open."""

    def __init__(self, client: AbstractAsyncContextManager[object]) -> None:
        self._client = client

    def open(self) -> None:
        """Start the thread and open the client; on an error stop both."""
        self._begun: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._serve, name="streamdp-client", daemon=True)
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Close the client and end the thread."""
        try:
            self._run(self._client.__aexit__(None, None, None))
        finally:
            self._end()

    def _run(self, work: Coroutine[object, object, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._begun.result()).result()

    def _serve(self) -> None:
        with asyncio.Runner() as runner:  # cancels what is left at its end
            loop = runner.get_loop()
            self._begun.set_result(loop)
            loop.run_forever()

    def _end(self) -> None:
        loop = self._begun.result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
