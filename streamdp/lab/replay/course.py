"""Values over the slots of a key, for charts of feedback learners."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamdp.core.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A value over the slots of a key: its mean and a band."""

    slots: Ints
    mean: Floats
    low: Floats
    high: Floats

    def since(self, slot: int) -> Trajectory:
        """The part from a slot on; all of it if it ends earlier."""
        kept = slice(int(np.searchsorted(self.slots[:-1], slot)), None)
        return Trajectory(self.slots[kept], self.mean[kept], self.low[kept], self.high[kept])


@dataclass(frozen=True, slots=True)
class Shares:
    """How often each action was shown by the policies of one key, mean over seeds or runs."""

    starts: Ints  # the first slot of each block
    shares: Floats  # blocks × K
