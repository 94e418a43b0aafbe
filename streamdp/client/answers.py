"""What a cache answers, and the pure table behind it: published records in, answers out.

The rules:

1. Of one partition the newest release of a key counts: the higher (epoch, born, stop). Reading a
   topic again after a lost connection therefore never brings an old action back for a moment. The
   block would not do: a key's opening and its first learned action are both of block 0.
2. A key that lives in several partitions has several learners. The one of the latest epoch
   answers, then the one that has seen most slots, then the lowest partition; such keys are counted.
3. A line that says ``fallback`` tells every reader to use the stream's fallback action.
4. Memory is bounded: beyond `most_keys` a new key is counted and not kept, so it is answered by
   the fallback action. About 0.4 kB a key.
5. A line that cannot be read (written by a newer streamdp) is counted; what is known stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec import UNSET, Struct

from streamdp.core.errors import StateMismatch
from streamdp.ports import Key, Published, StreamTopics
from streamdp.wire.published import ActionLine, decode_action


class Why(StrEnum):
    """Where an answer comes from: a release, or the fallback action and the reason for it."""

    PUBLISHED = "published"
    UNKNOWN_KEY = "unknown_key"
    FALLBACK_MODE = "fallback_mode"
    STALE = "stale"


class Answer(Struct, frozen=True, gc=False):
    """The action to play for one key, and the release that it comes from, if any.

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
    heard: float = 0.0  # when this cache was told, by its clock

    @property
    def slots(self) -> int:
        """How many slots the learner had seen when it released this."""
        return self.stop - 1

    @property
    def release(self) -> tuple[int, int, int]:
        """Orders the releases of one key in one partition, and tells them apart."""
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
    """How a cache's knowledge of a stream is."""

    LOADING = "loading"  # the end of the topic was not reached yet
    CURRENT = "current"
    LOST = "lost"  # it is tried again; what is known stays


@dataclass(frozen=True, slots=True)
class Source:
    """A stream to follow, and the action to play where nothing is known."""

    topics: StreamTopics
    fallback: str

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.topics.stream


class Table:
    """The answers of one stream."""

    __slots__ = (
        "_contenders",
        "_most_keys",
        "_names",
        "answers",
        "beyond",
        "counts",
        "fallback",
        "refused",
        "stream",
    )

    def __init__(self, stream: str, fallback: str, *, most_keys: int) -> None:
        self.stream = stream
        self.fallback = fallback
        self.answers: dict[Key, Answer] = {}
        self.counts: Counter[str] = Counter()  # keys by their action
        self.beyond = 0  # records of keys that were not kept
        self.refused = 0  # lines that could not be read
        self._most_keys = most_keys
        self._contenders: dict[Key, dict[int, Answer]] = {}
        self._names: dict[str, str] = {}

    @property
    def several(self) -> int:
        """How many keys live in more than one partition."""
        return len(self._contenders)

    def apply(self, records: Sequence[Published], *, now: float) -> Iterator[Change]:
        """Take in published records; yields the keys whose answer changed."""
        for record in records:
            try:
                line = decode_action(record.value)
            except StateMismatch:
                self.refused += 1
                continue
            changed = self._put(record.key, record.partition, line, now)
            if changed is not None:
                yield changed

    def _put(self, key: Key, partition: int, line: ActionLine, now: float) -> Change | None:
        before = self.answers.get(key)
        if before is None and len(self.answers) >= self._most_keys:
            self.beyond += 1
            return None
        fresh = self._answer(line, partition, now)
        if before is None or (before.partition == partition and key not in self._contenders):
            if before is not None and fresh.release <= before.release:
                return None
            after = fresh
        else:
            after = self._contend(key, before, fresh)
            if after is before:
                return None
        self.answers[key] = after
        self.counts[after.action] += 1
        if before is not None:
            self.counts[before.action] -= 1
        return Change(self.stream, key, before, after)

    def _contend(self, key: Key, before: Answer, fresh: Answer) -> Answer:
        """The answer of a key that several partitions know."""
        known = self._contenders.setdefault(key, {before.partition: before})
        older = known.get(fresh.partition)
        if older is None or fresh.release > older.release:
            known[fresh.partition] = fresh
        return max(known.values(), key=lambda answer: answer.rank)

    def _answer(self, line: ActionLine, partition: int, now: float) -> Answer:
        told = line.fallback is not UNSET and line.fallback
        name = self.fallback if told else self._names.setdefault(line.action, line.action)
        why = Why.FALLBACK_MODE if told else Why.PUBLISHED
        return Answer(name, why, partition, line.epoch, line.born, line.block, line.stop, now)
