"""What a cache answers: the values that callers get."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from streamdp.ports import Key, StreamTopics


class Why(StrEnum):
    """Where an answer comes from: a release, or the fallback action and the reason for it."""

    PUBLISHED = "published"
    UNKNOWN_KEY = "unknown_key"
    FALLBACK_MODE = "fallback_mode"
    STALE = "stale"
    OTHER_ACTIONS = "other_actions"  # a policy about another list of actions than the configured


class Held(Struct, frozen=True, gc=False):
    """A policy as a cache keeps it."""

    ends: array[int]  # the parts of 2^24, added up in the actions' order: 4 bytes each
    prefix: bytes  # the bytes hashed in front of a request's id


class Answer(Struct, frozen=True, gc=False):
    """The action to play for one key, and the release that it comes from, if any.

    Of a feedback stream `held` is the policy to draw from and `action` its likeliest action.

    >>> Answer("a", Why.UNKNOWN_KEY).slots
    0
    """

    action: str
    why: Why
    partition: int = -1
    epoch: int = 0
    born: int = 0
    block: int = 0
    stop: int = 1  # the slot that the release is in force from
    heard: float = 0.0  # when this cache read it, by its clock
    held: Held | None = None

    @property
    def slots(self) -> int:
        """How many slots the learner had seen when it released this."""
        return self.stop - 1

    @property
    def release(self) -> tuple[int, int, int]:
        """Identifies a release of one key in one partition; later releases compare greater."""
        return self.epoch, self.born, self.stop

    @property
    def rank(self) -> tuple[int, int, int]:
        """Which of several partitions answers for a key: the highest."""
        return self.epoch, self.stop, -self.partition


class Change(Struct, frozen=True, gc=False):
    """A key has a new answer; `before` is None when the key was not known."""

    stream: str
    key: Key
    before: Answer | None
    after: Answer


class Feed(StrEnum):
    """Whether a cache's answers for a stream are complete and fresh."""

    LOADING = "loading"  # the topic has not been read to its end yet
    CURRENT = "current"
    LOST = "lost"  # reconnecting; the last known answers stay in force


@dataclass(frozen=True, slots=True)
class Names:
    """The actions that a feedback stream's policies name, and the salt that its draws hash."""

    actions: tuple[str, ...]
    salt: str


@dataclass(frozen=True, slots=True)
class Source:
    """A stream to follow, and the action to play where nothing is known.

    A feedback stream has `names`: it publishes policies, and is asked by `choose`.
    """

    topics: StreamTopics
    fallback: str
    names: Names | None = None

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.topics.stream
