"""The papers' claims, measured: one function each, found by `claims`.

A claim is measured on made-up losses with the shipped mechanisms, in our calibrations (`learners`
says where these differ from the papers': noise twice as wide). Its verdict follows from an interval
over a stated number of runs, by a rule that is written beside it:

    reproduced      the interval lies where the claim says
    not reproduced  the interval lies where the claim does not allow it
    open            the interval reaches over the border: more runs are needed

Orders (O, Θ) are claims about limits; the rules test them over stated ranges. The rules came first,
but some of them, and one made-up instance, were adjusted after a first look at 200 runs. So figures
that are published are of a fresh seed: those of docs/replay.md of seed 2026, which was run once,
after the last change of a rule.

Sources name papers by author and year; docs/references.md has the titles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from streamdp.core.arrays import Floats
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.simulation import PAPERS

Verdict = Literal["reproduced", "not reproduced", "open"]

Z = 2.576
"""Standard errors of the intervals: 99 %."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is computed, and the progress display."""

    runs: int = 2000
    seed: int = 1
    watch: Watch = unwatched


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart, maybe with an interval at each point."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    whiskers: bool = False  # the intervals are drawn one by one, not as a band

    @classmethod
    def around(
        cls,
        name: str,
        x: Floats,
        means: Floats,
        half: Floats,
        *,
        least: float = -np.inf,
        whiskers: bool = False,
    ) -> Curve:
        """Means, each in the middle of its interval; `least` is the lowest end that is drawn."""
        low, high = np.maximum(means - half, least).tolist(), (means + half).tolist()
        return cls(name, x.tolist(), means.tolist(), low, high, whiskers)


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart of a claim."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    linear: bool = False


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A claim about one learner, the measurement, and the range that the claim allows."""

    claim: str
    source: str
    learner: str
    rule: str
    measured: str
    interval: tuple[float, float]
    runs: int
    at_least: float = -np.inf
    at_most: float = np.inf

    @property
    def verdict(self) -> Verdict:
        """What the interval says of the range.

        >>> intervals = ((0.9, 1.1), (1.3, 1.5), (1.1, 1.3))
        >>> found = [ClaimResult("", "", "", "", "", of, 1, at_most=1.2) for of in intervals]
        >>> [of.verdict for of in found]
        ['reproduced', 'not reproduced', 'open']
        """
        low, high = self.interval
        if self.at_least <= low and high <= self.at_most:
            return "reproduced"
        if low > self.at_most or high < self.at_least:
            return "not reproduced"
        return "open"


@dataclass(frozen=True, slots=True)
class Measured:
    """All findings of one claim, with its chart."""

    findings: Sequence[ClaimResult]
    picture: Picture | None = None


Claim = Callable[[Effort], Measured]

SHOWN = (*PAPERS, "incumbent_leader")
"""The papers' learners (resampling has no row: it changes nothing on Bernoulli losses), and the
growing one, for which no theorem, so no bound, is claimed. The default, whose blocks stop growing,
gives up that regret is independent of the horizon."""


def ratio(top: Floats, bottom: Floats) -> tuple[float, float, float]:
    """The ratio of the means of two independent samples, with its interval (delta method)."""
    value = float(top.mean() / bottom.mean())
    spread = sum((x.std(ddof=1) / x.mean()) ** 2 / len(x) for x in (top, bottom))
    half = Z * value * float(np.sqrt(spread))
    return value, value - half, value + half


LONG = ("panels",)
"""Claims that take long: measured only if they are named."""


def claims() -> Sequence[tuple[str, Claim]]:
    """Every claim, by name."""
    from streamdp.lab.papers.claims import (
        adversarial,
        bandits,
        bounds,
        comparators,
        growth,
        panels,
        resampling,
    )

    return (
        ("horizon", growth.horizon),
        ("actions", growth.actions),
        ("epsilon", growth.epsilon),
        ("deterministic", growth.deterministic),
        ("example", resampling.example),
        ("monotonicity", resampling.monotonicity),
        ("bound", bounds.never_exceeded),
        ("figure-1", bandits.figure(1, bandits.FIRST)),
        ("figure-2", bandits.figure(2, bandits.SECOND)),
        ("flat", bandits.flat),
        ("hybrid", bandits.hybrid),
        ("adap", comparators.adap),
        ("leak", adversarial.leak),
        ("conversions", adversarial.bounds),
        ("order", adversarial.order),
        ("experts", adversarial.experts),
        ("experts-long", adversarial.experts_long),
        ("panels", panels.panels),
    )
