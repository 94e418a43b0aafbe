"""How good a learner is, as far as this may be shown.

`bounds` holds what theorems promise: functions of public numbers only, which may be shown anywhere.
Estimates (`core.kinds.estimates`) are measurements: noisy releases, charged to their slots like any
other release. Exact regret is neither: `streamdp replay` computes it offline, from a log of losses.
"""

from streamdp.core.kinds.estimates import ESTIMATES, Estimate, estimate
from streamdp.core.kinds.kind import full_charge, shares
from streamdp.core.regret.bounds import (
    Bound,
    bound_of,
    deterministic_lower_bound,
    leader_bound,
    lower_bound,
    prefix_softmax_bound,
    prefix_softmax_minimax,
    resampled_leader_bound,
)

__all__ = [
    "ESTIMATES",
    "Bound",
    "Estimate",
    "bound_of",
    "deterministic_lower_bound",
    "estimate",
    "full_charge",
    "leader_bound",
    "lower_bound",
    "prefix_softmax_bound",
    "prefix_softmax_minimax",
    "resampled_leader_bound",
    "shares",
]
