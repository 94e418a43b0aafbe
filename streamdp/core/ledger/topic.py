"""The total charge of an input topic's records, over streams, epochs and estimates (P11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.ledger.runs import NOTHING

_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class TopicCharges:
    """Charges on records of one topic, as columns.

    Each is of one *key* (a number for a partition and a key: a record has one), and of all records
    that may lie between two offsets. Those that one learner charged for different slots must not
    overlap; everything that overlaps adds up.
    """

    key: Ints
    first: Ints
    last: Ints
    level: Ints  # its ε, as a place in a list

    @classmethod
    def joined(cls, several: Sequence[TopicCharges]) -> TopicCharges:
        """All of them."""
        nothing = np.zeros(0, dtype=np.int64)
        columns = [
            np.concatenate([nothing, *(getattr(charges, name) for charges in several)])
            for name in cls.__slots__
        ]
        return cls(*columns)

    def of(self, which: Ints) -> TopicCharges:
        """Some of them."""
        return TopicCharges(*(getattr(self, name)[which] for name in self.__slots__))


def topic_total(charges: TopicCharges, levels: Sequence[Fraction]) -> Fraction:
    """The most that one slot of any record pays, exactly.

    >>> of = TopicCharges(*np.array([[7, 7], [0, 50], [99, 120], [0, 1]]))
    >>> topic_total(of, [Fraction(1, 2), Fraction(1, 4)])
    Fraction(3, 4)
    """
    if not len(charges.key):
        return NOTHING
    used, level = np.unique(charges.level, return_inverse=True)
    amounts = [levels[number] for number in used.tolist()]
    unit = lcm(*(amount.denominator for amount in amounts))
    units = [amount.numerator * (unit // amount.denominator) for amount in amounts]
    small = max(units) < _MOST // len(level)
    amount = np.array(units, dtype=np.int64 if small else object)[level]
    highest = int(amount.max())
    alone = np.bincount(charges.key)[charges.key] == 1
    if alone.all():  # most topics have one reader, and each key one learner
        return Fraction(highest, unit)
    some = charges.of(np.flatnonzero(~alone))
    amount = amount[~alone]
    key, ends = np.tile(some.key, 2), np.repeat([True, False], len(some.key))
    offset = np.concatenate([some.last + 1, some.first])
    order = np.lexsort((~ends, offset, key))  # at one offset, ends come before beginnings
    here = np.cumsum(np.concatenate([-amount, amount])[order])
    return Fraction(max(highest, int(here.max())), unit)
