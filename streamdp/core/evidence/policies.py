"""Noisy sums: the evidence of feedback streams. A rule computes the policy in force from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal

import numpy as np

from streamdp.core.arrays import Columns, Field, Floats, Ints
from streamdp.core.events import Carried
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.policy_posterior import NoiseVariance
from streamdp.core.evidence.policy_rule import CARRIED_PER_ARM, Carries, PolicyRule
from streamdp.core.grid import UNIT


@dataclass(frozen=True, slots=True)
class ReleasedSums:
    """The history of each row: numbers whose shape and meaning the rule gives.

    A history is multiplied by `forgetting` before a block is learned from.
    """

    actions: int
    rule: PolicyRule
    forgetting: Fraction
    noise: NoiseVariance
    answers: Literal["policy"] = "policy"

    @property
    def carries(self) -> Carries:
        """Posteriors of the arms; the numbers of other rules mean nothing under another rule."""
        return self.rule.history.carries

    @property
    def fields(self) -> tuple[Field, ...]:
        """The history."""
        return (Field("remembered", np.float64, (prod(self.rule.history.shape(self.actions)),)),)

    def opened(self, released: Ints) -> Columns:
        """Nothing is known: histories are 0."""
        return {}

    def resumed(self, carried: Sequence[Carried], lengths: Ints) -> Columns:
        """The carried histories."""
        histories = [known.history for known in carried]
        assert None not in histories, "a feedback stream carries over a history"
        numbers = np.array([np.frombuffer(of or b"", "<f8") for of in histories])
        begun = self.rule.history.resumed(numbers.reshape(-1, CARRIED_PER_ARM, self.actions))
        return {"remembered": begun.reshape(len(begun), -1)}

    def fold(self, public: Columns, released: Ints, lengths: Ints) -> Columns:
        """Learn from blocks with these noisy sums (grid units) and counts."""
        gains, shown = released[:, : self.actions], released[:, self.actions :]
        now = self.learned(self.histories(public), gains, shown)
        return {"remembered": now.reshape(len(now), -1)}

    def learned(self, state: Floats, gains: Ints, shown: Ints) -> Floats:
        """The histories after a block with these released sums and counts."""
        kept = state * float(self.forgetting)
        return self.rule.learned(kept, gains / UNIT, shown.astype(np.float64), self.noise)

    def in_force(self, public: Columns, lengths: Ints) -> Policy:
        """The policies that follow; rows of which nothing is known have the same one."""
        state = self.histories(public)
        if len(state) > 1 and not state.any() and (lengths == lengths[0]).all():
            return np.repeat(self.rule.policy(state[:1], lengths[:1]), len(state), axis=0)
        return self.rule.policy(state, lengths)

    def known(self, public: Columns) -> Iterator[tuple[int, Floats]]:
        """What of the history a key carries over."""
        return ((0, kept) for kept in self.rule.history.carried(self.histories(public)))

    def histories(self, public: Columns) -> Floats:
        """The whole histories, R × their rule's shape."""
        kept: Floats = public["remembered"]
        return kept.reshape(len(kept), *self.rule.history.shape(self.actions))
