"""Votes that are forced on a learner with a crowd, and the inputs that an audit compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.randomness import Bits
from streamdp.core.selection import Mechanism, Prior

EPSILON = Fraction(2)

TWO = ("a", "b")

VERTICES = np.array(list(product((0, 1), repeat=2)), np.float32)


@dataclass(frozen=True)
class Forced:
    """A choice that follows a script, and notes how likely that was."""

    choose: Mechanism
    script: tuple[int, ...]
    logs: list[float] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        """As the choice that is forced."""
        return self.choose.name

    @property
    def rate(self) -> Fraction:
        """As the choice that is forced."""
        return self.choose.rate

    def select(self, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        """What the script says; one draw at a time."""
        (row,) = sums
        taken = self.script[len(self.logs)]
        self.logs.append(float(self.choose.log_probabilities(row, prior)[taken]))
        return np.array([taken])

    def log_probabilities(self, sums: Ints, prior: Prior | None = None) -> NDArray[np.float64]:
        """The law of the choice that is forced."""
        return self.choose.log_probabilities(sums, prior)
