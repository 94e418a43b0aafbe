"""Windows, combination and default: what decides about an event beside the two logs.

Times are milliseconds, as brokers write them into records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streamdp.core.errors import InvalidConfig

Gains = Sequence[float]
"""Each action's gain in [0, 1]: 1 − loss. A single gain if only the shown action has one."""

Encode = Callable[[Sequence[Any]], bytes]
"""Encodes losses as an event's bytes, whose length is always the same.

Where events name their arm, its cell and its action follow the loss; without them it is null."""

NULL_LOSS = 0.5


class Combine(StrEnum):
    """How several outcomes of one request are combined, action by action."""

    FIRST = "first"  # in the order of the outcomes' partition
    LAST = "last"
    MAX = "max"
    SUM = "sum"  # added in that order as float64, and clipped to [0, 1] at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How requests and outcomes become events."""

    window: int  # milliseconds in which an outcome counts
    grace: int  # milliseconds by which any two clocks may differ
    combine: Combine
    default: float  # the loss of a request without outcomes

    def __post_init__(self) -> None:
        """Refuse rules that no join can keep."""
        for name in ("window", "grace"):
            if getattr(self, name) < 1:
                raise InvalidConfig(name, "too short", expected="≥ 1 ms", got=getattr(self, name))
        if not (math.isfinite(self.default) and 0.0 <= self.default <= 1.0):
            raise InvalidConfig("default_loss", "not a loss", expected="0 to 1", got=self.default)

    def deadline(self, timestamp: int) -> int:
        """The last time at which outcomes count for a request of this time."""
        return timestamp + self.window

    def leaves(self, timestamp: int) -> int:
        """The time from which the event of a request of this time may leave."""
        return timestamp + self.window + self.grace

    def combined(self, before: tuple[float, ...] | None, gains: Gains) -> tuple[float, ...]:
        """A request's gains after one more outcome."""
        if before is None or self.combine is Combine.LAST:
            return tuple(gains)
        if self.combine is Combine.FIRST:
            return before
        if self.combine is Combine.MAX:
            return tuple([max(pair) for pair in zip(before, gains, strict=True)])
        return tuple([a + b for a, b in zip(before, gains, strict=True)])
