"""What audits of learners with a crowd compare: inputs, and the largest ratio over transcripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import NDArray

EPSILON = Fraction(2)

TWO = ("a", "b")

VERTICES = np.array(list(product((0, 1), repeat=2)), np.float32)

_Losses = NDArray[np.float32]
_Script = tuple[int, ...]


def largest_ratio(
    base: _Losses,
    varied: int,
    scripts: Iterable[_Script],
    log_probability: Callable[[_Losses, _Script], float],
) -> float:
    """The largest log-ratio that the content of one record makes, over these transcripts."""
    ratio = 0.0
    for script in scripts:
        logs = []
        for vertex in VERTICES:
            losses = base.copy()
            losses[varied] = vertex
            logs.append(log_probability(losses, script))
        ratio = max(ratio, max(logs) - min(logs))
    return ratio
