"""What the public listener knows: the published topics and the newest snapshot of the learning."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from streamdp.client import ActionsCache
from streamdp.client.following import RETRIES, Followers, follow
from streamdp.ports import Publications, Published, StreamTopics
from streamdp.service.about import About
from streamdp.service.history import NEWEST_LINES, StreamHistory
from streamdp.service.metrics import Facts
from streamdp.service.status import ProcessStatus
from streamdp.service.traffic import Traffic
from streamdp.service.view import Reason

Clock = Callable[[], float]

SILENT_SECONDS = 60.0
"""A learning process that has sent no snapshot for so many seconds counts as hung."""

_OF_CONFIGURATION = {Reason.MISMATCH, Reason.CONFIG}


class Role(StrEnum):
    """What the process behind this listener does."""

    LEARNS = "learns"
    SERVES = "serves"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The size of the knowledge, and the age from which it is not used."""

    most_keys: int = 1_000_000
    stale_after: float | None = None


class Knowledge:
    """The data that answers are made from."""

    def __init__(
        self,
        about: Sequence[About],
        publications: Callable[[], Publications],
        *,
        role: Role,
        bounds: Bounds,
        assemblies: Mapping[str, int] = {},
        clock: Clock = time.monotonic,
        retries: Sequence[float] = RETRIES,
    ) -> None:
        self.about = {stream.name: stream for stream in about}
        self.role = role
        self.assemblies = assemblies
        self.cache = ActionsCache(
            publications,
            [stream.source for stream in about],
            most_keys=bounds.most_keys,
            stale_after=bounds.stale_after,
            ready_within=0.0,  # `why_not_ready` covers loading
            clock=clock,
            retries=retries,
        )
        self.histories = {
            stream.name: StreamHistory(scales=stream.scales, actions=len(stream.learner.actions))
            for stream in about
        }
        self.process: ProcessStatus | None = None
        self.traffic = Traffic()
        self._heard_at = clock()
        self._clock = clock
        self._publications = publications
        self._retries = retries

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the topics for as long as the block lasts."""
        followers = Followers()
        try:
            for stream in self.about.values():
                name = f"topic {stream.topics.ledger}"
                following = follow(
                    self._publications,
                    partial(_ledger, stream.topics),
                    self.histories[stream.name],
                    name=name,
                    retries=self._retries,
                )
                followers.start(following, name=name)
            async with self.cache:
                yield
        finally:
            await followers.stop()

    def hear(self, snapshot: bytes) -> None:
        """Take in a snapshot of the learning process."""
        self.process = ProcessStatus.decode(snapshot)
        self._heard_at = self._clock()

    @property
    def silent_seconds(self) -> float:
        """Seconds since the learning process last sent a snapshot; 0 where nothing is learned."""
        return 0.0 if self.role is Role.SERVES else self._clock() - self._heard_at

    @property
    def is_alive(self) -> bool:
        """Whether the process can go on without a restart."""
        return self.silent_seconds < SILENT_SECONDS

    def why_not_ready(self) -> list[str]:
        """The reasons why this process is not ready for requests; empty if it is.

        A process is ready once it answers for every key and has taken every partition that it was
        given at first, so a roll-out waits for that. A partition that it takes later, or loses with
        the transport, does not make it unready: it answers from what is published. A partition that
        halts because another configuration made its state does: such a roll-out must stop.
        """
        missing = [] if self.cache.is_ready else ["the published actions are being loaded"]
        if self.role is Role.LEARNS:
            missing += self._not_learning()
        if not self.is_alive:
            missing.append("the learning process is silent")
        return missing

    def _not_learning(self) -> list[str]:
        if self.process is None:
            return ["the learning process has not started"]
        waiting = [] if self.process.begun else self.process.not_begun()
        return waiting + [
            f"{stream.name}/{part.number} is halted by this configuration"
            for stream in self.process.work
            for part in stream.partitions
            if part.reason in _OF_CONFIGURATION
        ]

    def halted(self) -> list[str]:
        """The halted partitions and their reasons; their published actions stay in force."""
        streams = [] if self.process is None else self.process.work
        return [
            f"{stream.name}/{part.number}: {part.reason}: {part.message}"
            for stream in streams
            for part in stream.partitions
            if part.reason is not None
        ]

    def away(self) -> list[str]:
        """The partitions that are being taken, also by a process that stays ready meanwhile."""
        return [] if self.process is None else self.process.away()

    def facts(self) -> Facts:
        """The facts of the metrics page."""
        return Facts(
            about=list(self.about.values()),
            process=self.process,
            shown={name: history.shown for name, history in self.histories.items()},
            conditions={name: self.cache.condition(name) for name in self.about},
            traffic=self.traffic,
            assemblies=self.assemblies,
        )


def _ledger(topics: StreamTopics, publications: Publications) -> AsyncIterator[Sequence[Published]]:
    return publications.ledger(topics, follow=True, newest=NEWEST_LINES)
