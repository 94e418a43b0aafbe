"""What a private choice of one among K is: the port that learners, audits and strangers share.

Every mechanism here takes exact integer sums on the loss grid (smaller is better) and returns the
winner of a noisy comparison. What it costs is not said here: `core.calibration` derives a rate from
ε and says why.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streamdp.core.randomness import Bits
from streamdp.core.selection.prior import Prior


class Mechanism(Protocol):
    """A private choice of one action from integer sums."""

    @property
    def name(self) -> str:
        """What configuration and ledger call it."""

    @property
    def rate(self) -> Fraction:
        """Noise units per unit of loss: twice the rate is the ε of one replaced loss vector."""

    def select(
        self, sums: NDArray[np.int64], bits: Bits, prior: Prior | None = None
    ) -> NDArray[np.int64]:
        """The winner of each row of `sums` (R × K, |sum| ≤ 2⁶¹), one draw of `bits` for each."""

    def log_probabilities(
        self, sums: NDArray[np.int64], prior: Prior | None = None
    ) -> NDArray[np.float64]:
        """The exact law of one selection from K sums, for audits and tests."""


@runtime_checkable
class ExactMechanism(Protocol):
    """A mechanism that can also be made to decide every draw on its exact path."""

    def select_exactly(
        self, sums: NDArray[np.int64], bits: Bits, prior: Prior | None = None
    ) -> NDArray[np.int64]:
        """As `select`, with no float deciding anything: slow, and equal on the same bits."""
