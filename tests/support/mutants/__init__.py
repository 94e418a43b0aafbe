"""Engines, learners and draws that each break one promise: a table, which one loop tests.

`tests/lab/test_mutants.py` asks of each row the layer of the audit that is to find it. A new rule's
mutant is one row, in the file of its subject. Those of long blocks are not found by an audit that
enumerates streams of three blocks, sweeps single selections and samples two blocks under seeded
bits.

Mutants of what has an audit of its own stand there: the papers' learners (`test_audit_bandits`),
budgets (`test_audit_accounting`), and what the real service shows (`test_audit_blackbox`).
"""

from tests.support.mutants import (
    content,
    contexts,
    draws,
    estimates,
    feedback,
    kinds,
    late_feedback,
    losses,
    short_streams,
    transcripts,
)
from tests.support.mutants.table import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "content",
    "contexts",
    "draws",
    "estimates",
    "feedback",
    "kinds",
    "late_feedback",
    "losses",
    "short_streams",
    "transcripts",
]
