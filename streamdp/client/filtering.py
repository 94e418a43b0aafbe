"""What a request may be shown: a policy over the actions that are allowed, in integers.

A request may exclude actions: what is in the basket, sold out, or was shown a moment ago. Then it
draws from `allowed`, which is the same for every reader, in any language:

1. An action that is not allowed has no parts; the parts of the others are scaled up to 2^24. They
   are added up in the actions' order, and each end becomes ⌊end × 2^24 / their sum⌋. (No number
   reaches 2^53, so doubles do it.) If the policy has no parts for any of them, they are equal.
   An action is *back* if the newest list allows it, and the policy follows an earlier one that did
   not: the policy says nothing of it, and it would wait for the next one. Of m allowed actions the
   n that are back get 2^24 × n / m parts, at most half; the others are scaled up to the rest.
2. The draw also hashes the filter (`digest`), after the request's id. Otherwise a request that is
   asked again without the action that it got would get another one almost surely, whatever the
   stated probability says.
3. A filter that excludes nothing is none, unless an action is back: the draw is the unfiltered one.
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


def allowed(ends: Sequence[int], mask: Mask, back: Mask | None = None) -> list[int]:
    """The ends of a policy's parts over what the mask allows, which is at least one action.

    >>> allowed([PARTS // 2, PARTS * 3 // 4, PARTS], [False, True, True])
    [0, 8388608, 16777216]
    >>> allowed([PARTS // 2, PARTS // 2, PARTS], [True] * 3, [False, True, False])
    [5592405, 11184811, 16777216]
    """
    parts = np.diff(np.array(ends, dtype=np.int64), prepend=0) * mask
    some, new = int(np.count_nonzero(mask)), np.zeros(len(parts), dtype=np.int64)
    if not parts.any():
        parts = np.array(mask, dtype=np.int64)
    elif back is not None:
        new = np.array(mask, dtype=np.int64) * back
    added, came = parts.cumsum(), new.cumsum()
    others = max(some - int(came[-1]), int(came[-1]))
    left = PARTS * others // (others + int(came[-1]))
    scaled: list[int] = (
        added * left // added[-1] + came * (PARTS - left) // max(came[-1], 1)
    ).tolist()
    return scaled


def digest(mask: Mask) -> bytes:
    """Names a filter: a hash of one bit for each action, the first in the lowest bit.

    >>> digest([True, False]).hex()
    '4bf5122f344554c5'
    """
    return sha256(np.packbits(mask, bitorder="little").tobytes()).digest()[:DIGEST_BYTES]
