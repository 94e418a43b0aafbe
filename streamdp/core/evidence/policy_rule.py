"""The port of policy rules, which feedback learners are composed of: public history to policy.

A row's whole history is a few numbers, which are a function of the released sums and counts of its
blocks, in their order. Each rule gives them its own shape and meaning (`History`). Zeros are the
state before anything is known, so that a new row needs no initialisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.policy_posterior import NoiseVariance, posterior

CARRIED_PER_ARM = 2
"""How many numbers a key carries over for each arm. In a posterior: weight and weighted sum."""

Carries = Literal["posterior", "nothing"]


class History(Protocol):
    """The numbers that a rule keeps of a row's releases, and what of them a key carries over."""

    @property
    def carries(self) -> Carries:
        """Whether the carried numbers are a posterior, or mean nothing under another rule."""
        ...

    def shape(self, arms: int) -> tuple[int, int]:
        """The shape of one row's numbers."""
        ...

    def carried(self, state: Floats) -> Floats:
        """What the keys of R rows carry over: R × 2 × K."""
        ...

    def resumed(self, carried: Floats) -> Floats:
        """The numbers of R rows that begin with what is carried."""
        ...

    def posterior(self, state: Floats) -> tuple[Floats, Floats] | None:
        """Each arm's mean gain and standard deviation, R × K; None if these are no posterior."""
        ...

    def of_arms(self, state: Floats, some: Bools) -> Floats:
        """The numbers of some arms alone: a state of fewer arms."""
        ...


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two numbers for each arm; a key carries over all of them."""

    carries: Carries

    def shape(self, arms: int) -> tuple[int, int]:
        """First numbers of all arms, then second ones."""
        return CARRIED_PER_ARM, arms

    def carried(self, state: Floats) -> Floats:
        """The numbers as they are."""
        return state

    def resumed(self, carried: Floats) -> Floats:
        """The numbers as they were."""
        return carried

    def posterior(self, state: Floats) -> tuple[Floats, Floats] | None:
        """See `policy_posterior`."""
        return posterior(state) if self.carries == "posterior" else None

    def of_arms(self, state: Floats, some: Bools) -> Floats:
        """Both numbers of these arms."""
        return state[:, :, some]


class PolicyRule(Protocol):
    """A deterministic function of public history; the same bytes on every machine."""

    @property
    def name(self) -> str:
        """Its name in errors and digests."""
        ...

    @property
    def history(self) -> History:
        """What it keeps of a row."""
        ...

    def parameters(self) -> Mapping[str, str]:
        """Everything that its policies depend on, as text."""
        ...

    def learned(self, state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
        """The histories of R rows after a block with these noisy gains and counts.

        Gains are in loss, R × K; the new histories are a new array.
        """
        ...

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        """The policies of R rows during their next blocks, which have these lengths."""
        ...
