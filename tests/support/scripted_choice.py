"""Choices and estimates that a script makes, for services that ask a learner what it is."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from streamdp.core.arrays import Floats, Ints
from streamdp.core.engine.releasing import Fresh
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


def releases_scripted_estimates(patch: pytest.MonkeyPatch) -> None:
    """Whatever happened, these are the estimates that are released."""
    released = Fresh.released

    def scripted(self: Fresh, name: str, rows: Ints) -> Ints:
        which = [release.name for release in self.kind.releases].index(name) - 1
        if which < 0:
            return released(self, name, rows)
        return (self.bank.block[rows] * 1000 + which)[:, None]

    patch.setattr(Fresh, "released", scripted)
