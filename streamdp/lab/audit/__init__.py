"""Audits the shipped code: does a learner cost each event at most what its ledger says?

There are four layers; `audit_learner` runs those that need no service:

1. *Exact* (`exposure`, `transcripts`, `sweep`): all short streams, every replacement, closed-form
   laws, on what the shipped engine lets its selections read; and base sums up to 256 slots.
2. *Engine*: whole transcripts of the shipped engine, and the noise of its estimates, against their
   exact law (`sampler`). In blocks of up to 256 slots, in batches and slot by slot, with real bits,
   saves and rebuilds: every draw and its input against the log (`long_blocks`), and releases from
   outside (`long_sampler`).
   The bits of production (`system_bits`), and selections of very many actions or rows (`races`).
3. *Black box* (`blackbox`): neighbouring logs through any implementation, seen from outside.
4. *Non-interference* (`interference`): only charged releases depend on content.

`audit_feedback_learner` asks the same for learners that see the shown action's loss only
(`feedback`, and `feedback_blocks` for every number in long blocks); `feedback_blackbox` looks at
their released sums from outside, and `flaws_of_choosing` at how requests draw from their policies
(`choosing`). `audit_bandit` is for the papers' learners of that kind (`bandits`).

A verdict allows `TOLERANCE` for rounding. Broken variants in `tests/test_audit_*.py` show what the
audit catches.
"""

from streamdp.lab.audit.bandits import audit_bandit
from streamdp.lab.audit.blackbox import CONFIDENCE, EpsilonBound, lower_bound, pairs
from streamdp.lab.audit.choosing import flaws_of_choosing
from streamdp.lab.audit.feedback import audit_feedback_learner
from streamdp.lab.audit.interference import leaks
from streamdp.lab.audit.long_blocks import misdeeds
from streamdp.lab.audit.long_sampler import sample_long
from streamdp.lab.audit.races import flaws_of_races
from streamdp.lab.audit.sampler import FALSE_ALARM, Chi2, sample
from streamdp.lab.audit.sweep import LONGEST, sweep
from streamdp.lab.audit.system_bits import flaws_of_system_bits
from streamdp.lab.audit.transcripts import TOLERANCE
from streamdp.lab.audit.verdict import Audit, Memo, audit_learner

__all__ = [
    "CONFIDENCE",
    "FALSE_ALARM",
    "LONGEST",
    "TOLERANCE",
    "Audit",
    "Chi2",
    "EpsilonBound",
    "Memo",
    "audit_bandit",
    "audit_feedback_learner",
    "audit_learner",
    "flaws_of_choosing",
    "flaws_of_races",
    "flaws_of_system_bits",
    "leaks",
    "lower_bound",
    "misdeeds",
    "pairs",
    "sample",
    "sample_long",
    "sweep",
]
