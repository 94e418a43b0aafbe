"""The port of policy rules, which feedback learners are composed of: public history to policy.

A row's whole history is kept as two numbers for each arm, which are a function of the released sums
and counts of its blocks, in their order. Each rule gives them its own meaning. Zeros are the state
before anything is known, so that a new row needs no initialisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.policy_posterior import NoiseVariance

KEPT_PER_ARM = 2
"""How many numbers a row's history has for each arm."""


class PolicyRule(Protocol):
    """A deterministic function of public history; the same bytes on every machine."""

    @property
    def name(self) -> str:
        """Its name in errors and digests."""
        ...

    def parameters(self) -> Mapping[str, str]:
        """Everything that its policies depend on, as text."""
        ...

    def learned(self, state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
        """The histories of R rows (R × 2 × K) after a block with these noisy gains and counts.

        Gains are in loss, R × K; the new histories are a new array.
        """
        ...

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        """The policies of R rows during their next blocks, which have these lengths."""
        ...
