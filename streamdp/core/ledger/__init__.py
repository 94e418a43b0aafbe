"""The arithmetic of charges.

1. **A slot's charges add, slots do not.** Charges on one slot add up (sequential composition);
   different slots hold different events, so the guarantee is the maximum over slots (parallel
   composition). Time does not use the budget up; charging the same slots again does.
2. **Exact.** Charges are `Fraction`s: ten times 1/10 is 1, not 0.9999999999999999.
3. **The budget belongs to the input topic** (P11). No single engine can answer for what several
   streams and epochs charge the same records, so `topic_total` adds their lines.

`core.engine.charging` is the guard of one engine. Tests: `test_ledger.py`; the mutants are in
`tests/lab/test_audit_accounting.py`.
"""

from streamdp.core.ledger.runs import Run
from streamdp.core.ledger.topic import TopicCharges, topic_total

__all__ = ["Run", "TopicCharges", "topic_total"]
