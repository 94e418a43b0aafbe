"""Counts and durations of a listener's requests.

All of it is public: it depends on who asks and on what was published, never on an event. A duration
runs from a request's complete head to the handing over of its answer to the connection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets; a look-up takes a fifth of a millisecond."""


class RequestKind(StrEnum):
    """The kind of a request, as far as its duration goes."""

    LOOK_UP = "look_up"
    BATCH = "batch"
    OTHER = "other"


class Refusal(StrEnum):
    """Why a connection or a request was refused before the application saw it."""

    SLOW = "slow"  # handshake, head, rest of a body or taking of an answer: the time was over
    CROWDED = "crowded"  # its place was needed, and it was the one that had owed for longest
    BUSY = "busy"  # as many requests as may be are being answered
    UNREADABLE = "unreadable"  # not HTTP, or a head that is too long


@dataclass(slots=True)
class Durations:
    """How many requests took up to each bound of `SECONDS`, and longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.seconds += seconds


@dataclass(slots=True)
class Traffic:
    """The counts of one listener."""

    requests: Counter[str] = field(default_factory=Counter)  # by class of status
    durations: dict[RequestKind, Durations] = field(
        default_factory=lambda: {kind: Durations() for kind in RequestKind}
    )

    refused: Counter[Refusal] = field(default_factory=Counter)

    def answered(self, status: int, *, method: str, path: bytes, seconds: float) -> None:
        """Count one answered request."""
        self.requests[f"{status // 100}xx"] += 1
        self.durations[kind_of(method, path)].add(seconds)


def kind_of(method: str, path: bytes) -> RequestKind:
    """The kind of a request for actions, or for the choices of a feedback stream."""
    parts = path.split(b"/")
    if parts[-1] in (b"actions", b"choices") and method == "POST":
        return RequestKind.BATCH
    return RequestKind.LOOK_UP if parts[-1] in (b"action", b"choice") else RequestKind.OTHER
