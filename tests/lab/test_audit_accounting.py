"""Would wrong accounting be noticed? A ledger off by one, in floats, or of one stream at a time.

The checks are functions that pass on the shipped ledger and fail on each broken one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction

import numpy as np
import pytest

from streamdp.core.errors import BudgetExceeded
from streamdp.core.ledger import Run, TopicCharges, topic_total
from streamdp.core.ledger.runs import added
from streamdp.lab.papers.ledger import Account


def taken(account: Account, start: int, stop: int, epsilon: Fraction) -> bool:
    """Whether an account takes a charge."""
    try:
        account.book(start, stop, epsilon=epsilon)
    except BudgetExceeded:
        return False
    return True


def filter_is_exact_at_both_ends() -> bool:
    """A charge is refused on every range that meets a full one, and on no other."""
    good = True
    for start, stop, fits in [
        (1, 8, True), (7, 9, False), (8, 9, False), (15, 16, False), (15, 17, False),
        (16, 20, True), (1, 40, False),
    ]:  # fmt: skip
        account = Account(Fraction(1))
        taken(account, 8, 16, Fraction(1))
        good &= taken(account, start, stop, Fraction(1, 2)) is fits
    return good


def sums_are_exact() -> bool:
    """Three tenths fit 3/10 exactly, and nothing fits on top, however small."""
    account = Account(Fraction(3, 10))
    fits = [taken(account, 1, 9, Fraction(1, 10)) for _ in range(3)]
    return all(fits) and not taken(account, 1, 9, Fraction(1, 10**18))


def test_the_shipped_account_is_exact() -> None:
    assert filter_is_exact_at_both_ends()
    assert sums_are_exact()


@pytest.mark.parametrize(("front", "back"), [(1, 0), (0, -1), (0, 1), (-1, 0)])
def test_a_filter_off_by_one_is_caught(
    monkeypatch: pytest.MonkeyPatch, front: int, back: int
) -> None:
    """Booking an observation too few or too many at either end."""
    book = Account.book

    def shifted(self: Account, start: int, stop: int, *, epsilon: Fraction) -> None:
        first, last = max(1, start + front), stop + back
        if first < last:
            book(self, first, last, epsilon=epsilon)

    monkeypatch.setattr(Account, "book", shifted)
    assert not filter_is_exact_at_both_ends()


def test_budgets_added_as_floats_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 + 0.1 + 0.1 is above 0.3 in floats, and 1 + 1e-18 is not above 1."""

    def rounded(runs: Iterable[Run]) -> Iterator[Run]:
        for run in added(runs):
            yield run._replace(epsilon=Fraction(float(run.epsilon)))

    monkeypatch.setattr("streamdp.lab.papers.ledger.added", rounded)
    assert not sums_are_exact()


Total = Callable[[TopicCharges, Sequence[Fraction]], Fraction]


def streams_on_one_topic_add(total: Total) -> bool:
    """Two streams and an estimate that read one record pay the sum; other records do not."""
    levels = [Fraction(1), Fraction(1, 4), Fraction(1, 2), Fraction(3, 2)]
    charges = np.array(
        [[0, 0, 90, 0], [0, 0, 90, 1], [0, 40, 60, 2], [0, 91, 99, 0], [1, 3, 80, 3]]
    )
    orders = (charges, charges[::-1])
    return {total(TopicCharges(*of.T), levels) for of in orders} == {Fraction(7, 4)}


def test_the_shipped_total_adds_over_streams() -> None:
    assert streams_on_one_topic_add(topic_total)


def dearest_line(charges: TopicCharges, levels: Sequence[Fraction]) -> Fraction:
    return max((levels[int(level)] for level in charges.level), default=Fraction(0))


def dearest_stream(charges: TopicCharges, levels: Sequence[Fraction]) -> Fraction:
    streams = [np.array([0, 1]), np.array([2]), np.array([3]), np.array([4])]
    return max(topic_total(charges.of(stream), levels) for stream in streams)


def everything(charges: TopicCharges, levels: Sequence[Fraction]) -> Fraction:
    return sum((levels[level] for level in charges.level.tolist()), Fraction(0))


@pytest.mark.parametrize("wrong", [dearest_line, dearest_stream, everything])
def test_streams_on_one_topic_that_do_not_add_are_caught(
    wrong: Total,
) -> None:
    assert not streams_on_one_topic_add(wrong)
