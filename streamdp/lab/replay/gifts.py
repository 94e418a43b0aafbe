"""What keys of a simulated crowd donate, as blocks of their pool (`core.evidence.donation`).

Blocks are played as sums. A donated block's slots go to the pool one by one, in the order of time,
so its sums are split again: given the sum of 0s and 1s, every order of them is equally likely.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator  # noqa: TID251 - losses are made up: no secret
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.crowd import WIDTH, Crowd, cast
from streamdp.core.evidence.donation import NEWEST, pool_schedule
from streamdp.core.grid import UNIT


@dataclass(frozen=True, slots=True)
class BlocksOfKeys:
    """The blocks of N keys, and the times of their slots."""

    sums: Ints  # N × B × K
    lengths: Ints  # B
    slots: Ints  # N
    starts: Floats  # N
    pace: Floats  # N

    def when(self, slots: Ints) -> Floats:
        """The time at which each key has had these numbers of slots: N × numbers."""
        return np.asarray(self.starts[:, None] + slots / self.pace[:, None])


@dataclass(slots=True)
class Gifts:
    """The pool of a simulated crowd."""

    gives: NDArray[np.bool_]  # B: which blocks of keys are donated
    until: Ints  # B: the slot after which a key in this block draws next
    sums: Ints  # P × K, of the pool's blocks
    lengths: Ints  # P
    ends: Floats  # P: the time at which each ends
    kept: Ints  # the newest votes, the last one first, × WIDTH

    @classmethod
    def of(cls, blocks: BlocksOfKeys, *, shortest: int, generator: Generator) -> Gifts:
        """The gifts of keys that donate blocks of fewer slots than this."""
        gives, ends = blocks.lengths < shortest, np.cumsum(blocks.lengths)
        following = np.where(gives, len(ends) - 1, np.arange(len(ends)))
        until = ends[np.minimum.accumulate(following[::-1])[::-1]]
        whens, slots = zip(*_slots(blocks, gives, generator), strict=True)
        when, slot = np.concatenate(whens), np.concatenate(slots)
        order = np.argsort(when, kind="stable")
        when, slot = when[order], slot[order]
        schedule = pool_schedule(shortest)
        lengths = schedule.lengths(np.arange(schedule.block_of(len(when) + 1)))
        last = np.cumsum(lengths)
        added = np.concatenate([np.zeros_like(slot[:1]), np.cumsum(slot, axis=0)])
        sums = (added[last] - added[last - lengths]) * UNIT
        return cls(gives, until, sums, lengths, when[last - 1], np.zeros((0, WIDTH), np.int64))

    def note(self, crowd: Crowd, votes: Ints, blocks: Ints) -> None:
        """Keep the pool's votes at the end of these blocks."""
        nothing = np.zeros_like(votes)
        new = cast(
            crowd, prior=nothing, stayed=nothing > 0, vote=votes, length=self.lengths[blocks],
            group=nothing,
        )  # fmt: skip
        self.kept = np.concatenate([new[::-1], self.kept])[:NEWEST]


def _slots(
    blocks: BlocksOfKeys, gives: NDArray[np.bool_], generator: Generator
) -> Iterator[tuple[Floats, Ints]]:
    """The times of donated slots, and their losses: n, and n × K of 0 and 1."""
    yield np.zeros(0), np.zeros((0, blocks.sums.shape[2]), dtype=np.int64)
    before = np.cumsum(blocks.lengths) - blocks.lengths
    for block in np.flatnonzero(gives).tolist():
        length = int(blocks.lengths[block])
        number = before[block] + 1 + np.arange(length)
        comes = number <= blocks.slots[:, None]
        turn = generator.random((len(blocks.slots), length, blocks.sums.shape[2]))
        turn[~comes] = 1  # sorts after the slots that do come, which the sums are of
        rank = turn.argsort(axis=1).argsort(axis=1)
        ones = (rank < blocks.sums[:, block, None] // UNIT).astype(np.int64)
        yield blocks.when(number[None])[comes], ones[comes]
