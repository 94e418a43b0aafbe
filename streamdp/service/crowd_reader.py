"""Follows what partitions have told each other, beside the work of a process.

One task for each stream whose crowd reaches across partitions follows the stream's crowd topic: all
partitions, this process's own included. Workers are given each partition's newest snapshot before
they apply a batch; the engine adopts it when it makes a prior.

Nothing waits for this task, and no failure of it stops anything:

1. While the topic cannot be read, partitions go on with what they have adopted; the log and the
   view say so (`crowd_unread`). Reading is tried again for ever, whatever the error was: a reader
   that stopped silently would leave the crowd on old snapshots (`client.following`).
2. A record that is no snapshot, of another stream or configuration, or out of bounds is refused
   and counted; the log says which partition it claims to be of and what is wrong with it. So is a
   record that breaks the reader itself: it would break it again each time that the topic is read.
   A refused record never replaces an earlier snapshot.
3. A topic may still have older snapshots of a partition, and each reading begins at the oldest. So
   what is read counts from the end of the topic on: an older snapshot never replaces a newer one.
   (Not the snapshot of the greatest number: a forged one would stay for ever.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from streamdp.client.following import Followers, follow
from streamdp.core.errors import StreamdpError
from streamdp.core.evidence.adoption import CrowdSnapshot
from streamdp.ports import Publications, Published, StreamTopics
from streamdp.service.life import EventLog, where_raised
from streamdp.service.settings import LoopSettings
from streamdp.service.spec import StreamSpec
from streamdp.service.view import StreamView, View
from streamdp.wire.snapshots import read_snapshot

_MOST_LOGGED = 10
"""Refused records of a stream that are logged one by one; all of them are counted."""


async def at_once() -> None:
    """Wait for nothing."""


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
        self._newest: dict[str, dict[int, CrowdSnapshot]] = {s.name: {} for s in self._specs}
        self._followers = Followers()

    def newest(self, stream: str) -> Iterable[CrowdSnapshot]:
        """The newest snapshot of each partition that was read."""
        return self._newest.get(stream, {}).values()

    async def __aenter__(self) -> CrowdReader:
        """Begin to read."""
        for spec in self._specs:
            self._followers.start(self._follow(spec), name=f"crowd of {spec.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop reading."""
        await self._followers.stop()

    async def _follow(self, spec: StreamSpec) -> None:
        """Read for ever, and try again after a failure."""
        await self._begin()
        await follow(
            self._publications,
            partial(_snapshots, spec.topics),
            _Listening(
                self, spec, self._newest[spec.name], self._view.streams[spec.name], self._log
            ),
            name=f"topic {spec.topics.snapshots}",
            retries=self._settings.retry_seconds,
        )

    def read(
        self, spec: StreamSpec, batch: Sequence[Published], into: dict[int, CrowdSnapshot]
    ) -> None:
        """Keep the newest valid snapshot of each partition."""
        for record in batch:
            try:
                snapshot = read_snapshot(
                    record.value or b"", lines=spec.lines, partition=record.partition
                )
            except Exception as error:  # others wrote it
                self._refuse(spec, record, error)
            else:
                into[record.partition] = snapshot

    def _refuse(self, spec: StreamSpec, record: Published, error: Exception) -> None:
        part = self._view.streams[spec.name]
        part.snapshots_refused += 1
        if part.snapshots_refused <= _MOST_LOGGED:
            self._log.warning(
                "snapshot_refused",
                partition=f"{spec.name}/{record.partition}",
                offset=record.offset,
                **_told(error),
            )


@dataclass(slots=True)
class _Listening:
    """Listens to the crowd topic of one stream."""

    reader: CrowdReader
    spec: StreamSpec
    newest: dict[int, CrowdSnapshot]  # those that count
    part: StreamView
    log: EventLog
    into: dict[int, CrowdSnapshot] = field(default_factory=dict)  # where to read them into

    def began(self) -> None:
        """Reading begins at the oldest record; snapshots that were read before still count."""
        self.into = {}

    def heard(self, batch: Sequence[Published]) -> None:
        """Read a batch of snapshots."""
        self.reader.read(self.spec, batch, self.into)

    def current(self) -> None:
        """The end of the topic was reached: what was read counts, and so does what comes."""
        self.newest.update(self.into)
        self.into = self.newest
        self.part.crowd_unread = False

    def lost(self, error: Exception) -> None:
        """The topic is opened again; partitions go on with what they have adopted."""
        self.part.crowd_unread = True
        self.log.warning("crowd_unread", stream=self.spec.name, **_told(error))


def _snapshots(
    topics: StreamTopics, publications: Publications
) -> AsyncIterator[Sequence[Published]]:
    return publications.snapshots(topics, follow=True)


def _told(error: Exception) -> dict[str, str]:
    """What the log says of an error: nothing but its kind and place where nobody foresaw it."""
    if isinstance(error, StreamdpError):
        return {"detail": str(error)}
    return {"detail": type(error).__name__, "where": where_raised(error)}
