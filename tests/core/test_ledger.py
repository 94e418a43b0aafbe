"""Is the total of a topic what its dearest record paid, exactly?

The model is a dict from (key, record) to a Fraction: too slow to ship, too simple to be wrong.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamdp.core.ledger import Run, TopicCharges, topic_total
from streamdp.core.ledger.runs import added

EPSILONS = st.sampled_from([Fraction(1, 10), Fraction(1, 3), Fraction(1, 2), Fraction(1)])
SLOTS = st.integers(1, 24)
LENGTHS = st.integers(1, 12)


def total(*charges: tuple[int, int, int, str]) -> Fraction:
    """The most that a record paid: by key, first and last record, and ε."""
    levels = sorted({Fraction(epsilon) for *_, epsilon in charges})
    columns = [(*of, levels.index(Fraction(epsilon))) for *of, epsilon in charges]
    return topic_total(TopicCharges(*np.array(columns, np.int64).reshape(-1, 4).T), levels)


def test_charges_on_one_topic_add_where_they_are_of_the_same_records() -> None:
    ours = (7, 0, 99, "1/2")
    assert total() == 0
    assert total(ours) == Fraction(1, 2)
    assert total(ours, (7, 99, 120, "1/2")) == 1
    assert total(ours, (7, 100, 120, "1/2")) == Fraction(1, 2)
    assert total(ours, (8, 0, 99, "1/4"), (9, 0, 99, "1/3")) == Fraction(1, 2)
    assert total(ours, (8, 0, 99, "1/4"), (8, 0, 9, "1/3")) == Fraction(7, 12)


def test_a_total_is_exact_however_large_its_numbers() -> None:
    """Beyond 64 bits too."""
    one, other = Fraction(1, 3**50), Fraction(1, 7**30)
    assert total((0, 0, 9, str(one)), (0, 9, 9, str(other))) == one + other


@given(st.data())
def test_the_total_of_a_topic_is_that_of_its_dearest_record(data: st.DataObject) -> None:
    """Against a dict of records."""
    paid: defaultdict[tuple[int, int], Fraction] = defaultdict(Fraction)
    charges = []
    for _ in range(data.draw(st.integers(0, 12))):
        key, first, length = data.draw(st.integers(0, 2)), data.draw(SLOTS), data.draw(LENGTHS)
        epsilon = data.draw(EPSILONS)
        charges.append((key, first, first + length - 1, str(epsilon)))
        for record in range(first, first + length):
            paid[key, record] += epsilon
    assert total(*charges) == max(paid.values(), default=Fraction(0))


def test_neighbours_of_one_charge_are_one_run() -> None:
    """Where one ends and the next begins nothing changes; charges of no runs are none."""
    one, half = Fraction(1), Fraction(1, 2)
    assert list(added([Run(5, 9, one), Run(1, 5, one)])) == [Run(1, 9, one)]
    overlapping = list(added([Run(1, 9, one), Run(4, 9, half)]))
    assert overlapping == [Run(1, 4, one), Run(4, 9, one + half)]
    assert list(added([])) == []
    assert TopicCharges.joined([]).key.tolist() == []
