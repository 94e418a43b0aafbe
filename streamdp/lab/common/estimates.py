"""What is estimated of a policy's value: plain numbers, with what is known of their errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

from streamdp.lab.common.words import interval


@dataclass(frozen=True, slots=True)
class ValueInterval:
    """An interval for a mean value."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ValueEstimate:
    """A value with its standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class MeanReward:
    """The mean reward of a record under a policy, with its 95 % interval."""

    value: float
    low: float
    high: float
    clicks: float | None = None  # the effective number of them; None: nothing was estimated

    def __str__(self) -> str:
        """Write it with its interval.

        >>> str(MeanReward(0.5, 0.4, 0.6)), str(MeanReward(0.0042, 0.0023, 0.0081, clicks=12))
        ('0.5 ± 0.1', '0.0042 (0.0023 – 0.0081)')
        """
        if not isfinite(self.value):
            return "unknown"
        if self.clicks is None:
            return f"{self.value:.4g} ± {self.high - self.value:.2g}"
        return f"{self.value:.3g} ({interval(self.low, self.high)})"

    def as_json(self) -> dict[str, float | None]:
        """For programs; `read` gives it back."""
        return {
            "value": self.value if isfinite(self.value) else None,
            "low": self.low,
            "high": self.high,
            "effective_clicks": self.clicks,
        }

    @classmethod
    def read(cls, figures: Mapping[str, Any]) -> MeanReward:
        """From the figures."""
        value = nan if figures["value"] is None else figures["value"]
        return cls(value, figures["low"], figures["high"], figures["effective_clicks"])


@dataclass(frozen=True, slots=True)
class PolicyValues:
    """Estimates of the values of some policies, one for each group, from the records."""

    records: int
    ips: ValueEstimate
    snips: ValueEstimate
    dr: ValueEstimate
    effective: float  # the number of equally weighted records with the same information: (Σw)²/Σw²
    clicks: float  # the same of rewards, or of records without one, whichever is rarer
    mean_weight: ValueEstimate  # 1 on average if the propensities are those of the draws
    interval: ValueInterval  # of the value, with 95 %, if there are enough clicks
    bounds: ValueInterval  # of the value, for every number of records at once

    @property
    def reward(self) -> MeanReward:
        """The doubly robust estimate with the interval."""
        return MeanReward(self.dr.value, self.interval.low, self.interval.high, self.clicks)
