"""How far a mean over runs or seeds may be from what it estimates."""

from __future__ import annotations

from math import sqrt

from streamdp.core.arrays import Floats


def standard_error(values: Floats, *, alone: float = 0.0) -> float:
    """Of the mean of independent values; `alone` where there is one, which says nothing of it.

    >>> import numpy as np
    >>> standard_error(np.array([1.0, 3.0])), standard_error(np.array([7.0]))
    (1.0, 0.0)
    """
    return float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else alone
