"""Audits the shipped code: does a kind of stream cost each event at most what its ledger says?

There are four layers; `audit_kind` runs those that need no service, for any kind:

1. *Exact* (`exposure`, `transcripts`, `sweep`): all short streams, every replacement, closed-form
   laws, on what the shipped engine lets its releases be drawn from; and base sums up to 256 slots.
2. *Engine*. In blocks of up to 256 slots, in batches and slot by slot, with real bits, saves,
   rebuilds, idle keys, keys without a row and new epochs: every draw, what it got, what came out
   and what is in force, against the log and the drawn bits (`long_blocks`). Releases from outside
   against their exact law (`sampler`). The bits of production (`system_bits`), choices of very many
   actions or rows, and very rare words (`races`).
3. *Black box* (`blackbox`): neighbouring logs through any implementation, seen from outside.
4. *Non-interference* (`interference`): only charged releases depend on content.

`neighbours` holds what differs by kind: contents, what each adds, and the laws of releases.
`flaws_of_choosing` looks at how requests draw from policies (`choosing`). The papers' learners
whose phases end by an arm's count have an audit of their own (`lab.papers.audit`).

A verdict allows `TOLERANCE` for rounding. The broken variants of `tests.support.mutants` show what
each of its `LAYERS` finds.
"""

from streamdp.lab.audit.around import Around
from streamdp.lab.audit.blackbox import CONFIDENCE, EpsilonBound, lower_bound, pairs
from streamdp.lab.audit.choosing import flaws_of_choosing
from streamdp.lab.audit.interference import leaks
from streamdp.lab.audit.laws import TOLERANCE
from streamdp.lab.audit.long_blocks import LONGEST, misdeeds
from streamdp.lab.audit.neighbours import NEIGHBOURS, neighbours_of
from streamdp.lab.audit.races import flaws_of_races
from streamdp.lab.audit.sampler import FALSE_ALARM, Chi2, sample
from streamdp.lab.audit.sweep import sweep
from streamdp.lab.audit.system_bits import flaws_of_system_bits
from streamdp.lab.audit.verdict import LAYERS, Audit, Findings, Memo, audit_kind

__all__ = [
    "CONFIDENCE",
    "FALSE_ALARM",
    "LAYERS",
    "LONGEST",
    "NEIGHBOURS",
    "TOLERANCE",
    "Around",
    "Audit",
    "Chi2",
    "EpsilonBound",
    "Findings",
    "Memo",
    "audit_kind",
    "flaws_of_choosing",
    "flaws_of_races",
    "flaws_of_system_bits",
    "leaks",
    "lower_bound",
    "misdeeds",
    "neighbours_of",
    "pairs",
    "sample",
    "sweep",
]
