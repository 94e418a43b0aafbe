"""Published lines for tests, and readers of them that fail when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction

from msgspec import UNSET, UnsetType

from streamdp.core.events import ACTION, OPENING
from streamdp.core.releases import Identity, Release
from streamdp.ports import Key, Published, StreamTopics
from streamdp.wire.lines import ACTION_SCHEMA, ROOM_SCHEMA, ListLine
from streamdp.wire.published import Lines, encode_list
from tests.support.streams import spec

HOME = StreamTopics("shop", "home", "home-losses")
LINES = spec().lines


def release(
    key: Key,
    value: int,
    *,
    block: int = 0,
    stop: int = 1,
    start: int = 1,
    partition: int = 0,
    epoch: int = 1,
    born: int = 0,
    kind: str = "",
    epsilon: str = "1/2",
) -> Release:
    """A release of the stream `home`."""
    name = kind or (ACTION if block else OPENING)
    return Release(
        Identity("home", partition, key, epoch, born, block, name),
        numbers=(value,),
        start=start,
        stop=stop,
        epsilon=Fraction(0) if name == OPENING else Fraction(epsilon),
        first_offset=born,
        last_offset=born + stop - 1,
    )


def action(of: Release, *, offset: int = 0, lines: Lines = LINES) -> Published:
    """A record of the actions topic."""
    value = lines.action(of)
    assert value is not None
    return Published(of.identity.partition, offset, of.key, value)


def list_record(
    ordinal: int,
    mode: str = "live",
    *,
    paused: Sequence[str] = (),
    actions: Sequence[str] = LINES.actions,
    epoch: int | UnsetType = UNSET,
    removed: Sequence[str] = (),
) -> Published:
    """A record of the catalogue; in an epoch, with names that were added there."""
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    line = ListLine(
        schema=ACTION_SCHEMA if epoch is UNSET else ROOM_SCHEMA,
        stream="home", ordinal=ordinal, at=at, mode=mode, actions=list(actions),
        paused=[*paused, *removed], removed=list(removed) or UNSET, epoch=epoch,
    )  # fmt: skip
    return Published(0, 0, None, encode_list(line))


def charge(of: Release, *, offset: int = 0, ordinal: int = 1, lines: Lines = LINES) -> Published:
    """A record of the ledger topic."""
    value = lines.ledger(of, ordinal=ordinal)
    return Published(of.identity.partition, offset, of.key, value)


@dataclass
class Topic:
    """Published records that readers follow; `fail` makes every reader raise."""

    records: list[Published] = field(default_factory=list)
    readers: int = 0
    newest: int | None = None  # how much of it the latest reader wanted
    error: Exception | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, *records: Published) -> None:
        """Append, and wake readers."""
        self.records += [
            replace(record, offset=len(self.records) + at) for at, record in enumerate(records)
        ]
        self._ring()

    def fail(self, error: Exception | None) -> None:
        """From now on readers raise this, or (None) read again."""
        self.error = error
        self._ring()

    def _ring(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def follow(self, *, follow: bool) -> AsyncIterator[Sequence[Published]]:
        """What there is, an empty batch, what comes."""
        self.readers += 1
        seen, caught_up = 0, False
        while True:
            changed = self.changed
            if self.error is not None:
                raise self.error
            if seen < len(self.records):
                batch, seen = self.records[seen:], len(self.records)
                yield batch
            elif not caught_up:
                caught_up = True
                if not follow:
                    return
                yield ()
            else:
                await changed.wait()


@dataclass
class Reader:
    """A `Publications` over an actions topic and a ledger, and maybe a catalogue."""

    of_actions: Topic
    of_ledger: Topic
    closed: Callable[[], None] = lambda: None
    of_lists: Topic = field(default_factory=Topic)

    def actions(self, stream: StreamTopics, *, follow: bool) -> AsyncIterator[Sequence[Published]]:
        """The actions, whatever the stream."""
        return self.of_actions.follow(follow=follow)

    def catalogue(
        self, stream: StreamTopics, *, follow: bool
    ) -> AsyncIterator[Sequence[Published]]:
        """The lists, whatever the stream."""
        return self.of_lists.follow(follow=follow)

    def ledger(
        self, stream: StreamTopics, *, follow: bool, newest: int | None = None
    ) -> AsyncIterator[Sequence[Published]]:
        """The ledger, whatever the stream, and all of it: there is little."""
        self.of_ledger.newest = newest
        return self.of_ledger.follow(follow=follow)

    async def ledgers(self, app: str) -> Sequence[StreamTopics]:
        """The one stream that these topics are of."""
        return [replace(HOME, app=app, input="")]

    async def close(self) -> None:
        """Tell that it was closed."""
        self.closed()
