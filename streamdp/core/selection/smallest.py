"""Selects the smallest sum; fresh uniform bits break ties. Not private, for baselines only."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.randomness import Bits, uniform_integers
from streamdp.core.selection.prior import Prior


@dataclass(frozen=True, slots=True)
class Smallest:
    """The limit of the private choices as ε grows. Privacy: none."""

    name: str = "smallest"
    rate: Fraction = Fraction(0)

    def select(self, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        """An action with the smallest sum of each row, uniformly among equals."""
        _refuse(prior)
        tied = sums == sums.min(axis=1, keepdims=True)
        chosen = uniform_integers(bits, tied.sum(axis=1))
        winner = np.argmax(np.cumsum(tied, axis=1) > chosen[:, None], axis=1)
        return np.asarray(winner, dtype=np.int64)

    def log_probabilities(self, sums: Ints, prior: Prior | None = None) -> Floats:
        """Uniform on the smallest; minus infinity elsewhere."""
        _refuse(prior)
        tied = sums == sums.min()
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(tied / tied.sum()), dtype=np.float64)


def _refuse(prior: Prior | None) -> None:
    if prior is not None:
        got = f"one of {len(prior)} rows"
        raise InvalidConfig("smallest", "takes no prior", expected="none", got=got)
