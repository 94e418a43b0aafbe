"""The smallest sum, ties broken by fresh uniform bits: not private, for baselines only."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.randomness import Bits, uniform_integers
from streamdp.core.selection.prior import Prior


@dataclass(frozen=True, slots=True)
class Smallest:
    """Privacy: none. What a private choice tends to as ε grows."""

    name: str = "smallest"
    rate: Fraction = Fraction(0)

    def select(
        self, sums: NDArray[np.int64], bits: Bits, prior: Prior | None = None
    ) -> NDArray[np.int64]:
        """An action with the smallest sum of each row, uniformly among equals."""
        _refuse(prior)
        tied = sums == sums.min(axis=1, keepdims=True)
        chosen = uniform_integers(bits, tied.sum(axis=1))
        winner = np.argmax(np.cumsum(tied, axis=1) > chosen[:, None], axis=1)
        return np.asarray(winner, dtype=np.int64)

    def log_probabilities(
        self, sums: NDArray[np.int64], prior: Prior | None = None
    ) -> NDArray[np.float64]:
        """Uniform on the smallest; minus infinity elsewhere."""
        _refuse(prior)
        tied = sums == sums.min()
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(tied / tied.sum()), dtype=np.float64)


def _refuse(prior: Prior | None) -> None:
    if prior is not None:
        raise InvalidConfig(complaint("smallest", "no prior here", expected="none", got="a prior"))
