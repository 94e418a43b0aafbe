"""What readers were told: the records of one partition's actions topic, beside the ledger's lines.

They are read before any line, and laid out by key. Each line that puts something in force is then
compared with its record, if that is still there; what has no line, and what readers were not told
of, is said at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from msgspec import UNSET

from streamdp.core.arrays import Ints, Table
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import Key
from streamdp.service.verifying.terms import (
    CODES,
    LARGEST,
    OPENS,
    SavedProgress,
    Terms,
    alike,
)
from streamdp.wire.lines import ActionLine, LineOfKey, from_base64, key_bytes
from streamdp.wire.published import named_levels

MOST_COMPARED = 1_000_000
"""Records of a partition's actions topic that are compared with its ledger. Of more, the newest of
each key: so many are left where the topic is compacted."""

_SHOWN = 200  # characters of names

_PART_BYTES = 4  # per action of a policy
_RELEASE = ("code", "epoch", "born", "block")
"""What a line and a record in the actions topic name a key's release by."""

_RECORD = np.dtype(
    [
        ("row", "i4"), ("code", "i1"), ("epoch", "i8"), ("born", "i8"), ("block", "i8"),
        ("choice", "i4"),  # the number of the action, or how many parts the policy has
        ("list", "i8"),  # the ordinal of the policy's list; 0 for none
        ("names", "i4"), ("levels", "i4"),  # texts: the action's, or what the policy is of
        ("one", "u8"), ("two", "u8"),  # the policy's digest
    ]
)  # fmt: skip
"""What is compared of a record in the actions topic."""


@dataclass(slots=True)
class Compared:
    """How many records of actions topics were compared with the ledger's lines."""

    actions: int = 0  # equal to the action in force
    policies: int = 0  # recomputed from the sums, and equal


