"""The types of the arrays that rooms pass to each other, once for all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]
