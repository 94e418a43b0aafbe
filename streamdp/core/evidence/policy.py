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

from streamdp.core.errors import InvalidConfig, complaint

PARTS_BITS = 24
PARTS = 1 << PARTS_BITS
"""What the parts of a policy add up to. K is at most 10**6, so that each may have 16."""

Policy = NDArray[np.uint32]
"""K parts that add up to `PARTS`; R × K for many rows."""


def uniform_policy(actions: int) -> Policy:
    """Equal parts; what does not divide goes to the first actions, one each.

    >>> uniform_policy(3)
    array([5592406, 5592405, 5592405], dtype=uint32)
    """
    each, rest = divmod(PARTS, actions)
    parts = np.full(actions, each, dtype=np.uint32)
    parts[:rest] += np.uint32(1)
    return parts


def policy_of(parts: bytes, *, actions: int) -> Policy:
    """A published policy as parts, refused if it is none.

    >>> policy_of(uniform_policy(2).astype("<u4").tobytes(), actions=2)
    array([8388608, 8388608], dtype=uint32)
    """
    if len(parts) != 4 * actions:
        raise InvalidConfig(
            complaint("policy", "length", expected=f"{4 * actions} bytes", got=len(parts))
        )
    policy = np.frombuffer(parts, dtype="<u4").astype(np.uint32)
    total = int(policy.sum(dtype=np.int64))
    if total != PARTS:
        raise InvalidConfig(complaint("policy", "sum of parts", expected=PARTS, got=total))
    return policy


def part_owner(policy: Policy, part: int) -> int:
    """The action that owns one of the `PARTS` parts: a uniform part draws from the policy.

    >>> part_owner(np.array([1, PARTS - 1], dtype=np.uint32), 0)
    0
    """
    if not 0 <= part < PARTS:
        raise InvalidConfig(complaint("part", "out of range", expected=f"< {PARTS}", got=part))
    return int(np.searchsorted(np.cumsum(policy, dtype=np.int64), part, side="right"))
