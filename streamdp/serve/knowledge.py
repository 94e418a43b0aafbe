"""What the public listener knows: the published topics."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from streamdp.client import ActionsCache
from streamdp.client.following import RETRIES, Followers, follow
from streamdp.ports import Publications, Published, StreamTopics
from streamdp.serve.about import About
from streamdp.serve.history import NEWEST_LINES, StreamHistory
from streamdp.serve.metrics import PublishedFacts
from streamdp.serve.traffic import Traffic

Clock = Callable[[], float]


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
        bounds: Bounds,
        assemblies: Mapping[str, int] = {},
        clock: Clock = time.monotonic,
        retries: Sequence[float] = RETRIES,
    ) -> None:
        self.about = {stream.name: stream for stream in about}
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
        self.histories = {stream.name: StreamHistory() for stream in about}
        self.traffic = Traffic()
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

    def why_not_ready(self) -> list[str]:
        """The reasons why this process is not ready for requests; empty if it answers for all."""
        return [] if self.cache.is_ready else ["the published actions are being loaded"]

    @property
    def application(self) -> str:
        """The application's name; all streams of a configuration are of one."""
        return next(iter(self.about.values())).topics.app

    def facts(self, *, expires_at: float | None) -> PublishedFacts:
        """The facts of the metrics page."""
        return PublishedFacts(
            about=list(self.about.values()),
            shown={name: history.shown for name, history in self.histories.items()},
            conditions={name: self.cache.condition(name) for name in self.about},
            traffic=self.traffic,
            assemblies=self.assemblies,
            expires_at=expires_at,
        )


def _ledger(topics: StreamTopics, publications: Publications) -> AsyncIterator[Sequence[Published]]:
    return publications.ledger(topics, follow=True, newest=NEWEST_LINES)
