"""What audits of learners with a crowd compare: inputs, and the largest ratio over transcripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import NDArray

EPSILON = Fraction(2)

TWO = ("a", "b")

VERTICES = np.array(list(product((0, 1), repeat=2)), np.float32)

_Losses = NDArray[np.float32]
_Script = tuple[int, ...]


def largest_ratios(
    base: _Losses,
    varied: Sequence[int],
    scripts: Iterable[_Script],
    log_probability: Callable[[_Losses, _Script], float],
) -> dict[int, float]:
    """The largest log-ratio that the content of each of these records makes, over transcripts.

    One content of each record is that of the base, whose life is lived once for each transcript.
    """
    ratios = dict.fromkeys(varied, 0.0)
    for script in scripts:
        usual = log_probability(base, script)
        for record in varied:
            logs = [usual]
            for vertex in VERTICES:
                if not np.array_equal(vertex, base[record]):
                    losses = base.copy()
                    losses[record] = vertex
                    logs.append(log_probability(losses, script))
            assert len(logs) == len(VERTICES), "the base's content is no vertex"
            ratios[record] = max(ratios[record], max(logs) - min(logs))
    return ratios
