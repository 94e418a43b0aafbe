"""The array types that all modules share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]

Table = NDArray[Any]
"""An array with named fields."""

Columns = Mapping[str, NDArray[Any]]
"""Columns by name, with an entry for each row."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a bank: numbers that each key's row keeps; zeros in a new row."""

    name: str
    dtype: type[np.generic]
    shape: tuple[int, ...] = ()  # of one row
    cleared: bool = True
    """A private column: whether it is set to 0 when a block ends."""
