"""Does the ledger add what each slot was charged, and refuse exactly what would exceed the budget?

The model is a dict from (account, slot) to a Fraction: too slow to ship, too simple to be wrong.
"""

from __future__ import annotations

import os
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from time import thread_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamdp.core.errors import BudgetExceeded, InvalidConfig
from streamdp.core.ledger import Run, TopicCharges, topic_total
from streamdp.core.ledger.runs import added
from streamdp.lab.papers.ledger import Histories, Ledger

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))

BUDGET = Fraction(1)
EPSILONS = st.sampled_from([Fraction(1, 10), Fraction(1, 3), Fraction(1, 2), Fraction(1)])
SLOTS = st.integers(1, 24)
LENGTHS = st.integers(1, 12)
ONE = Fraction(1)


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def charge(ledger: Ledger, account: int, start: int, stop: int, *, epsilon: Fraction) -> None:
    ledger.book(column(account), column(start), column(stop), epsilon=epsilon)


class AgainstADictOfSlots(RuleBasedStateMachine):
    """Any sequence of bookings leaves what a dict of slots would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(BUDGET)
        self.slots: defaultdict[tuple[int, int], Fraction] = defaultdict(Fraction)
        self.ends: list[int] = []

    def fits(self, charges: list[tuple[int, int, int]], epsilon: Fraction) -> bool:
        total = self.slots.copy()
        for account, start, stop in charges:
            for slot in range(start, stop):
                total[account, slot] += epsilon
        return all(paid <= BUDGET for paid in total.values())

    def charge(self, charges: list[tuple[int, int, int]], epsilon: Fraction) -> None:
        for account, start, stop in charges:
            self.ends[account] = max(self.ends[account], stop)
            for slot in range(start, stop):
                self.slots[account, slot] += epsilon

    @rule(count=st.integers(1, 3))
    def grow(self, count: int) -> None:
        self.ledger.grow(count)
        self.ends += [1] * count

    @rule(data=st.data(), epsilon=EPSILONS)
    def book_blocks_as_engines_do(self, data: st.DataObject, epsilon: Fraction) -> None:
        """Each range starts at its account's end, or is the last stretch before it."""
        self.need_an_account()
        accounts = data.draw(
            st.lists(st.integers(0, len(self.ends) - 1), min_size=1, max_size=4, unique=True)
        )
        length = data.draw(LENGTHS)
        if data.draw(st.booleans()):
            charges = [(a, self.ends[a], self.ends[a] + length) for a in accounts]
        else:
            charges = [(a, max(1, self.ends[a] - length), self.ends[a]) for a in accounts]
        self.book([c for c in charges if c[1] < c[2]], epsilon)

    @rule(data=st.data(), epsilon=EPSILONS)
    def book_anything(self, data: st.DataObject, epsilon: Fraction) -> None:
        self.need_an_account()
        one = st.tuples(st.integers(0, len(self.ends) - 1), SLOTS, LENGTHS)
        drawn = data.draw(st.lists(one, max_size=5))
        self.book([(account, start, start + n) for account, start, n in drawn], epsilon)

    def need_an_account(self) -> None:
        if not self.ends:
            self.grow(1)

    def book(self, charges: list[tuple[int, int, int]], epsilon: Fraction) -> None:
        columns = np.array(charges, dtype=np.int64).reshape(-1, 3).T
        if self.fits(charges, epsilon):
            self.ledger.book(*columns, epsilon=epsilon)
            self.charge(charges, epsilon)
        else:
            with pytest.raises(BudgetExceeded):
                self.ledger.book(*columns, epsilon=epsilon)

    @invariant()
    def every_slot_agrees(self) -> None:
        paid = {at: total for at, total in self.slots.items() if total}
        exported = {
            (account, slot): run.epsilon
            for account in range(len(self.ends))
            for run in self.ledger.export(account)
            for slot in range(run.start, run.stop)
        }
        assert exported == paid
        assert self.ledger.highest() >= max(paid.values(), default=Fraction(0))
        assert self.ledger.highest() <= BUDGET

    @invariant()
    def runs_are_canonical(self) -> None:
        for account in range(len(self.ends)):
            runs = list(self.ledger.export(account))
            for before, after in pairwise(runs):
                assert before.stop < after.start or (
                    before.stop == after.start and before.epsilon != after.epsilon
                )


TestAgainstADictOfSlots = AgainstADictOfSlots.TestCase
TestAgainstADictOfSlots.settings = settings(
    max_examples=60 * TIMES, stateful_step_count=25, deadline=None, derandomize=True
)


