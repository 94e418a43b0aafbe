"""Who plays what: learners that see the same blocks, on keys that fit in memory together.

The unit of work is a share: some keys, and the cells of the grid that are played on them side by
side, so that what they have in common is summed and drawn once. Workers play shares, in this
process or in others (`lab.workers`). What a share says of its keys depends on nothing else, and
this process adds shares up in their order: the answer is the same whoever played them. Learners
that play themselves are shared out in the same way, a learner and some keys at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import prod
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.mapped import longest_first
from streamdp.lab.offpolicy.cells import FeedbackCell
from streamdp.lab.play import KeyBits, KeyPart
from streamdp.lab.workers import Workers

T = TypeVar("T")
Tags: TypeAlias = Callable[[], NDArray[np.uint8]]
"""Makes what addresses the bits of keys, keys × seeds × 16: by who needs it, as it takes long."""

_WORDS = 1 << 21  # of 8 bytes that the keys of a share take together, or one key
_SLOTS = 1 << 16  # of the keys of a share that a learner plays itself, or one key
_A_NUMBER = 16  # words of bits for each number of a release: a draw takes 4, the rest is room
_A_COLUMN = 6  # for each number that a learner keeps of a row, and what is computed with it
_OF_BLOCKS = 18  # for each block and action: sums, guesses and moments
_OF_POLICIES = 2  # and for each learner: its policies


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Some keys, and the cells that are played on them side by side."""

    cells: Sequence[FeedbackCell]
    counts: Ints  # the slots of each key, the longest first
    begin: int  # of the first one's, among all slots key by key
    tags: Tags  # of the keys

    def __repr__(self) -> str:
        """Show what is played and on how much, never a key."""
        return f"{', '.join(map(str, self.cells))}, on {len(self.counts)} keys"

    @property
    def learner(self) -> PolicyLearner:
        """One of those that are alike."""
        return self.cells[0].learner

    @property
    def end(self) -> int:
        """Where the slots of the last key end, among all slots key by key."""
        return self.begin + int(self.counts.sum())

    def parts(self, bench: Bench) -> Iterator[tuple[KeyPart, KeyBits]]:
        """The keys and their bits, by seeds that are played together."""
        every, tags = np.arange(len(self.counts)), self.tags()
        for part in KeyPart.of_seeds(every, len(bench.seeds), words=_words(self.learner)):
            yield part, KeyBits(tags, bench, part)


def _words(learner: PolicyLearner) -> int:
    return _A_NUMBER * len(learner.actions)


def _taken(cells: Sequence[FeedbackCell], counts: Ints, seeds: int, masks: int) -> Ints:
    """About how many words keys with these numbers of slots take while learners play."""
    learner = cells[0].learner
    kept = sum(prod(of.shape) for cell in cells for of in cell.learner.evidence.fields)
    blocks = (learner.schedule.blocks_of(counts) + 1) * len(learner.actions) * masks
    of_rows = seeds * (_words(learner) + _A_COLUMN * kept)
    return np.asarray(of_rows + blocks * (_OF_BLOCKS + _OF_POLICIES * len(cells)))


def play_shares(
    groups: Iterable[Sequence[FeedbackCell]],
    counts: Ints,
    bench: Bench,
    tags: Callable[[Ints], Tags],
    work: Callable[[Share], T],
    workers: Workers,
    *,
    masks: int = 1,
) -> Iterator[Iterator[T]]:
    """What the shares of each group say, in their order; `tags` are those of some keys.

    `masks`: how many sums there are of each action in a block.
    """

    def keys_of(group: Sequence[FeedbackCell]) -> list[Ints]:
        order = longest_first(counts)
        return _parted(order, _taken(group, counts[order], len(bench.seeds), masks), _WORDS)

    def shares(group: Sequence[FeedbackCell]) -> Iterator[Share]:
        begin = 0
        for keys in keys_of(group):
            yield Share(group, counts[keys], begin, tags(keys))
            begin += int(counts[keys].sum())

    groups = list(groups)
    found = workers.map(work, chain.from_iterable(map(shares, groups)))
    for group in groups:
        yield islice(found, len(keys_of(group)))


@dataclass(frozen=True, slots=True, eq=False)
class OwnKeys:
    """Some keys, for learners that play themselves key after key."""

    rows: Ints  # their numbers in the log, the longest first
    counts: Ints  # the slots of each
    begin: int  # of the first one's, among all slots key by key
    longest: int  # the slots of the longest key of all

    def __repr__(self) -> str:
        """Show how many they are, never a key."""
        return f"{len(self.rows)} keys"

    @classmethod
    def shares(cls, counts: Ints) -> list[OwnKeys]:
        """All keys of a log, in shares of about as many slots."""
        order, begin = longest_first(counts), 0
        longest, shares = int(counts[order[0]]), list[OwnKeys]()
        for rows in _parted(order, counts[order], _SLOTS):
            shares.append(cls(rows, counts[rows], begin, longest))
            begin += int(counts[rows].sum())
        return shares

    def each(self) -> Iterator[tuple[int, int, int]]:
        """Each one's number, where its slots begin, and how many they are."""
        ends = self.begin + np.cumsum(self.counts)
        yield from zip(
            self.rows.tolist(), (ends - self.counts).tolist(), self.counts.tolist(), strict=True
        )


def _parted(order: Ints, taken: Ints, most: int) -> list[Ints]:
    """Keys in an order, cut where what they take together begins another so many."""
    begins = (np.cumsum(taken) - taken) // most
    return np.split(order, np.flatnonzero(np.diff(begins)) + 1)
