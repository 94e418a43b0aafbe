"""How good a learner is, as far as it may be said.

`bounds` holds what theorems promise: functions of public numbers only, so they may be shown
anywhere. `estimates` holds what is measured: private, noisy, charged to the slots it was read
from, and shown only because it is a release like any other. Exact regret is neither: it is the
operator's.
"""

from streamdp.core.regret.bounds import (
    Bound,
    bound_of,
    deterministic_lower_bound,
    leader_bound,
    lower_bound,
    minimax_lower_bound,
    prefix_softmax_bound,
    prefix_softmax_minimax,
    resampled_leader_bound,
)
from streamdp.core.regret.estimates import ESTIMATES, Estimate, estimate, full_charge, shares

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
    "minimax_lower_bound",
    "prefix_softmax_bound",
    "prefix_softmax_minimax",
    "resampled_leader_bound",
    "shares",
]
