"""A small memory for tests: who is in force stays until another action gets two votes in a row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

import streamdp as sd
from streamdp.core.evidence import Ints, Standing


@dataclass(frozen=True, slots=True)
class TwiceInARow:
    """Remembers the latest vote, and from how long a block it was."""

    name: str = "twice in a row"
    width: int = 2
    since: int = 1

    def after(self, standing: Standing, votes: Ints, lengths: Ints) -> Standing:
        """The vote, if the one before was the same; else what was in force."""
        again = standing.remembered[:, 0] == votes + 1
        remembered = np.stack([votes + 1, standing.remembered[:, 1] + lengths], axis=1)
        return Standing(np.where(again, votes, standing.in_force), remembered)

    def sure_of(self, actions: Ints, lengths: Ints) -> Ints:
        """As after one vote for each."""
        return np.stack([actions + 1, lengths], axis=1)


def remembering(learner: sd.Leader) -> sd.Leader:
    """The same learner with this memory."""
    return replace(learner, memory=TwiceInARow())