class ShownLines:
    """The records of one partition's actions topic."""

    def __init__(self, keys: dict[Key, int], terms: Terms, reached: SavedProgress | None) -> None:
        self.whole = False  # whether the actions topic was read to its end
        self.compared = Compared()
        self._keys, self._terms, self._reached = keys, terms, reached
        self._records: list[Table] = []  # as they were read
        self._room = MOST_COMPARED
        self._by_key: Table = np.zeros(0, _RECORD)  # the same, by key
        self._strays: list[Table] = []  # those that have no line
        self._texts: dict[str, int] = {}  # names in them
        self._paused = dict[tuple[int, int], set[tuple[str, ...]]]()  # of each epoch's lists
        waiting = () if reached is None else reached.waiting
        self.waiting = [keys.setdefault(key, len(keys)) for key in waiting]
        """The rows of keys with releases that readers cannot see yet."""

    def read(self, lines: Sequence[LineOfKey]) -> None:
        """Read records of the actions topic, before any line."""
        records, keys = list[tuple[int, ...]](), self._keys
        for line in lines:
            prints, listed, levels = (0, 0), 0, ""
            if isinstance(line, ActionLine):
                choice, names = line.index, line.action
            else:
                policy = from_base64(line.policy, "policy")
                choice = len(policy) // _PART_BYTES
                levels, names = named_levels(line)
                prints = _fingerprint(policy)
                listed = 0 if line.list_ordinal is UNSET else min(line.list_ordinal, LARGEST)
                paused = () if line.paused is UNSET else tuple(line.paused)
                self._paused.setdefault((line.epoch, listed), set()).add(paused)
            records.append((
                keys.setdefault(key_bytes(line), len(keys)), CODES[line.kind], line.epoch,
                line.born, line.block, choice, listed,
                *(self._texts.setdefault(of, len(self._texts)) for of in (names, levels)), *prints,
            ))  # fmt: skip
        self._records.append(np.array(records, _RECORD))
        if sum(map(len, self._records)) > self._room:
            every = np.concatenate(self._records)
            _, newest = np.unique(every["row"][::-1], return_index=True)
            self._records = [every[np.sort(len(every) - 1 - newest)]]
            self._room = max(MOST_COMPARED, 2 * len(newest))

    @property
    def unread(self) -> bool:
        """Whether records came since they were last laid out."""
        return bool(self._records)

    def lay_out(self, rows: Table) -> None:
        """Lay the records out by key: each row has the place of its own."""
        every, self._records = np.concatenate(self._records), []
        self._by_key = every[np.argsort(every["row"], kind="stable")]
        numbers = np.arange(len(rows))
        rows["shown_at"] = np.searchsorted(self._by_key["row"], numbers)
        rows["shown_end"] = np.searchsorted(self._by_key["row"], numbers, side="right")

    def compare(self, batch: Table, new: Table) -> Table:
        """Compare with the record in the actions topic, if it is still there."""
        there = np.flatnonzero(new["shown_at"] < new["shown_end"])
        same = alike(self._by_key[new["shown_at"][there]], batch[there], *_RELEASE)
        for at in there[~same & (new["shown_end"] - new["shown_at"] > 1)[there]].tolist():
            begin, end = new["shown_at"][at], new["shown_end"][at]
            later = np.flatnonzero(alike(self._by_key[begin:end], batch[at], *_RELEASE))
            if len(later):  # those before it have no line
                self._strays.append(self._by_key[begin : begin + later[0]])
                new["shown_at"][at] += later[0]
                same |= there == at
        there = there[same]
        shown, of = self._by_key[new["shown_at"][there]], batch[there]
        new["shown_at"][there] += 1
        if self._reached is not None and self.whole:
            seen = batch["ordinal"] <= self._reached.published
            new["unseen"] |= seen & ~np.isin(batch["row"], self.waiting)
        new["unseen"][there] = False
        policies = (shown["one"] > 0) | (shown["two"] > 0)
        self._policies(of[policies], new[there[policies]], shown[policies])
        number = np.where(policies, -2 - shown["list"], shown["choice"])
        self._named(of, number, shown["names"])
        self._named(of[policies], np.full(int(policies.sum()), -1), shown["levels"][policies])
        wrongs = ~policies & (shown["choice"] != new["said"][there])
        self._terms.report(
            of,
            wrongs,
            "block {block}: published action {published}, expected {said}",
            published=shown["choice"],
            said=new["said"][there],
        )
        self.compared.actions += int((~policies & ~wrongs).sum())
        return new

    def _named(self, batch: Table, numbers: Ints, names: Ints) -> None:
        """Check that what lines name is called so in all of an epoch."""
        texts = list(self._texts)
        named = (batch["epoch"].tolist(), numbers.tolist(), names.tolist())
        for epoch, index, name in dict.fromkeys(zip(*named, strict=True)):
            for wrong in self._terms.named_so(epoch, index, texts[name]):
                same = (batch["epoch"] == epoch) & (numbers == index) & (names == name)
                self._terms.report(batch, same, "block {block}: {fault}", fault=wrong)

    def _policies(self, batch: Table, new: Table, shown: Table) -> None:
        """Compute the policies that were published."""
        self._terms.report(
            batch,
            new["lost"],
            "block {block}: the ledger's sums do not say which policy it put in force",
        )
        self._terms.report(
            batch,
            shown["list"] != batch["list"],
            "block {block}: the published policy is of list {shown}, its line of list {line}",
            shown=shown["list"],
            line=batch["list"],
        )
        groups = np.stack([new["table"], batch["list"], batch["epoch"]], axis=1)
        for group in np.unique(groups[~new["lost"]], axis=0):
            which = np.flatnonzero(~new["lost"] & (groups == group).all(axis=1))
            table, listed, epoch = group.tolist()
            of, learners = batch[which], self._terms.tables[table]
            under = self._terms.under(epoch, listed)
            paused = under.paused
            for other in self._paused.get((epoch, listed), {paused}) - {paused}:
                said, right = (", ".join(names)[:_SHOWN] or "nothing" for names in (other, paused))
                fault = f"policies of list {listed} name {said} as paused, expected {right}"
                self._terms.tell(int(of["at"][0]), fault)
            self._paused[epoch, listed] = {paused}  # said once
            prints = np.zeros((len(which), 2), dtype=np.uint64)
            try:
                for parts in np.unique(shown["choice"][which]).tolist():
                    learners.count("in_force", parts)
                computed = learners.policies(of["row"], new["due"][which], under.allowed)
                prints[:] = [_fingerprint(policy.astype("<u4").tobytes()) for policy in computed]
            except (InvalidConfig, StateMismatch) as error:
                self._terms.tell(int(of["at"][0]), f"block {of['block'][0]}: {error}")
            wrong = (prints[:, 0] != shown["one"][which]) | (prints[:, 1] != shown["two"][which])
            text = "block {block}: the published policy does not follow from the sums"
            self._terms.report(of, wrong, text)
            self.compared.policies += int((~wrong).sum())

    def missing(self, rows: Table) -> Iterator[str]:
        """Yield what readers were not told of, and what they were told of without a line."""
        keys = list(self._keys)
        for row in np.flatnonzero(rows["unseen"]).tolist():
            of = rows[row]
            which = f"block {of['due'] - 1}" if of["begun"] else "opening"
            yield (
                f"readers were not told of the newest {which} of key {keys[row]!r}, born at"
                f" {of['born']}, epoch {of['epoch']}"
            )
        for row in np.flatnonzero(rows["shown_at"] < rows["shown_end"]).tolist():
            self._strays.append(self._by_key[rows["shown_at"][row] : rows["shown_end"][row]])
        for of in (record for records in self._strays for record in records):
            which = "the opening" if of["code"] == OPENS else f"block {of['block']}"
            yield (
                f"readers were told of {which} of key {keys[of['row']]!r}, born at {of['born']},"
                f" epoch {of['epoch']}, which has no ledger line"
            )


def _fingerprint(policy: bytes) -> tuple[int, int]:
    """Sixteen bytes in place of K parts: a topic has a policy for every key."""
    digest = blake2b(policy, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
