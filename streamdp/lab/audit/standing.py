"""The action in force in each block of each key, recomputed from releases alone.

The learner's memory (`core.evidence`) is a public function of votes and block lengths. The engine
calls it with the numbers in its rows; here it is called with releases, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.evidence import Standing
from streamdp.core.learners import Leader


@dataclass(frozen=True, slots=True)
class Standings:
    """The actions in force of N keys, over B blocks."""

    during: Ints  # N × B: while the block lasts, so when its selection is drawn
    after: Ints  # N × B: once the block's release is known


def standings_of(learner: Leader, openings: Ints, votes: Ints) -> Standings:
    """From the openings (N) and what the blocks released (N × B)."""
    keys, blocks = votes.shape
    lengths = learner.schedule.lengths(np.arange(blocks))
    in_force = np.empty((keys, blocks + 1), dtype=np.int64)
    in_force[:, 0] = openings
    standing = Standing(openings, np.zeros((keys, learner.memory.width), dtype=np.int64))
    for block in range(blocks):
        length = np.full(keys, lengths[block])
        standing = learner.memory.after(standing, votes[:, block].copy(), length)
        in_force[:, block + 1] = standing.in_force
    return Standings(in_force[:, :-1], in_force[:, 1:])
