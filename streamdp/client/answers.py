"""What a client answers: one result for `action` and `choose`, by topic and by HTTP."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol

from msgspec import Struct

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.evidence.contexts import Contexts
from streamdp.ports import Key, StreamTopics
from streamdp.wire.feedback import Feedback
from streamdp.wire.json_format import request_content


class Why(StrEnum):
    """Where an answer comes from: a release, or the reason why there is none."""

    PUBLISHED = "published"
    UNKNOWN_KEY = "unknown_key"
    FALLBACK_MODE = "fallback_mode"
    STALE = "stale"
    PAUSED = "paused"  # the key's action is paused in the stream's list, so the fallback answers
    NOTHING_ALLOWED = "nothing_allowed"  # list and request leave no action: `action` is empty


class Held(Struct, frozen=True, gc=False):
    """A policy as a cache keeps it."""

    ends: array[
        int
    ]  # the parts of 2^24, added up in the actions' order (in each cell): 4 bytes each
    prefix: bytes  # the bytes hashed in front of a request's id
    names: Names  # of the actions that the parts belong to; one for all keys with the same
    paused: tuple[str, ...] = ()  # which of them have no parts, as the policy's list paused them


class Answer(Struct, frozen=True, gc=False):
    """The action to play, and the release that it comes from, if any.

    Off-policy evaluation wants `action` and `probability` logged: the columns `action` and `pscore`
    of Open Bandit Pipeline, beside `reward` when it comes. In a cache's table, before a request has
    drawn, `held` is the policy to draw from and `action` its likeliest action, all cells alike.

    >>> Answer("a", Why.UNKNOWN_KEY).slots
    0
    """

    action: str
    why: Why
    partition: int = -1
    epoch: int = 0
    born: int = 0
    block: int = 0
    stop: int = 1  # the slot from which the release is in force
    probability: float = 1.0  # of the draw: exact, a multiple of 2^-24
    held: Held | None = None
    context: str | Protected = ""
    """The request's context as its header, in a stream with public contexts.

    `Protected` where contexts are private: then the choice must not stand in headers either."""
    filter: str = ""
    """The digest of the actions that were left, where list or request exclude some."""
    list: int = 0  # the ordinal of the stream's list, if it has one
    computed_under: int = 0  # of the list that the release follows, if it follows one

    @property
    def slots(self) -> int:
        """The slots that the learner had seen at this release."""
        return self.stop - 1

    @property
    def release(self) -> tuple[int, int, int]:
        """Identifies a release of one key in one partition; later releases compare greater."""
        return self.epoch, self.born, self.stop

    @property
    def rank(self) -> tuple[int, int, int]:
        """Decides which of several partitions answers for a key: the highest."""
        return self.epoch, self.stop, -self.partition

    def back(self, newest: int) -> tuple[str, ...]:
        """What the policy has no part of, as its list paused it, and the newest list may allow."""
        return self.held.paused if self.held is not None and newest > self.computed_under else ()


class Change(Struct, frozen=True, gc=False):
    """A key has a new answer; `before` is None when the key was not known."""

    stream: str
    key: Key
    before: Answer | None
    after: Answer


class Feed(StrEnum):
    """Whether a client's answers for a stream are complete and fresh."""

    LOADING = "loading"  # nothing was read to its end yet
    CURRENT = "current"
    LOST = "lost"  # reconnecting; the last known answers stay in force


@dataclass(frozen=True, slots=True)
class Condition:
    """What a client knows of one stream, and how fresh it is. Over HTTP the service counts."""

    feed: Feed
    stale_seconds: float  # since the source was lost; 0 while it is not
    trouble: str  # why the source was lost
    keys: int
    several: int = 0  # keys that live in more than one partition
    beyond: int = 0  # records of keys beyond the limit
    refused: int = 0  # lines that could not be read
    fallback_mode: bool = False  # whether the stream tells readers to use the fallback action
    list: int = 0  # the ordinal of the stream's list, if it has one
    paused: tuple[str, ...] = ()  # the actions that readers must not show now
    removed: tuple[str, ...] = ()  # those of them that have left
    named: tuple[str, ...] = ()  # all actions in order, if that list has added some
    named_in: int = 0  # in this epoch
    listed_at: datetime | None = None  # when that list was published


