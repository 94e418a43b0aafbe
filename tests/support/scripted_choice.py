"""A choice that a script makes: for services that ask a learner what kind of leader it is."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.randomness import Bits
from streamdp.core.selection import Prior
from streamdp.lab.audit.script import ScriptedBits


@dataclass(frozen=True, slots=True)
class ScriptedChoice:
    """Returns the script's action."""

    name: str = "scripted"
    rate: Fraction = Fraction(1)

    def select(self, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        """The scripted action of each row."""
        assert isinstance(bits, ScriptedBits)
        last = bits.script.actions.shape[1] - 1
        chosen: Ints = bits.script.actions[bits.runs, np.minimum(bits.indices + 1, last)]
        return chosen

    def log_probabilities(self, sums: Ints, prior: Prior | None = None) -> Floats:
        """A script has no law."""
        raise TypeError("a scripted choice has no law")
