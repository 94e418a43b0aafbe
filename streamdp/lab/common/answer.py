"""What a learner did: values over the slots of a key, and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from streamdp.core.arrays import Floats, Ints

BAND = (10, 90)
"""The percentiles between which a band lies."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A value over the slots of a key: its mean and a band."""

    slots: Ints
    mean: Floats
    low: Floats
    high: Floats

    @classmethod
    def of_runs(cls, slots: Ints, values: Floats) -> Trajectory:
        """Of runs or seeds (runs × slots): the mean and the middle 80 %."""
        low, high = np.percentile(values, BAND, axis=0)
        return cls(slots, values.mean(axis=0), low, high)

    def as_json(self, *, most: int | None = None) -> dict[str, list[float]]:
        """About so many of its points at most: capped blocks may be thousands."""
        kept = slice(None, None, 1 if most is None else max(1, len(self.slots) // most))
        return {name: getattr(self, name)[kept].tolist() for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Shares:
    """How often each action was shown by the policies of one key, mean over seeds or runs."""

    starts: Ints  # the first slot of each block
    shares: Floats  # blocks × K

    def as_json(self) -> dict[str, object]:
        """A policy for each block."""
        return {"starts": self.starts.tolist(), "policy": self.shares.tolist()}


def standard_error(values: Floats, *, alone: float = 0.0) -> float:
    """Of the mean of independent values; `alone` where there is one, which says nothing of it.

    >>> import numpy as np
    >>> standard_error(np.array([1.0, 3.0])), standard_error(np.array([7.0]))
    (1.0, 0.0)
    """
    return float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else alone
