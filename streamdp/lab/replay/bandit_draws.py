"""The random draws of simulated bandits: public chance, and noise of the shipped law.

Noise is discrete Laplace of the shipped scales on the shipped grid, from numpy's generator: it
protects nothing, which is right for made-up data.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.random import Generator  # noqa: TID251 - losses are made up: no secret

from streamdp.core.arrays import Floats
from streamdp.core.grid import UNIT


class NumpyChance:
    """Public draws from numpy's generator."""

    __slots__ = ("generator",)

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def uniform(self, *shape: int) -> Floats:
        """Uniform draws in (0, 1)."""
        return np.maximum(self.generator.random(shape), 2.0**-53)

    def beta(self, alpha: Floats, beta: Floats) -> Floats:
        """A draw of each Beta(α, β)."""
        draws: Floats = self.generator.beta(alpha, beta)
        return draws


def laplaces(epsilon: Fraction, count: int, generator: Generator) -> Floats:
    """Noise of scale 1/ε, in loss."""
    stop = -np.expm1(-float(epsilon) / UNIT)
    noise: Floats = (generator.geometric(stop, count) - generator.geometric(stop, count)) / UNIT
    return noise


def laplace(epsilon: Fraction | None, generator: Generator) -> float:
    """One draw of this noise; 0 without an ε."""
    return 0.0 if epsilon is None else float(laplaces(epsilon, 1, generator)[0])
