"""The table behind a cache: published records of one stream in, answers out. Pure.

The rules:

1. Of one partition the newest release of a key counts: the highest (epoch, born, stop). So reading
   a topic again after a lost connection never brings back an old action. (The block is not enough:
   a key's opening and its first learned action both have block 0.)
2. A key in several partitions has several learners. The one of the latest epoch answers, then the
   one with the most slots, then the lowest partition; such keys are counted.
3. The stream's list says which actions may be shown. The cache obeys it, so the answers here stay
   as they were published.
4. Memory is bounded: beyond `most_keys` a new key is counted and not kept, so it is answered like
   one without a release. A key takes about 0.4 kB; a policy takes 4 bytes more for each action, and
   beyond `most_bytes` of policies a new key is not kept either.
5. A policy's line names its actions and, with contexts, the fields and levels: its parts belong to
   these, whatever a reader knew before. Requests without a policy follow the latest epoch's. But a
   context that the reader calls private stays so: a line of an earlier epoch may say `header`.
6. A policy's columns that have no name yet have no parts: they are left out.
7. A line that cannot be read (written by a newer streamdp) is counted; the answer before it stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec import UNSET, to_builtins

from streamdp.client.answers import Answer, Change, Names, Source, Why
from streamdp.client.choosing import hashed_prefix, held
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import SPARE, names_in
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy import policy_of
from streamdp.ports import Key, Published
from streamdp.wire.lines import ActionLine, LineOfKey, PolicyLine, from_base64
from streamdp.wire.published import decode_in_force

MOST_BYTES = 1 << 30
"""Bytes of policies that one stream's table keeps."""


class Table:
    """The answers of one stream."""

    __slots__ = (
        "_bytes",
        "_contenders",
        "_last",
        "_most_bytes",
        "_most_keys",
        "_names",
        "answers",
        "beyond",
        "counts",
        "epoch",
        "names",
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
        self.names = self._last = source.names or Names()  # of the latest epoch; of the last line
        self.epoch = 0  # the latest of any line
        self._most_keys = most_keys
        self._most_bytes = most_bytes
        self._bytes = 0  # of kept policies
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
                fresh = self._answer_of(decode_in_force(record.value), record.partition)
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

    def _is_full(self, fresh: Answer) -> bool:
        """Whether there is no room for one more key."""
        too_many = len(self.answers) >= self._most_keys
        return too_many or self._bytes + _size(fresh) > self._most_bytes

    def _answer_of(self, line: LineOfKey, partition: int) -> Answer:
        """The answer in a key's line; `StateMismatch` if it is of another kind of stream."""
        choosing = self.source.names is not None
        if isinstance(line, PolicyLine) != choosing:
            expected = "policy" if choosing else "action"
            raise StateMismatch(
                f"stream {self.stream}",
                "a line of another kind of stream",
                expected=expected,
                got=type(line).__name__,
            )
        where = partition, line.epoch, line.born, line.block, line.stop
        if isinstance(line, ActionLine):
            name = self._names.setdefault(line.action, line.action)
            return Answer(name, Why.PUBLISHED, *where)
        names, columns = names_of(line, salt=self.names.salt), len(line.actions)
        if self.source.names is not None and self.source.names.played == "value":
            names = replace(names, played="value")
        if names == self._last:
            names = self._last  # one for all
        parts, count = from_base64(line.policy, "policy"), len(names.actions)
        policy = policy_of(parts, actions=columns, cells=names.cells)
        if columns > count:
            has_name = [name != SPARE for name in line.actions]
            policy = policy.reshape(-1, columns)[:, has_name].reshape(-1)
        over_cells = policy.reshape(names.cells, count).sum(axis=0, dtype=np.int64)
        likeliest = names.actions[int(np.argmax(over_cells))]
        paused = () if line.paused is UNSET else tuple(line.paused)
        kept = held(policy, hashed_prefix(names.salt, line.identity), names, paused)
        self._last = names
        if line.epoch >= self.epoch:
            self.names, self.epoch = names, line.epoch
        under = 0 if line.list_ordinal is UNSET else line.list_ordinal
        return Answer(likeliest, Why.PUBLISHED, *where, held=kept, computed_under=under)


def names_of(line: PolicyLine, *, salt: str) -> Names:
    """What a line's policy is about."""
    context = None if line.context is UNSET else Contexts.read(to_builtins(line.context))
    return Names(names_in(line.actions), salt, context, line.played)


def _size(answer: Answer) -> int:
    """Bytes of the policy that an answer holds."""
    return 0 if answer.held is None else 4 * len(answer.held.ends)
