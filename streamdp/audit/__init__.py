"""Checks of what is shipped: does a learner cost each event at most what its ledger says?

Four layers, of which `audit_learner` goes through those that need no service:

1. *Exact* (`exposure`, `transcripts`, `sweep`): all short streams, every replacement, closed-form
   laws, on what the shipped engine lets its selections read; and base sums up to 256 slots.
2. *Sampler* (`sampler`): whole transcripts of the shipped engine, and the noise of its estimates,
   against their exact law.
3. *Black box* (`blackbox`): neighbouring logs through whatever runs them, seen from outside.
4. *Non-interference* (`interference`): what is no charged release does not depend on content.

A verdict allows `TOLERANCE` for rounding. What the audit catches is shown by broken variants in
`tests/test_audit_*.py`.
"""

from streamdp.audit.blackbox import CONFIDENCE, Bound, lower_bound, pairs
from streamdp.audit.interference import leaks
from streamdp.audit.sampler import FALSE_ALARM, Chi2, sample
from streamdp.audit.sweep import LONGEST, sweep
from streamdp.audit.transcripts import TOLERANCE
from streamdp.audit.verdict import Audit, Memo, audit_learner

__all__ = [
    "CONFIDENCE",
    "FALSE_ALARM",
    "LONGEST",
    "TOLERANCE",
    "Audit",
    "Bound",
    "Chi2",
    "Memo",
    "audit_learner",
    "leaks",
    "lower_bound",
    "pairs",
    "sample",
    "sweep",
]
