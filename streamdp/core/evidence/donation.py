"""Donation: short blocks give their slots to the *pool*, a learner that all keys share.

A block of fewer than 2/ε slots says next to nothing about its own key: its vote is noise, and yet
each of its events is charged ε. So such a block is *donated*: its key draws nothing at its end and
keeps its action in force, and its slots become slots of the pool instead.

1. *The blocks.* Those of fewer than `shortest_kept` slots. A block's length follows from its
   number, and the number from the slot: which slots are donated is as public as slot numbers are.
2. *The pool* is one more learner of the partition. Its slots are the donated slots of all keys in
   the order of the log. Its blocks grow from 1 slot to `POOL` times the length below which blocks
   are donated, and then keep that length. Each releases one vote: what is best for many keys
   together. Its draws know nothing beforehand (no prior, no bonus for an action in force), so that
   its votes are evidence of the losses alone. Only the crowd uses its votes.
3. *The charge.* A donated slot enters one draw, that of its block of the pool, and is charged for
   it once. The pool's blocks tile the donated slots.
4. *The donors.* All keys but those of a control group (`evidence.control`). These learn alone, so
   each of their blocks, however short, ends in a vote of their own (`donated_below_by`). Which keys
   these are follows from the keys alone.
5. *The use.* The pool's newest `NEWEST` votes count in the crowd's next prior, each as the vote of
   a key of its own, drawn under prior 0.

Privacy: the pool is a learner like others, over slots that no other learner counts: a changed event
moves one block of the pool, or one block of its key. All else is a function of releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.events import Key
from streamdp.core.evidence.control import Control
from streamdp.core.evidence.memory import Standing
from streamdp.core.schedule import LAST_SLOT, Schedule, geometric

NEWEST = 64
"""How many of the pool's votes count: old votes may be out of date."""

POOL = 32
"""The length of the pool's longest blocks, in lengths of the shortest kept block: 64/ε slots, in
which a gap of .1 between two actions is worth 3 noise units."""

MOST_DONATED = (LAST_SLOT - 1) // POOL
"""The greatest length below which blocks may be donated: the pool's longest block is `POOL` times
as long, and no block has `LAST_SLOT` slots."""

_RATIO = Fraction(5, 2)


def shortest_kept(rate: Fraction) -> int:
    """The least length of a block that is not donated: 2/ε slots, for ρ = ε/2.

    While its blocks are donated, a key keeps its opening action, which knows nothing of it. Votes
    of blocks up to twice as long are mostly noise too, but keys with few slots would lose more by
    waiting for them than the pool gives (`docs/crowd.md`).

    >>> shortest_kept(Fraction(1, 4)), shortest_kept(Fraction(3, 20))
    (4, 7)
    """
    return ceil(1 / rate)


def donated_below_by(key: Key, shortest: int, control: Control) -> int:
    """The length below which this key donates its blocks; 0 for one of the control group.

    >>> half = Control(Fraction(1, 2))
    >>> half.holds(b"de"), donated_below_by(b"de", 4, half), donated_below_by(b"us", 4, half)
    (True, 0, 4)
    """
    return 0 if control.holds(key) else shortest


def pool_schedule(shortest: int) -> Schedule:
    """The blocks of the pool, where blocks below this length are donated.

    >>> pool_schedule(4).lengths(np.arange(7)).tolist()
    [1, 3, 7, 16, 40, 98, 128]
    """
    return geometric(_RATIO, POOL * shortest)


class Gift(NamedTuple):
    """A run of a key's blocks that are donated one after the other."""

    blocks: int
    slots: int


NO_GIFT = Gift(0, 0)


def run_from(schedule: Schedule, block: int, *, shortest: int) -> Gift:
    """The blocks that are donated from this one on, until one is long enough to be kept.

    >>> from streamdp.core.schedule import restarting
    >>> run_from(geometric("5/2"), 0, shortest=4), run_from(geometric("5/2"), 2, shortest=4)
    (Gift(blocks=2, slots=4), Gift(blocks=0, slots=0))
    >>> run_from(restarting(20), 0, shortest=4)
    Gift(blocks=2, slots=3)
    """
    blocks, slots = 0, 0
    while shortest and (length := _length(schedule, block + blocks)) < shortest:
        blocks, slots = blocks + 1, slots + length
    return Gift(blocks, slots)


def reached(schedule: Schedule, due: int, *, shortest: int) -> int:
    """The length of the last block before this one that was kept; 0 if none was.

    It looks through one period of the tail and the prefix only: a ledger that anybody may have
    written names the block, and its number may be any.

    >>> reached(geometric("5/2"), 3, shortest=4), reached(geometric("5/2"), 2, shortest=4)
    (7, 0)
    """
    once, tail = len(schedule.prefix), schedule.tail
    of_tail = (
        tail[(block - once) % len(tail)]
        for block in range(due - 1, max(once, due - len(tail)) - 1, -1)
    )
    lengths = chain(of_tail, reversed(schedule.prefix[:due]))
    return next((length for length in lengths if length >= shortest), 0)


@lru_cache(maxsize=4096)
def _length(schedule: Schedule, block: int) -> int:
    return int(schedule.lengths(np.array([block]))[0])


@dataclass(frozen=True, slots=True)
class NewestVotes:
    """The pool's memory: its newest votes, the last one first, each as its number plus 1."""

    @property
    def name(self) -> str:
        """Its name in the fingerprint of the pool's row."""
        return f"newest {NEWEST} votes"

    @property
    def width(self) -> int:
        """One number for each vote."""
        return NEWEST

    @property
    def since(self) -> int:
        """Every vote counts."""
        return 1

    def after(self, standing: Standing, votes: Ints, lengths: Ints) -> Standing:
        """Put the newest vote first and drop the oldest."""
        kept = np.concatenate([votes[:, None] + 1, standing.remembered[:, :-1]], axis=1)
        return Standing(votes, kept)

    def sure_of(self, actions: Ints, lengths: Ints) -> Ints:
        """No vote yet."""
        return np.zeros((len(actions), NEWEST), dtype=np.int64)


def votes_of(kept: NDArray[np.int32] | Ints, block: int, schedule: Schedule) -> tuple[Ints, Ints]:
    """The votes that the pool keeps before this block of its schedule, and their blocks' lengths.

    >>> votes, lengths = votes_of(np.array([3, 1, 0]), 2, pool_schedule(4))
    >>> votes.tolist(), lengths.tolist()
    ([2, 0], [3, 1])
    """
    votes = kept[kept > 0].astype(np.int64) - 1
    return votes, schedule.lengths(block - 1 - np.arange(len(votes)))