@given(start=SLOTS, length=LENGTHS, slot=st.integers(1, 40), other=st.integers(1, 20))
def test_questions_about_slots_are_answered_from_runs(
    start: int, length: int, slot: int, other: int
) -> None:
    ledger = Ledger(ONE)
    ledger.grow(1)
    charge(ledger, 0, 5, 20, epsilon=Fraction(1, 4))
    charge(ledger, 0, start, start + length, epsilon=Fraction(1, 2))
    paid = Fraction(1, 4) * (5 <= slot < 20) + Fraction(1, 2) * (start <= slot < start + length)
    assert ledger.spent(0, slot) == paid
    within = [ledger.spent(0, s) for s in range(slot, slot + other)]
    assert ledger.max_spent(0, slot, slot + other) == max(within)


def test_the_filter_is_exact_to_the_last_slot() -> None:
    """Ten tenths are one; the eleventh is refused on any range that meets them, and only there."""
    ledger = Ledger(ONE)
    ledger.grow(1)
    for _ in range(10):
        ledger.book(column(0), column(8), column(16), epsilon=Fraction(1, 10))
    assert ledger.spent(0, 15) == 1
    tiny = Fraction(1, 10**12)
    for start, stop in [(15, 17), (1, 9), (8, 9), (1, 99)]:
        with pytest.raises(BudgetExceeded, match="expected at most 1, got 1000000000001"):
            charge(ledger, 0, start, stop, epsilon=tiny)
    charge(ledger, 0, 16, 99, epsilon=tiny)
    charge(ledger, 0, 1, 8, epsilon=tiny)
    assert list(ledger.export(0)) == [Run(1, 8, tiny), Run(8, 16, ONE), Run(16, 99, tiny)]


def test_a_refused_bulk_stores_nothing() -> None:
    """However the last of many ranges is refused, the first is not charged."""
    ledger = Ledger(ONE)
    ledger.grow(3)
    ledger.book(column(0, 1), column(1, 1), column(9, 9), epsilon=Fraction(1, 2))
    before = [list(ledger.export(account)) for account in range(3)]
    refused = [
        (column(0, 1, 1), column(9, 1, 1), column(10, 9, 9)),  # one account twice
        (column(2, 0, 1), column(1, 9, 4), column(2, 10, 9)),  # the end of a run
        (column(0, 1), column(9, 3), column(10, 5)),  # the middle of a run
    ]
    for charges in refused:
        with pytest.raises(BudgetExceeded):
            ledger.book(*charges, epsilon=Fraction(2, 3))
    with pytest.raises(BudgetExceeded):
        ledger.book(column(2), column(1), column(2), epsilon=Fraction(3, 2))
    assert [list(ledger.export(account)) for account in range(3)] == before


def test_refusal_says_slots_and_charges_only() -> None:
    ledger = Ledger(ONE)
    ledger.grow(1)
    with pytest.raises(BudgetExceeded) as refusal:
        charge(ledger, 0, 4, 9, epsilon=Fraction(5, 4))
    assert str(refusal.value) == "ledger: slots 4 to 8 charged; expected at most 1, got 5/4"
    assert repr(ledger) == "Ledger(budget=1, accounts=1)"


BAD: list[tuple[str, Callable[[Ledger], object]]] = [
    ("no such account", lambda led: charge(led, 2, 1, 2, epsilon=ONE)),
    ("no such account", lambda led: led.spent(-1, 1)),
    ("no such account", lambda led: list(led.export(2))),
    ("no slots", lambda led: charge(led, 0, 2, 2, epsilon=ONE)),
    ("no slots", lambda led: charge(led, 0, 0, 2, epsilon=ONE)),
    ("uneven", lambda led: led.book(column(0, 1), column(1), column(2), epsilon=ONE)),
    ("not exact", lambda led: charge(led, 0, 1, 2, epsilon=0.1)),  # type: ignore[arg-type]
    ("out of range", lambda led: charge(led, 0, 1, 2, epsilon=Fraction(0))),
    ("not exact", lambda led: Ledger(1)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("what", "act"), BAD)
def test_what_is_no_charge_is_an_error_of_the_caller(
    what: str, act: Callable[[Ledger], object]
) -> None:
    ledger = Ledger(ONE)
    ledger.grow(2)
    with pytest.raises(InvalidConfig, match=what):
        act(ledger)
    assert ledger.highest() == 0


def test_an_empty_bulk_is_no_charge() -> None:
    ledger = Ledger(ONE)
    ledger.book(column(), column(), column(), epsilon=ONE)
    assert len(ledger) == 0


def blocks(kind: str, last_slot: int) -> list[tuple[int, int]]:
    lengths = {
        "dyadic": [2**r for r in range(40)],
        "capped": [1, 2, 4, *[8] * last_slot],
        "restarting": [1, 2, 4, 8] * last_slot,
    }
    edges = [1]
    for length in lengths[kind]:
        if edges[-1] + length > last_slot:
            break
        edges.append(edges[-1] + length)
    return list(pairwise(edges))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["dyadic", "capped", "restarting"])
