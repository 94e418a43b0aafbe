"""What the observations of one arm were charged, within a budget.

The papers' learners charge ranges that do not follow from a schedule. A charge that does not fit is
refused as a whole: it is never clamped.
"""

from __future__ import annotations

from fractions import Fraction

from streamdp.core.errors import BudgetExceeded, InvalidConfig
from streamdp.core.ledger.runs import NOTHING, Run, added


class Account:
    """Charges of ranges of observations, and the filter that keeps their sums in the budget.

    >>> account = Account(Fraction(1))
    >>> account.book(1, 8, epsilon=Fraction(7, 10))
    >>> account.book(7, 9, epsilon=Fraction(4, 10))
    Traceback (most recent call last):
    streamdp.core.errors.BudgetExceeded: ledger: observations 7 to 8 charged; expected at most 1, \
got 11/10
    >>> account.spent(7), account.spent(8)
    (Fraction(7, 10), Fraction(0, 1))
    """

    __slots__ = ("budget", "runs")

    def __init__(self, budget: Fraction) -> None:
        self.budget = budget
        self.runs: list[Run] = []  # every charged observation, in order; neighbours differ

    def book(self, start: int, stop: int, *, epsilon: Fraction) -> None:
        """Charge the observations [start, stop), or raise and charge none."""
        if not (isinstance(epsilon, Fraction) and epsilon > 0 and 1 <= start < stop):
            expected, got = "a Fraction above 0, 1 ≤ start < stop", f"{epsilon!r}, {start}, {stop}"
            raise InvalidConfig("ledger", "no charge", expected=expected, got=got)
        kept = len(self.runs)
        while kept and self.runs[kept - 1].stop >= start:  # one that ends at the start may join
            kept -= 1
        changed = list(added([*self.runs[kept:], Run(start, stop, epsilon)]))
        most = max(run.epsilon for run in changed)
        if most > self.budget:
            what, expected = f"observations {start} to {stop - 1} charged", f"at most {self.budget}"
            raise BudgetExceeded("ledger", what, expected=expected, got=most)
        self.runs[kept:] = changed

    def spent(self, observation: int) -> Fraction:
        """What one observation was charged in total."""
        charged = (run.epsilon for run in self.runs if run.start <= observation < run.stop)
        return next(charged, NOTHING)
