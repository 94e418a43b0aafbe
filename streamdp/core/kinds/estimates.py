"""Private estimates: numbers about a block, released with noise and charged.

An estimate is a release. It is drawn once, when its block ends; its slots are charged ε_m besides
the action's charge; it is recorded, then published, and read back after a restart, never drawn
again. It is released only for blocks of at least a public minimum length, which must not be a
function of losses.

The released value is an integer in units of 2**-20 loss: the exact statistic of the whole block on
the grid, plus discrete Laplace noise of scale sensitivity/ε_m in the same units. A mean is divided
by the block's length after the noise, by `Estimate.reading`, since the length is public.

For the statistic an engine keeps the open block's sums of all K losses and its number of null
slots, whatever window or resampling the learner itself uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from streamdp.core import calibration
from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.grid import UNIT
from streamdp.core.noise import standard_deviation


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A block's statistic on the grid, and how far one record moves it."""

    of: Callable[[Ints, Ints, Ints], Ints]  # (sums R × K, action R, nulls R) → R
    sensitivity: Callable[[int], Fraction]  # of K, in loss
    a_slot: bool  # whether it is shown as a mean over the block's slots


def _own(sums: Ints, action: Ints) -> Ints:
    own: Ints = sums[np.arange(len(sums)), action]
    return own


def _block_regret(sums: Ints, action: Ints, nulls: Ints) -> Ints:
    least: Ints = sums.min(axis=1)
    return _own(sums, action) - least


def _mean_loss(sums: Ints, action: Ints, nulls: Ints) -> Ints:
    return _own(sums, action)


def _null_share(sums: Ints, action: Ints, nulls: Ints) -> Ints:
    return nulls * UNIT


def _regret_vs_uniform(sums: Ints, action: Ints, nulls: Ints) -> Ints:
    """Rounded up to the grid: ⌊Σ_i S_i / K⌋ in two parts, each far from overflow."""
    whole, rest = np.divmod(sums, sums.shape[1])
    mean: Ints = whole.sum(axis=1) + rest.sum(axis=1) // sums.shape[1]
    return _own(sums, action) - mean


ESTIMATES: Mapping[str, _Quantity] = MappingProxyType(
    {
        "block_regret": _Quantity(
            _block_regret, lambda actions: calibration.BLOCK_REGRET_SENSITIVITY, a_slot=False
        ),
        "mean_loss": _Quantity(
            _mean_loss, lambda actions: calibration.MEAN_LOSS_SENSITIVITY, a_slot=True
        ),
        "null_share": _Quantity(
            _null_share, lambda actions: calibration.NULL_SHARE_SENSITIVITY, a_slot=True
        ),
        "regret_vs_uniform": _Quantity(
            _regret_vs_uniform,
            lambda actions: calibration.uniform_regret_sensitivity(actions=actions),
            a_slot=False,
        ),
    }
)
"""Every estimate by its name, which is also the kind of its releases."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number about each long enough block, released with noise and charged ε a slot.

    Privacy: ε-DP for replacing one event, given earlier releases. Sensitivity: `sensitivity`, in
    grid units. Why: the discrete Laplace mechanism on an integer; the action in force in the block
    is an earlier release, and lengths are public.

    >>> regret = estimate("block_regret", epsilon="0.1", min_length=64)
    >>> regret.scale(actions=10) == 2 * UNIT * 10
    True
    >>> regret.standard_error(actions=10, length=64)  # of the noise, in loss: √2 · 2/ε
    28.28...
    """

    name: str
    epsilon: Fraction
    min_length: int

    def __post_init__(self) -> None:
        """Refuse an estimate that no engine could release."""
        if self.name not in ESTIMATES:
            expected = ", ".join(ESTIMATES)
            raise InvalidConfig("estimate.name", "unknown", expected=expected, got=self.name)
        calibration.parse_epsilon(self.epsilon, "estimate.epsilon")
        if not isinstance(self.min_length, int) or self.min_length < 1:
            raise InvalidConfig(
                "estimate.min_length",
                "not a slot count",
                expected="1 or more",
                got=self.min_length,
            )

    def statistic(self, sums: Ints, *, action: Ints, nulls: Ints) -> Ints:
        """The exact statistic of each block: NOT PRIVATE. Sums (R × K), nulls: of whole blocks."""
        return ESTIMATES[self.name].of(sums, action, nulls)

    def sensitivity(self, *, actions: int) -> int:
        """How far one replaced record moves the statistic, in grid units.

        Rounded up: a statistic that is rounded to the grid may move by ⌈s⌉ where it moved by s.
        """
        exact = ESTIMATES[self.name].sensitivity(actions) * UNIT
        return -(-exact.numerator // exact.denominator)

    def scale(self, *, actions: int) -> Fraction:
        """The scale of the discrete Laplace noise, in grid units."""
        return calibration.laplace_scale(Fraction(self.sensitivity(actions=actions)), self.epsilon)

    def reading(self, value: int, *, length: int) -> float:
        """A released value in losses: of the whole block, or for a mean or a share of one slot."""
        return value / UNIT / (length if ESTIMATES[self.name].a_slot else 1)

    def standard_error(self, *, actions: int, length: int) -> float:
        """The standard deviation of the reading's noise; exact, and public.

        √(2q)/(1 − q) grid units with q = e^(−1/scale), which is √2·scale but for 10⁻⁷ of itself.
        """
        noise = standard_deviation(self.scale(actions=actions)) / UNIT
        return noise / (length if ESTIMATES[self.name].a_slot else 1)


def estimate(name: str, *, epsilon: str | Fraction | int, min_length: int | str) -> Estimate:
    """The estimate of this name, from a user or a configuration; ε and length have no default."""
    length = int(min_length) if str(min_length).isdecimal() else 0
    return Estimate(name, calibration.parse_epsilon(epsilon, "estimate.epsilon"), length)
