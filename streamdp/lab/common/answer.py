"""What a learner did, on a log under each seed or in a made-up world in each run: one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.experiment import Arms
from streamdp.lab.common.cells import LearnerCell
from streamdp.lab.common.estimates import MeanReward, PolicyValues

BAND = (10, 90)
"""The percentiles between which a band lies."""

Z = 1.96
"""Standard errors of an interval over runs: 95 %."""

STAYS = 0.9
"""The share of slots and seeds, or of runs, that have a found best action in force."""

_WORST = 100  # the worst 1 % are one run in so many


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A value over the slots of a key: its mean and a band."""

    slots: Ints
    mean: Floats
    low: Floats
    high: Floats

    @classmethod
    def of_runs(cls, slots: Ints, values: Floats) -> Trajectory:
        """Of runs or seeds (runs × slots): the mean and the middle 80 %."""
        low, high = np.percentile(values, BAND, axis=0)
        return cls(slots, values.mean(axis=0), low, high)

    def step(self, most: int | None) -> int:
        """Every which of its points is kept, of which so many are wanted at most."""
        return 1 if most is None else max(1, len(self.slots) // most)

    def as_json(self, *, most: int | None = None) -> dict[str, list[float]]:
        """About so many of its points at most: capped blocks may be thousands."""
        kept = slice(None, None, self.step(most))
        return {name: getattr(self, name)[kept].tolist() for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Shares:
    """How often each action was shown by the policies of one key, mean over seeds or runs."""

    starts: Ints  # the first slot of each block
    shares: Floats  # blocks × K

    def as_json(self) -> dict[str, object] | None:
        """A policy for each block; None if there is none."""
        if not len(self.starts):
            return None
        return {"starts": self.starts.tolist(), "policy": self.shares.tolist()}


@dataclass(frozen=True, slots=True)
class Charge:
    """What some keys are charged under one seed, as a ledger would state it."""

    epsilon: Fraction | None  # the highest of any event: the guarantee so far; None: not private
    blocks: int  # that ended, or other releases
    slots: int  # charged so far
    open_slots: int  # of blocks or phases that have not ended

    def as_json(self) -> dict[str, object]:
        """In the terms of the ledger."""
        return {
            "epsilon_per_event": None if self.epsilon is None else str(self.epsilon),
            "blocks": self.blocks,
            "slots_charged": self.slots,
            "slots_open": self.open_slots,
        }


NOT_KNOWN: Floats = np.zeros(0)
"""Of what a log does not say, or was not asked."""

NO_SHARES = Shares(np.zeros(0, np.int64), np.zeros((0, 0)))
NOT_BOOKED = Charge(None, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """What one learner did. A run is a seed of a log, or a run in a made-up world."""

    cell: LearnerCell[Any]
    world: str = ""  # the name of the made-up one
    runs: int = 0  # that were simulated
    regret: Floats = field(default_factory=lambda: NOT_KNOWN)  # at the end, by run
    course: Trajectory  # the regret so far; the mean reward so far where regret is not known
    shares: Shares = NO_SHARES
    best: Floats = field(default_factory=lambda: NOT_KNOWN)
    """Since the last point of the course: how often the best action was in force; in a world the
    share of runs in which it was shown often enough."""
    always: float | None = None  # the share of runs that never lose it again, once it is found
    charge: Charge = NOT_BOOKED
    arms: Arms | None = None
    """The watched key's first run, as its page would show it; None where arms are of cells."""
    by_key: Floats = field(default_factory=lambda: NOT_KNOWN)
    """The regret of each key, the longest first, mean over runs."""
    in_force: NDArray[np.int32] | None = None  # (blocks + 1) × runs, of the longest key
    reward: MeanReward | None = None  # of a record; None: the log does not say
    rewards: Floats = field(default_factory=lambda: NOT_KNOWN)  # the same for each run
    value: PolicyValues | None = None  # from propensities
    accepted: Ints | None = None  # by rejection: the number of records that each run learned from

    @property
    def mean(self) -> float:
        """The mean regret at the end."""
        return float(self.regret.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean over runs; 0 for one run."""
        return standard_error(self.regret)

    @property
    def worst(self) -> float:
        """The mean over the worst 1 % of the runs (at least one run)."""
        count = max(1, len(self.regret) // _WORST)
        return float(np.sort(self.regret)[-count:].mean())

    @property
    def settled(self) -> int | None:
        """The slot from which on the best action stays in force; None: it does not stay."""
        return first_for_good(self.best, self.course.slots) if len(self.best) else None

    def behind(self, other: Answer) -> tuple[float, float]:
        """How much more it lost than another, run by run, and half of the interval.

        Both drew the same bits, so this is sharper than the means. One run has no interval.
        """
        more = self.regret - other.regret
        return float(more.mean()), Z * standard_error(more, alone=inf)

    def like(self, other: Answer) -> bool:
        """Whether the difference to another is within chance."""
        more, half = self.behind(other)
        return abs(more) <= half


def first_for_good(shares: Floats, ends: Ints) -> int | None:
    """The first slot from which on all shares are large enough, of stretches with these ends.

    >>> first_for_good(np.array([0.95, 0.5, 0.92, 1.0]), np.array([1, 3, 7, 15]))
    4
    """
    away = np.flatnonzero(shares < STAYS)
    if not len(away):
        return 1
    return None if away[-1] == len(shares) - 1 else int(ends[away[-1]]) + 1


def standard_error(values: Floats, *, alone: float = 0.0) -> float:
    """Of the mean of independent values; `alone` where there is one, which says nothing of it.

    >>> standard_error(np.array([1.0, 3.0])), standard_error(np.array([7.0]))
    (1.0, 0.0)
    """
    return float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else alone


def arms_as_json(arms: Arms) -> dict[str, object]:
    """The released numbers of each arm, as JSON."""
    return {
        "blocks": arms.blocks,
        "shown": arms.shown.tolist(),
        "mean_loss": [None if np.isnan(mean) else mean for mean in arms.means.tolist()],
        "low": arms.low.tolist(),
        "high": arms.high.tolist(),
        "chance_of_best": arms.chances.tolist(),
    }
