"""From public history to a policy: the port that feedback learners are composed with.

A row's whole history is kept as two numbers for each arm, which are a function of the released sums
and counts of its blocks, in their order. What they mean is the rule's own. Zeros are the state
before anything is known, so that a new row needs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.policy_posterior import NoiseVariance

KEPT_PER_ARM = 2
"""How many numbers of each arm are a row's history."""


class PolicyRule(Protocol):
    """A deterministic function of public history; the same bytes on every machine."""

    @property
    def name(self) -> str:
        """What errors and digests call it."""
        ...

    def parameters(self) -> Mapping[str, str]:
        """Everything that its policies depend on, in writing."""
        ...

    def learned(self, state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
        """The histories of R rows (R × 2 × K) after a block with these noisy gains and counts.

        Gains are in loss, R × K; the new histories are a new array.
        """
        ...

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        """The policies of R rows while their next blocks, which have these lengths, are open."""
        ...
