"""Compares selections among very many actions, and of very many rows, with the textbook.

A race handles long rows in chunks and many rows in blocks, so it may be right for a few actions and
wrong for more than a chunk. Two checks, for any size of chunks and blocks:

1. *Contenders far apart.* Two actions get the same first word and the same sum, all others are
   hopelessly behind. Only the further bits may decide, wherever the two stand among 40,000 actions.
2. *Many rows.* Each of 50,000 rows is won by the action that the textbook gives for its bits.

These checks are for mechanisms whose noise `laws.plain_winners` knows; the sampler compares other
mechanisms with their law.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from streamdp.core.arrays import Words
from streamdp.core.grid import UNIT
from streamdp.core.randomness import WORD_BITS, Bits, Purpose, SeededRandomness
from streamdp.core.selection import Mechanism
from streamdp.lab.audit.laws import plain_winners

_ACTIONS = 40_000
_PLACES = (0, 1, 16_383, 16_384, 16_385, 32_767, 32_768, 39_999)  # pairs of these contend
_TIED = 5 << 60  # a first word that begins with 0: a smaller V is then better for each mechanism
_HOPELESS = 1 << 40  # of loss behind
_ROWS = 50_000


def flaws_of_races(choose: Mechanism) -> list[str]:
    """What a choice gets wrong among very many actions or rows; empty if all is well."""
    return [*_apart(choose), *_many_rows(choose)]


@dataclass(frozen=True, slots=True)
class TiedBits:
    """One draw in which every action has the same first word; further words decide the winner."""

    first: int  # the action with the smaller further bits
    rows: int = field(default=1, init=False)
    width: int = field(default=WORD_BITS, init=False)

    def words(self, start: int, count: int) -> Words:
        """One word for all actions."""
        return np.full((1, count), _TIED, dtype=np.uint64)

    def more(self, row: int, position: int, level: int) -> int:
        """A smaller number for the action that is to win."""
        return 1 if position == self.first else 2

    def part(self, start: int, stop: int) -> TiedBits:
        """The draw itself."""
        return self


def _apart(choose: Mechanism) -> Iterator[str]:
    if plain_winners(choose.name, choose.rate, np.zeros((1, 2), np.int64), _one(2), None) is None:
        return
    for one, other in combinations(_PLACES, 2):
        sums = np.full((1, _ACTIONS), _HOPELESS * UNIT, dtype=np.int64)
        sums[0, [one, other]] = 0
        for first in (one, other):
            winner = int(choose.select(sums, TiedBits(first))[0])
            if winner != first:
                yield (
                    f"of {_ACTIONS} actions, {one} and {other} tie in their first words: "
                    f"{winner} wins, where the further bits say {first}"
                )
                return


def _one(actions: int) -> Words:
    return np.full((1, actions), _TIED, dtype=np.uint64)


def _many_rows(choose: Mechanism) -> Iterator[str]:
    actions = 3
    sums = np.arange(_ROWS * actions).reshape(_ROWS, actions) * 7919 % (4 * UNIT)
    bits = _drawn(_ROWS)
    winners = choose.select(sums, bits)
    plain = plain_winners(choose.name, choose.rate, sums, bits.words(0, actions), None)
    if plain is not None and ((plain[0] != winners) & plain[1]).any():
        row = int(((plain[0] != winners) & plain[1]).argmax())
        yield f"of {_ROWS} rows, row {row} is not won by the action that its bits say"


def _drawn(rows: int) -> Bits:
    tags = np.zeros((rows, 16), dtype=np.uint8)
    return SeededRandomness("audit").bits("races", Purpose.SELECTION, tags, np.arange(rows))
