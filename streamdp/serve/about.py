"""A stream's configuration, as pages show it before any event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import log, sqrt

from streamdp.client import Names, Source
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.kinds.estimates import Estimate
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.tariff import full_charge
from streamdp.core.regret import bound_of
from streamdp.ports import StreamTopics
from streamdp.wire.revising import Configured

NO_FALLBACK = ""
"""What a cache answers for a stream without a fallback action. Never an action's name."""


@dataclass(frozen=True, slots=True)
class About:
    """One stream's public configuration."""

    topics: StreamTopics
    learner: Kind
    estimates: tuple[Estimate, ...]
    budget: Fraction  # of the input topic, which all its streams share
    epoch: int
    seeded: bool
    actions: tuple[str, ...]  # that the epoch began with; with contexts fewer than the arms
    room: int = 0  # for so many more
    fallback: str = NO_FALLBACK
    partition_epochs: Mapping[int, int] = field(default_factory=dict)  # beyond the stream's
    gap: float | None = None  # Δ, if the configuration states one
    salt: str = ""  # feedback streams: requests are hashed with it
    unit: str = ""  # what a feedback stream's rewards are called; "": its records hold losses
    most: Fraction | None = None  # its largest reward that counts, in that unit; None: 1
    contexts: Contexts | None = None  # of a feedback stream: an arm is an action in a cell

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.topics.stream

    @property
    def largest(self) -> float:
        """The largest reward that counts, in its unit: pages multiply shares by it."""
        return 1.0 if self.most is None else float(self.most)

    @property
    def charge(self) -> Fraction:
        """The most that it charges an event, estimates included."""
        return full_charge(self.learner, self.estimates)

    @property
    def source(self) -> Source:
        """What a cache needs to follow this stream's actions."""
        played = self.learner.recipe.played
        if played is None:
            return Source(self.topics, self.fallback)
        names = Names(self.actions, self.salt, self.contexts, played)
        return Source(self.topics, self.fallback, names)

    @property
    def configured(self) -> Configured:
        """What a list of its actions goes by."""
        return Configured(self.name, self.actions, self.epoch, self.room)

    def regret_bound(self, *, last_slot: int, length: int) -> float | None:
        """A bound on the estimated regret of a block of this length, in a stationary world.

        None where no theorem covers the learner.

        The theorem bounds the expected pseudo-regret of all slots so far, hence that of the block;
        against the block's own best action, chance adds √(2 n ln K) at most in expectation (a
        maximum of K sums of n differences in [−1, 1], Hoeffding).
        """
        chance = sqrt(2 * max(0, length) * log(len(self.learner.actions)))
        theorem = _theorem(self.learner, _rounded_up(max(1, last_slot)), self.gap)
        return None if theorem is None else theorem + chance


def _rounded_up(horizon: int) -> int:
    """Round up to three significant bits: this loosens the bound by at most 1/16.

    >>> [_rounded_up(n) for n in (1, 7, 8, 9, 1000)]
    [1, 7, 8, 10, 1024]
    """
    step = 1 << max(0, horizon.bit_length() - 3)
    return -(-horizon // step) * step


@lru_cache(maxsize=1024)
def _theorem(learner: Kind, horizon: int, gap: float | None) -> float | None:
    theorem = bound_of(learner, horizon=horizon, gap=gap)
    return None if theorem is None else theorem.regret
