"""A policy: K probabilities in parts of 2**24 that add up exactly; feedback streams publish it.

Each request draws its action from the policy in force. A policy is a function of public history
(released noisy sums and counts), so it costs nothing. It must be the same bytes on every machine,
because a rebuild has to arrive at the policy that was published and anybody may recompute it.
Therefore everything that decides a part is either an integer or one correctly rounded IEEE 754
operation (+, −, ×, ÷, √) at a time, elementwise. No exponential, logarithm or error function of a
maths library is used, and no floating-point sum whose order numpy is free to choose.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.policy_arithmetic import ordered_sum

PARTS_BITS = 24
PARTS = 1 << PARTS_BITS
"""The sum of a policy's parts. K is at most 10**6, so that each action can have 16."""

Policy = NDArray[np.uint32]
"""K parts that add up to `PARTS`; R × K for many rows. With contexts K parts for each cell."""


def uniform_policy(actions: int) -> Policy:
    """Equal parts; the remainder goes to the first actions, one part each.

    >>> uniform_policy(3)
    array([5592406, 5592405, 5592405], dtype=uint32)
    """
    share, rest = divmod(PARTS, actions)
    parts = np.full(actions, share, dtype=np.uint32)
    parts[:rest] += np.uint32(1)
    return parts


def policy_of(parts: bytes, *, actions: int, cells: int = 1) -> Policy:
    """Decode a published policy, of each cell if there are several; refuse bytes that are not one.

    >>> policy_of(uniform_policy(2).astype("<u4").tobytes(), actions=2)
    array([8388608, 8388608], dtype=uint32)
    """
    if len(parts) != 4 * actions * cells:
        raise InvalidConfig(
            "policy", "length", expected=f"{4 * actions * cells} bytes", got=len(parts)
        )
    policy = np.frombuffer(parts, dtype="<u4").astype(np.uint32)
    totals = policy.reshape(cells, actions).sum(axis=1, dtype=np.int64)
    if (totals != PARTS).any():
        got = int(totals[totals != PARTS][0])
        raise InvalidConfig("policy", "sum of parts", expected=PARTS, got=got)
    return policy


_FINE_BITS = 36  # of a weight before it becomes parts; with PARTS_BITS and the sum below 2**63


def parts_of(chances: Floats) -> Policy:
    """Turn rows of chances that add up to about 1 into policies, within two parts of each chance.

    Cumulative sums are integers and are cut on the grid of parts, so that the differences add up
    exactly, whatever was rounded before.

    >>> parts_of(np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])).tolist()
    [[8388608, 4194304, 4194304], [0, 16777216, 0]]
    """
    fine = np.rint(chances * (1 << _FINE_BITS)).astype(np.int64)
    upto = np.cumsum(fine, axis=-1)
    cut = (upto << PARTS_BITS) // upto[..., -1:]
    parts = cut.astype(np.uint32)
    parts[..., 1:] -= parts[..., :-1].copy()
    return parts


def with_floor(chances: Floats, least: Floats) -> Floats:
    """Raise chances to at least `least`, at the expense of what others have above theirs.

    >>> with_floor(np.array([[0.0, 0.5, 0.5]]), np.full((1, 3), 0.1)).round(3)
    array([[0.1 , 0.45, 0.45]])
    """
    spare = np.maximum(chances - least, 0.0)
    share = (1.0 - ordered_sum(least.T)) / ordered_sum(spare.T)
    return least + spare * share[:, None]
