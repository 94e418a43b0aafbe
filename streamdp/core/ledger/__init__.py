"""The exact record of charges, and the filter that refuses what would exceed the budget.

Rules:

1. **Charge before drawing.** `book` comes before any randomness touches the data. It either stores
   every charge of a batch or raises `BudgetExceeded` and stores nothing; a charge is never clamped.
2. **A refusal depends on public slot ranges only**: on earlier charges, never on content.
3. **A slot's charges add, slots do not.** Charges on one slot add up (sequential composition);
   different slots hold different events, so the guarantee is the maximum over slots (parallel
   composition). Time does not use the budget up; charging the same slots again does.
4. **Exact.** Charges are `Fraction`s: ten times 1/10 is 1, not 0.9999999999999999.
5. **The budget belongs to the input topic** (P11). No single ledger can answer for what several
   streams and epochs charge the same records, so `topic_total` adds their lines.

`accounts` holds the ledger of one engine, `runs` the arithmetic of ranges, `topic` the sum over
ledgers. Tests: `tests/test_ledger.py` compares with a dict of slots; the mutants in
`tests/test_audit_accounting.py` are a filter off by one, budgets added as floats, and streams on
one topic that do not add up.
"""

from streamdp.core.ledger.accounts import Ledger
from streamdp.core.ledger.runs import Run
from streamdp.core.ledger.topic import TopicCharge, topic_total

__all__ = ["Ledger", "Run", "TopicCharge", "topic_total"]
