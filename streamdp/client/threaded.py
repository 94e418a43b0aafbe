"""Opens a client in a thread of its own, for programs without an event loop.

`with ActionsCache(…)` and `with Loop(…)` are `async with` in an event loop that this thread runs.
Look-ups do not come by here: they are a dictionary's, with no lock and no thread switch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager


class InThread:
    """A client and the thread that it is open in."""

    def __init__(self, client: AbstractAsyncContextManager[object]) -> None:
        self._client = client

    def open(self) -> None:
        """Begin, and open the client; if that fails, nothing goes on."""
        self._begun: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._serve, name="streamdp-client", daemon=True)
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Close the client, and end."""
        try:
            self._run(self._client.__aexit__(None, None, None))
        finally:
            self._end()

    def _run(self, work: Coroutine[object, object, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._begun.result()).result()

    def _serve(self) -> None:
        with asyncio.Runner() as runner:  # which cancels what is left when it ends
            loop = runner.get_loop()
            self._begun.set_result(loop)
            loop.run_forever()

    def _end(self) -> None:
        loop = self._begun.result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
