"""The port of a private choice of one among K, for learners, audits and other authors.

Every mechanism takes exact integer sums on the loss grid (smaller is better) and returns the winner
of a noisy comparison. Its charge is not defined here: `core.calibration` derives a rate from ε and
gives the reason.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

from streamdp.core.arrays import Floats, Ints
from streamdp.core.randomness import Bits
from streamdp.core.selection.prior import Prior


class Mechanism(Protocol):
    """A private choice of one action from integer sums."""

    @property
    def name(self) -> str:
        """Its name in configuration and ledger."""

    @property
    def rate(self) -> Fraction:
        """Noise units per unit of loss: twice the rate is the ε of one replaced loss vector."""

    def select(self, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        """The winner of each row of `sums` (R × K, |sum| ≤ 2⁶¹), one draw of `bits` for each."""

    def log_probabilities(self, sums: Ints, prior: Prior | None = None) -> Floats:
        """The exact law of one selection from K sums, for audits and tests."""
