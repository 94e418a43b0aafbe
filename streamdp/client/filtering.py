"""What a request may be shown: a policy over the actions that are allowed, in integers.

A request may exclude actions: what is in the basket, sold out, or was shown a moment ago. Then it
draws from `allowed`, which is the same for every reader, in any language:

1. An action that is not allowed has no parts; the parts of the others are scaled up to 2^24. They
   are added up in the actions' order, and each end becomes ⌊end × 2^24 / their sum⌋. (No number
   reaches 2^53, so doubles do it.) If the policy has no parts for any of them, they are equal.
2. The draw also hashes the filter (`digest`), after the request's id. Otherwise a request that is
   asked again without the action that it got would get another one almost surely, whatever the
   stated probability says.
3. A filter that excludes nothing is none: the draw is the unfiltered one.
4. If nothing is allowed the answer says so (`Why.NOTHING_ALLOWED`), with an empty name.

`filtered.tsv`, beside this file, has parts and draws for other languages' readers to be held
against.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from streamdp.core.arrays import Bools
from streamdp.core.evidence.policy import PARTS

DIGEST_BYTES = 8

Mask = Sequence[bool] | Bools
"""Whether each action is allowed, in the actions' order."""


def allowed(ends: Sequence[int], mask: Mask) -> list[int]:
    """The ends of a policy's parts over what the mask allows, which is at least one action.

    >>> allowed([PARTS // 2, PARTS * 3 // 4, PARTS], [False, True, True])
    [0, 8388608, 16777216]
    """
    parts = np.diff(np.array(ends, dtype=np.int64), prepend=0) * mask
    if not parts.any():
        parts = np.array(mask, dtype=np.int64)
    added = parts.cumsum()
    scaled: list[int] = (added * PARTS // added[-1]).tolist()
    return scaled


def digest(mask: Mask) -> bytes:
    """Names a filter: a hash of one bit for each action, the first in the lowest bit.

    >>> digest([True, False]).hex()
    '4bf5122f344554c5'
    """
    return sha256(np.packbits(mask, bitorder="little").tobytes()).digest()[:DIGEST_BYTES]
