"""A candidate's control group beside its other keys: what each side lost. NOT PRIVATE.

A candidate with `control=0.1` plays as the live service does with the same option: the same
function of the key (`core.evidence.control`) says which keys are never told a prior, and which
blocks end in plain votes. Live, nobody knows what a key lost; the status page and
`streamdp ledger verify` compare the two sides by plain votes, those of a feedback stream by noisy
sums. A log holds the losses, so a replay compares what the service cannot, exactly:

- with losses of all actions the mean regret of a key, each key's averaged over the seeds first;
- of what a service has shown, the mean loss of a show.

A side's standard error is of keys, of which each is one draw: the sides were parted by a hash of
the key. The ratio's is by the delta method, √((s/m)² + (s′/m′)²) times the ratio. Where the control
group's mean may be 0 or less by chance alone, or where a side has one key, no ratio is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.events import Key
from streamdp.core.evidence.control import Agreement, Control
from streamdp.core.grid import UNIT
from streamdp.lab.replay.following import Z
from streamdp.lab.replay.spread import standard_error


@dataclass(frozen=True, slots=True)
class SideFigures:
    """What the keys of one side lost."""

    keys: int
    slots: int
    mean: float  # the regret of a key, or the loss of a show; NaN where there is none
    error: float  # its standard error over keys; infinite of one key

    @classmethod
    def of_regret(cls, slots: Ints, regret: Floats) -> SideFigures:
        """Of some keys, each with its regret."""
        mean = float(regret.mean()) if len(regret) else float("nan")
        error = standard_error(regret, alone=float("inf"))
        return cls(len(regret), int(slots.sum()), mean, error)

    @classmethod
    def of_shows(cls, slots: Ints, shows: Ints, lost: Ints) -> SideFigures:
        """Of some keys, each with its shows and what these lost, in grid units."""
        side = Agreement()
        for shown, units in zip(shows.tolist(), lost.tolist(), strict=True):
            side.add_many(0, 0, shown, units)
        mean = float("nan") if side.rate is None else side.rate / UNIT
        error = float("inf") if side.error is None else side.error / UNIT
        return cls(len(slots), int(slots.sum()), mean, error)


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
        apart, by_key = _apart(control, keys), regret.mean(axis=1)
        return cls(*(SideFigures.of_regret(slots[side], by_key[side]) for side in (~apart, apart)))

    @classmethod
    def of_shows(
        cls, control: Control, keys: Sequence[Key], slots: Ints, shows: Ints, lost: Ints
    ) -> ControlComparison:
        """The sides of some learners by what their shows lost, in grid units."""
        apart = _apart(control, keys)
        return cls(
            *(
                SideFigures.of_shows(slots[side], shows[side], lost[side])
                for side in (~apart, apart)
            )
        )

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

    def as_json(self, figure: str) -> dict[str, object]:
        """For machines; `figure`: what a side's mean is of."""
        return {
            "with_crowd": _side_json(self.with_priors, figure),
            "control": _side_json(self.control, figure),
            "ratio": self.ratio,
            "standard_error_of_ratio": self.ratio_error,
        }


def _apart(control: Control, keys: Sequence[Key]) -> Bools:
    """Which of these keys learn alone."""
    return np.array([control.holds(key) for key in keys], dtype=np.bool_)


def _side_json(side: SideFigures, figure: str) -> dict[str, object]:
    return {
        "keys": side.keys,
        "slots": side.slots,
        f"mean_{figure}": side.mean if np.isfinite(side.mean) else None,
        "standard_error": side.error if side.keys and np.isfinite(side.error) else None,
    }
