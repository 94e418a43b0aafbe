"""A stream's configuration, as pages show it before any event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import log, sqrt

from streamdp.client import Names, Source
from streamdp.core.evidence.experiment import Scales
from streamdp.core.grid import UNIT
from streamdp.core.learners import Leader, Learner, PolicyLearner
from streamdp.core.regret import Estimate, bound_of, full_charge
from streamdp.ports import StreamTopics
from streamdp.wire.published import Mode

NO_FALLBACK = ""
"""What a cache answers for a stream without a fallback action. Never an action's name."""


@dataclass(frozen=True, slots=True)
class About:
    """One stream's public configuration."""

    topics: StreamTopics
    learner: Learner
    estimates: tuple[Estimate, ...]
    budget: Fraction  # of the input topic, which all its streams share
    epoch: int
    seeded: bool
    mode: Mode = Mode.LIVE  # as configured
    fallback: str = NO_FALLBACK
    partition_epochs: Mapping[int, int] = field(default_factory=dict)  # beyond the stream's
    gap: float | None = None  # Δ, if the configuration states one
    salt: str = ""  # feedback streams: requests are hashed with it

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.topics.stream

    def epoch_of(self, partition: int) -> int:
        """The epoch of one partition: the stream's, or one of its own."""
        return self.partition_epochs.get(partition, self.epoch)

    @property
    def charge(self) -> Fraction:
        """The most that this stream charges an event: the action and every estimate."""
        return full_charge(self.learner, self.estimates)

    @property
    def mechanism(self) -> str:
        """The name of the mechanism that draws its releases."""
        return self.learner.mechanism

    @property
    def scales(self) -> Scales | None:
        """The scale of the noise in a feedback stream's sums: in losses, and in shows."""
        learner = self.learner
        if not isinstance(learner, PolicyLearner) or learner.sums_scale is None:
            return None
        return Scales(learner.sums_scale / UNIT, learner.counts_scale or Fraction(0))

    @property
    def source(self) -> Source:
        """What a cache needs to follow this stream's actions."""
        names = Names(self.learner.actions, self.salt)
        return Source(self.topics, self.fallback, names if self.learner.played else None)

    def regret_bound(self, *, last_slot: int, length: int) -> float:
        """A bound on the estimated regret of a block of this length, in a stationary world.

        The theorem bounds the expected pseudo-regret of all slots so far, hence that of the block;
        against the block's own best action, chance adds √(2 n ln K) at most in expectation (a
        maximum of K sums of n differences in [−1, 1], Hoeffding).
        """
        assert isinstance(self.learner, Leader), "no theorem is claimed for feedback streams"
        chance = sqrt(2 * max(0, length) * log(len(self.learner.actions)))
        return _theorem(self.learner, _rounded_up(max(1, last_slot)), self.gap) + chance


def _rounded_up(horizon: int) -> int:
    """Round up to three significant bits: this loosens the bound by at most 1/16.

    >>> [_rounded_up(n) for n in (1, 7, 8, 9, 1000)]
    [1, 7, 8, 10, 1024]
    """
    step = 1 << max(0, horizon.bit_length() - 3)
    return -(-horizon // step) * step


@lru_cache(maxsize=1024)
def _theorem(learner: Leader, horizon: int, gap: float | None) -> float:
    return bound_of(learner, horizon=horizon, gap=gap).regret