Context = Mapping[str, object]
"""The levels of a request's fields: `{"device": "phone", "age": 31}`. Never logged or kept."""


class Chooser(Protocol):
    """Draws actions."""

    def choose(
        self,
        stream: str,
        key: Key,
        request: str,
        *,
        context: Context | None = None,
        exclude: Collection[str] = (),
    ) -> Answer:
        """The action for one request of a feedback stream."""
        ...


class Actions(Chooser, Protocol):
    """What every client answers: `ActionsCache` from the topic, `HttpActions` over HTTP."""

    @property
    def streams(self) -> Sequence[str]:
        """The streams that can be asked for."""
        ...

    def action(self, stream: str, key: Key) -> Answer:
        """The action to play for a key; returns at once."""
        ...

    def choose_all(self, stream: str, requests: Sequence[tuple[Key, str]]) -> list[Answer]:
        """`choose` for many requests."""
        ...

    def condition(self, stream: str) -> Condition:
        """What is known of a stream, and how fresh it is."""
        ...


@dataclass(frozen=True, slots=True)
class Names:
    """The actions that a feedback stream's policies name, and the salt of its draws.

    A line says all but the salt, so a reader needs no more than that; what else it gives counts
    until the first line was read. `Loop` needs all of it where contexts are private: `played =
    "value"` counts whatever a line says, which may be of an epoch in which they were public.
    """

    actions: tuple[str, ...] = ()
    salt: str = ""
    contexts: Contexts | None = None  # of streams with contexts: policies have K parts a cell
    played: Literal["header", "value"] = "header"  # where events name action and context

    @property
    def cells(self) -> int:
        """How many cells a policy has."""
        return 1 if self.contexts is None else self.contexts.cells

    @property
    def arms(self) -> tuple[str, ...]:
        """What the parts of a policy belong to, by name."""
        return self.actions if self.contexts is None else self.contexts.arms(self.actions)

    def told(self, cell: int) -> str | Protected:
        """What a request says of its cell: its header, or what belongs into its content."""
        if self.played == "value":
            return Protected(self, cell)
        return "" if self.contexts is None else self.contexts.headers[cell]

    def cell(self, context: Context | None) -> int:
        """The cell of a request's context; without one every field is `other`."""
        if self.contexts is None:
            if context is None or not self.actions:  # nothing is known yet
                return 0
            raise InvalidConfig(
                "context", "of a stream without fields", expected="none", got="a context"
            )
        return self.contexts.cell(context or {})


class Protected(Struct, frozen=True, gc=False):
    """The cell of a request whose contexts are private."""

    names: Names
    cell: int

    def content(self, choice: Answer) -> bytes:
        """A request's content: what was shown, to whom, and how likely it was. Of one length."""
        names = self.names
        if not names.actions:
            raise InvalidConfig(
                "request",
                "contents say what was shown (played = value), and HTTP does not name the actions",
                expected="choices of an ActionsCache, or rank over HTTP, which writes the request",
                got="a choice of HttpActions",
            )
        feedback = Feedback(names.actions, played="value", contexts=names.contexts)
        arm = feedback.arm(choice.action, self.cell)  # another application's fallback has none
        return request_content(feedback, arm, choice.probability)

    def __repr__(self) -> str:
        """Show nothing: a cell says something of a person."""
        return "Protected()"


@dataclass(frozen=True, slots=True)
class Source:
    """A stream to follow, and the action to play where nothing is known.

    A feedback stream has `names`: it publishes policies, and answers `choose`.
    """

    topics: StreamTopics
    fallback: str
    names: Names | None = None

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.topics.stream


def unknown_stream(stream: str, known: Iterable[str]) -> str:
    """The message for a stream that nobody follows."""
    return complaint("stream", "unknown", expected=sorted(known), got=repr(stream))
