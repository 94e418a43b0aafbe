"""A candidate's control group beside its other keys: what each side lost. NOT PRIVATE.

A candidate with `control=0.1` plays as the live service does with the same option: the same
function of the key (`core.evidence.control`) says which keys are never told a prior, and which
blocks end in plain votes. Live, nobody knows what a key lost; the status page and
`streamdp ledger verify` compare the two sides by plain votes. A log holds the losses, so a replay
compares what the service cannot: each key's regret, exactly.

A side's figure is the mean regret of its keys, each key's averaged over the seeds first. Its
standard error is of keys, of which each is one draw: the sides were parted by a hash of the key.
The ratio's is by the delta method, √((s/m)² + (s′/m′)²) times the ratio. Where the control group's
mean may be 0 or less by chance alone, or where a side has one key, no ratio is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.events import Key
from streamdp.core.evidence.control import Control
from streamdp.replay.following import Z
from streamdp.replay.spread import standard_error


@dataclass(frozen=True, slots=True)
class SideFigures:
    """What the keys of one side lost."""

    slots: int
    by_key: Floats  # each key's regret, the mean over seeds

    @property
    def keys(self) -> int:
        """How many."""
        return len(self.by_key)

    @property
    def mean(self) -> float:
        """The regret of a key."""
        return float(self.by_key.mean())

    @property
    def error(self) -> float:
        """Its standard error over keys; infinite of one key."""
        return standard_error(self.by_key, alone=float("inf"))


@dataclass(frozen=True, slots=True)
class ControlComparison:
    """Keys that are told priors beside those of the control group."""

    with_priors: SideFigures
    control: SideFigures

    @classmethod
    def of(
        cls, control: Control, keys: Sequence[Key], slots: Ints, regret: Floats
    ) -> ControlComparison:
        """The sides of some learners; `regret`: learners × seeds."""
        apart: Bools = np.array([control.holds(key) for key in keys], dtype=np.bool_)
        by_key = regret.mean(axis=1)
        with_priors, alone = (
            SideFigures(int(slots[side].sum()), by_key[side]) for side in (~apart, apart)
        )
        return cls(with_priors, alone)

    @property
    def one_sided(self) -> bool:
        """Whether all keys are on one side."""
        return not (self.with_priors.keys and self.control.keys)

    @property
    def ratio(self) -> float | None:
        """The share of the control group's regret that keys with priors have; None: not known."""
        known = self.with_priors.keys > 1 and self.control.keys > 1
        if not known or self.control.mean <= Z * self.control.error:
            return None
        return self.with_priors.mean / self.control.mean

    @property
    def ratio_error(self) -> float | None:
        """Its standard error by key."""
        if self.ratio is None:
            return None
        return hypot(self.with_priors.error, self.ratio * self.control.error) / self.control.mean

    def as_json(self) -> dict[str, object]:
        """For machines."""
        return {
            "with_crowd": _side_json(self.with_priors),
            "control": _side_json(self.control),
            "ratio": self.ratio,
            "standard_error_of_ratio": self.ratio_error,
        }


def _side_json(side: SideFigures) -> dict[str, object]:
    error = side.error if side.keys else None
    return {
        "keys": side.keys,
        "slots": side.slots,
        "mean_regret": side.mean if side.keys else None,
        "standard_error": error if error is not None and np.isfinite(error) else None,
    }
