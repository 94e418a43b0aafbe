"""Checks of what is shipped: does a learner cost each event at most what its ledger says?

Four layers, of which three need no service:

1. *Exact* (`exposure`, `transcripts`, `sweep`): all short streams, every replacement, closed-form
   laws, on what the shipped engine lets its selections read; and base sums up to 256 slots.
2. *Sampler* (`sampler`): whole transcripts of the shipped engine against their exact law.
3. *Black box*: neighbouring logs through the running service; it belongs to the service.
4. *Non-interference* (`interference`): what is no charged release does not depend on content.

A verdict allows `TOLERANCE` for rounding. What the audit catches is shown by broken variants in
`tests/test_audit_*.py`.
"""

from streamdp.audit.interference import leaks
from streamdp.audit.sampler import FALSE_ALARM, Chi2, sample
from streamdp.audit.sweep import LONGEST, sweep
from streamdp.audit.transcripts import TOLERANCE
from streamdp.audit.verdict import Audit, Memo, audit_learner

__all__ = [
    "FALSE_ALARM",
    "LONGEST",
    "TOLERANCE",
    "Audit",
    "Chi2",
    "Memo",
    "audit_learner",
    "leaks",
    "sample",
    "sweep",
]
