"""The table behind a cache: published records of one stream in, answers out. Pure.

The rules:

1. Of one partition the newest release of a key counts: the highest (epoch, born, stop). So reading
   a topic again after a lost connection never brings back an old action. (The block is not enough:
   a key's opening and its first learned action both have block 0.)
2. A key in several partitions has several learners. The one of the latest epoch answers, then the
   one with the most slots, then the lowest partition; such keys are counted.
3. A line with mode ``fallback`` tells every reader to use the stream's fallback action.
4. Memory is bounded: beyond `most_keys` a new key is counted and not kept, so the fallback action
   answers. A key takes about 0.4 kB; a policy takes 4 bytes more for each action, and beyond
   `most_bytes` of policies a new key is not kept either.
5. The fallback action answers instead of a policy for other actions than the configured ones: its
   probabilities would belong to the wrong names.
6. A line that cannot be read (written by a newer streamdp) is counted; the answer before it stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import UNSET

from streamdp.client.answers import Answer, Change, Held, Source, Why
from streamdp.client.choosing import hashed_prefix, held
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.evidence.policy import policy_of
from streamdp.ports import Key, Published
from streamdp.wire.lines import InForce, PolicyLine, from_base64
from streamdp.wire.published import decode_action, decode_in_force, names_digest

MOST_BYTES = 1 << 30
"""Bytes of policies that one stream's table keeps."""


class Table:
    """The answers of one stream."""

    __slots__ = (
        "_bytes",
        "_contenders",
        "_digest",
        "_most_bytes",
        "_most_keys",
        "_names",
        "answers",
        "beyond",
        "counts",
        "other_actions",
        "refused",
        "source",
        "stream",
    )

    def __init__(self, source: Source, *, most_keys: int, most_bytes: int = MOST_BYTES) -> None:
        self.source = source
        self.stream = source.stream
        self.answers: dict[Key, Answer] = {}
        self.counts: Counter[str] = Counter()  # keys by their action
        self.beyond = 0  # records of keys that were not kept
        self.refused = 0  # lines that could not be read
        self.other_actions = 0  # keys whose policy is for another list of actions
        self._most_keys = most_keys
        self._most_bytes = most_bytes
        self._bytes = 0  # of kept policies
        self._digest = names_digest(source.names.actions) if source.names else ""
        self._contenders: dict[Key, dict[int, Answer]] = {}
        self._names: dict[str, str] = {}

    @property
    def several(self) -> int:
        """The number of keys in more than one partition."""
        return len(self._contenders)

    def apply(self, records: Sequence[Published]) -> Iterator[Change]:
        """Read published records; yield the keys whose answer changed."""
        for record in records:
            try:
                fresh = self._read(record)
            except (StateMismatch, InvalidConfig):
                self.refused += 1
                continue
            changed = self._put(record.key, fresh)
            if changed is not None:
                yield changed

    def _put(self, key: Key, fresh: Answer) -> Change | None:
        before = self.answers.get(key)
        if before is None and self._is_full(fresh):
            self.beyond += 1
            return None
        if before is None or (before.partition == fresh.partition and key not in self._contenders):
            if before is not None and fresh.release <= before.release:
                return None
            after = fresh
        else:
            after = self._contend(key, before, fresh)
            if after is before:
                return None
        self.answers[key] = after
        self._bytes += _size(after) - (0 if before is None else _size(before))
        self.counts[after.action] += 1
        self.other_actions += after.why is Why.OTHER_ACTIONS
        if before is not None:
            self.counts[before.action] -= 1
            self.other_actions -= before.why is Why.OTHER_ACTIONS
        return Change(self.stream, key, before, after)

    def _contend(self, key: Key, before: Answer, fresh: Answer) -> Answer:
        """The answer of a key that several partitions know."""
        known = self._contenders.setdefault(key, {before.partition: before})
        older = known.get(fresh.partition)
        if older is None or fresh.release > older.release:
            known[fresh.partition] = fresh
        return max(known.values(), key=lambda answer: answer.rank)

    def _is_full(self, fresh: Answer) -> bool:
        """Whether there is no room for one more key."""
        too_many = len(self.answers) >= self._most_keys
        return too_many or self._bytes + _size(fresh) > self._most_bytes

    def _read(self, record: Published) -> Answer:
        """The line in a published record; `StateMismatch` if it cannot be read."""
        if self.source.names is None:
            line = decode_action(record.value)
            name = self._names.setdefault(line.action, line.action)
            return self._answer(line, record.partition, name, None)
        decided = decode_in_force(record.value)
        if not isinstance(decided, PolicyLine):
            raise StateMismatch(f"stream {self.stream}: an action in a stream of policies")
        if decided.actions_digest != self._digest:
            return self._fallback(decided, record.partition, Why.OTHER_ACTIONS)
        parts = from_base64(decided.policy, "policy")
        policy = policy_of(parts, actions=len(self.source.names.actions))
        likeliest = self.source.names.actions[int(np.argmax(policy))]
        kept = held(policy, hashed_prefix(self.source.names.salt, decided.identity))
        return self._answer(decided, record.partition, likeliest, kept)

    def _answer(self, line: InForce, partition: int, action: str, policy: Held | None) -> Answer:
        if line.fallback is not UNSET and line.fallback:
            return self._fallback(line, partition, Why.FALLBACK_MODE)
        where = partition, line.epoch, line.born, line.block, line.stop
        return Answer(action, Why.PUBLISHED, *where, held=policy)

    def _fallback(self, line: InForce, partition: int, why: Why) -> Answer:
        where = partition, line.epoch, line.born, line.block, line.stop
        return Answer(self.source.fallback, why, *where)


def _size(answer: Answer) -> int:
    """Bytes of the policy that an answer holds."""
    return 0 if answer.held is None else 4 * len(answer.held.ends)
