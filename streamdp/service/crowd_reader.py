"""What partitions have told each other, read beside the work of a process.

One task for each stream whose crowd reaches across partitions follows the stream's crowd topic (of
all partitions, this process's own too: what is told comes back as others see it). Workers are given
the newest snapshot of each partition before they apply a batch; the engine adopts it when it makes
a prior.

Nothing waits for this, and nothing stops by it: where the topic cannot be read, partitions go on
with what they have adopted, and the log says so. A record that is no snapshot, of another stream or
configuration, or out of bounds is refused and counted; the log says which partition it claims to be
of and what is wrong. It never takes the place of what was told before it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from streamdp.core.errors import StateMismatch, StreamdpError
from streamdp.core.evidence.adoption import CrowdSnapshot
from streamdp.ports import Publications, Published
from streamdp.service.life import EventLog
from streamdp.service.settings import LoopSettings
from streamdp.service.spec import StreamSpec
from streamdp.service.view import View
from streamdp.wire.snapshots import read_snapshot

_MOST_LOGGED = 10
"""Refused records of a stream that the log tells of one by one; all of them are counted."""


async def at_once() -> None:
    """There is nothing to wait for."""


class CrowdReader:
    """The newest snapshots of the streams of one process."""

    def __init__(
        self,
        specs: Sequence[StreamSpec],
        publications: Callable[[], Publications],
        *,
        view: View,
        log: EventLog,
        settings: LoopSettings,
        begin: Callable[[], Awaitable[object]] = at_once,
    ) -> None:
        """`begin`: what to wait for first, such as that the transport has made its files."""
        self._specs = [spec for spec in specs if spec.reaches]
        self._publications = publications
        self._view = view
        self._log = log
        self._settings = settings
        self._begin = begin
        self._newest: defaultdict[str, dict[int, CrowdSnapshot]] = defaultdict(dict)
        self._tasks: list[asyncio.Task[None]] = []

    def newest(self, stream: str) -> Iterable[CrowdSnapshot]:
        """The newest snapshot of each partition, as far as it was heard."""
        return self._newest[stream].values() if stream in self._newest else ()

    async def __aenter__(self) -> CrowdReader:
        """Begin to read."""
        for spec in self._specs:
            name = f"crowd of {spec.name}"
            self._tasks.append(asyncio.create_task(self._follow(spec), name=name))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Read no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, spec: StreamSpec) -> None:
        """Read for ever; what fails is tried again."""
        attempt, waits = 0, self._settings.retry_seconds
        await self._begin()
        while True:
            publications = self._publications()
            try:
                async for batch in self._batches(spec, publications):
                    attempt = 0
                    self.read(spec, batch)
            except StreamdpError as error:
                seconds = waits[min(attempt, len(waits) - 1)]
                attempt += 1
                self._log.warning(
                    "crowd_unread", stream=spec.name, detail=str(error), retry_in=seconds
                )
                await asyncio.sleep(seconds)
            finally:
                await publications.close()
            await asyncio.sleep(0)

    def _batches(
        self, spec: StreamSpec, publications: Publications
    ) -> AsyncIterator[Sequence[Published]]:
        return publications.snapshots(spec.topics, follow=True)

    def read(self, spec: StreamSpec, batch: Sequence[Published]) -> None:
        """Keep the newest of each partition that can be one."""
        part = self._view.streams[spec.name]
        for record in batch:
            try:
                snapshot = read_snapshot(
                    record.value or b"", lines=spec.lines, partition=record.partition
                )
            except StateMismatch as error:
                part.snapshots_refused += 1
                if part.snapshots_refused <= _MOST_LOGGED:
                    self._log.warning(
                        "snapshot_refused",
                        partition=f"{spec.name}/{record.partition}",
                        offset=record.offset,
                        detail=str(error),
                    )
                continue
            self._newest[spec.name][record.partition] = snapshot
