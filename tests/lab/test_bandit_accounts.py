"""Does an arm's account add what was charged, and refuse exactly what would exceed the budget?

The model is a dict from observations to Fractions: too slow to ship, too simple to be wrong.
"""

from __future__ import annotations

import os
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamdp.core.errors import BudgetExceeded, InvalidConfig
from streamdp.core.ledger import Run
from streamdp.lab.papers.ledger import Account

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))

ONE = Fraction(1)
EPSILONS = st.sampled_from([Fraction(1, 10), Fraction(1, 3), Fraction(1, 2), ONE])
LENGTHS = st.integers(1, 12)


class AgainstADictOfObservations(RuleBasedStateMachine):
    """Any sequence of bookings leaves what a dict of observations would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.account = Account(ONE)
        self.paid: defaultdict[int, Fraction] = defaultdict(Fraction)

    @rule(length=LENGTHS, epsilon=EPSILONS)
    def book_the_next_phase(self, length: int, epsilon: Fraction) -> None:
        start = max(self.paid, default=0) + 1
        self.book(start, start + length, epsilon)

    @rule(length=LENGTHS, epsilon=EPSILONS)
    def book_the_end_once_more(self, length: int, epsilon: Fraction) -> None:
        stop = max(self.paid, default=0) + 1
        self.book(max(1, stop - length), stop, epsilon)

    @rule(start=st.integers(1, 24), length=LENGTHS, epsilon=EPSILONS)
    def book_anything(self, start: int, length: int, epsilon: Fraction) -> None:
        self.book(start, start + length, epsilon)

    def book(self, start: int, stop: int, epsilon: Fraction) -> None:
        charged = range(start, stop)
        if all(self.paid.get(at, 0) + epsilon <= ONE for at in charged) and charged:
            self.account.book(start, stop, epsilon=epsilon)
            for at in charged:
                self.paid[at] += epsilon
        else:
            with pytest.raises(BudgetExceeded if charged else InvalidConfig):
                self.account.book(start, stop, epsilon=epsilon)

    @invariant()
    def every_observation_agrees(self) -> None:
        last = max(self.paid, default=0) + 2
        assert [self.account.spent(at) for at in range(1, last)] == [
            self.paid.get(at, 0) for at in range(1, last)
        ]

    @invariant()
    def runs_are_canonical(self) -> None:
        for before, after in pairwise(self.account.runs):
            assert before.stop <= after.start
            assert before.stop < after.start or before.epsilon != after.epsilon


TestAgainstADictOfObservations = AgainstADictOfObservations.TestCase
TestAgainstADictOfObservations.settings = settings(
    max_examples=60 * TIMES, stateful_step_count=25, deadline=None, derandomize=True
)


def test_the_filter_is_exact_to_the_last_observation() -> None:
    """Ten tenths are one; the eleventh is refused on any range that meets them, and only there."""
    account, tiny = Account(ONE), Fraction(1, 10**12)
    for _ in range(10):
        account.book(8, 16, epsilon=Fraction(1, 10))
    for start, stop in [(15, 17), (1, 9), (8, 9), (1, 99)]:
        with pytest.raises(BudgetExceeded, match=r"at most 1, got 1000000000001/1000000000000"):
            account.book(start, stop, epsilon=tiny)
    account.book(16, 99, epsilon=tiny)
    account.book(1, 8, epsilon=tiny)
    assert account.runs == [Run(1, 8, tiny), Run(8, 16, ONE), Run(16, 99, tiny)]


@pytest.mark.parametrize(
    ("start", "stop", "epsilon"), [(2, 2, ONE), (0, 2, ONE), (1, 2, 0.1), (1, 2, Fraction(0))]
)
def test_what_is_no_charge_is_an_error_of_the_caller(start: int, stop: int, epsilon: Any) -> None:
    account = Account(ONE)
    with pytest.raises(InvalidConfig, match="no charge"):
        account.book(start, stop, epsilon=epsilon)
    assert account.runs == []