def test_a_learner_with_an_estimate_holds_few_runs(schedule: str) -> None:
    """Block after block, charged for its action and, from 4 slots on, for an estimate."""
    ledger = Ledger(ONE)
    ledger.grow(4)
    accounts = np.arange(4)
    long_block = Fraction(0)
    for start, stop in blocks(schedule, 15_000):
        ranges = (accounts, np.full(4, start), np.full(4, stop))
        ledger.book(*ranges, epsilon=Fraction(1, 2))
        if stop - start >= 4:
            ledger.book(*ranges, epsilon=Fraction(1, 4))
            long_block = Fraction(3, 4)
        assert ledger.spent(3, stop - 1) == (long_block if stop - start >= 4 else Fraction(1, 2))
    runs = list(ledger.export(0))
    if schedule != "restarting":
        assert len(runs) == 2
    else:
        assert len(runs) == 2 * 1000
    nodes = len(ledger._histories.nodes)  # what all four share
    assert nodes <= 2 * len(runs) + 1024
    assert ledger.highest() == Fraction(3, 4)


def test_sweeping_forgets_only_what_no_account_reaches() -> None:
    """Refused batches leave histories that nobody reaches; every account keeps its own."""
    ledger, third = Ledger(ONE), Fraction(1, 3)
    ledger.grow(50)
    for slot in range(1, 400):
        for account in range(0, 50, 7):
            stop = 3 * slot + account
            if slot % 40 == 0:
                charge(ledger, account, stop - 2, stop, epsilon=third)
                continue
            starts = column(stop - 2, *[stop + 1] * 4)  # the last is the fourth third of its slot
            with pytest.raises(BudgetExceeded):
                ledger.book(np.full(5, account), starts, starts + 1, epsilon=third)
    kept = [[3 * slot + account for slot in range(40, 400, 40)] for account in range(0, 50, 7)]
    for account, stops in zip(range(0, 50, 7), kept, strict=True):
        assert list(ledger.export(account)) == [Run(stop - 2, stop, third) for stop in stops]
    assert len(ledger._histories.nodes) < 2 * 1024


def test_a_young_list_is_not_swept() -> None:
    histories = Histories()
    histories.sweep(np.zeros(1, dtype=np.int32))
    assert len(histories.nodes) == 1


def test_a_million_accounts_cost_at_most_32_bytes_each() -> None:
    """Measured, after growing by portions and booking three blocks and an estimate each."""
    tracemalloc.start()
    try:
        ledger = Ledger(ONE)
        for _ in range(10):
            ledger.grow(100_000)
        accounts = np.arange(1_000_000)
        for start, stop in [(1, 2), (2, 5), (5, 12)]:
            ranges = (accounts, np.full(len(accounts), start), np.full(len(accounts), stop))
            ledger.book(*ranges, epsilon=Fraction(1, 2))
        ledger.book(*ranges, epsilon=Fraction(1, 4))
        del ranges, accounts
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held <= 32 * 1_000_000
    assert ledger.spent(999_999, 11) == Fraction(3, 4)


def test_a_bulk_of_next_blocks_is_booked_at_array_speed() -> None:
    """Together, a range costs less than a hundredth of one booked alone (100 million a second)."""
    ledger, other = Ledger(ONE), Ledger(ONE)
    ledger.grow(100_000)
    other.grow(1)
    accounts = np.random.default_rng(1).permutation(100_000)
    bulk, single = [], []
    for block in range(8):
        ranges = (accounts, np.full(100_000, 2**block), np.full(100_000, 2 ** (block + 1)))
        begin = thread_time()
        ledger.book(*ranges, epsilon=Fraction(1, 2))
        bulk.append((thread_time() - begin) / 100_000)
        begin = thread_time()
        for _ in range(10):
            charge(other, 0, 2**block, 2 ** (block + 1), epsilon=Fraction(1, 20))
        single.append((thread_time() - begin) / 10)
    assert min(bulk) < min(single) / 100


def test_ranges_of_one_account_that_join_are_one_booking() -> None:
    ledger = Ledger(ONE)
    ledger.grow(2)
    ledger.book(column(0, 0, 0, 1), column(1, 2, 4, 1), column(2, 4, 8, 2), epsilon=ONE)
    assert list(ledger.export(0)) == [Run(1, 8, ONE)]
    assert list(ledger.export(1)) == [Run(1, 2, ONE)]


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
