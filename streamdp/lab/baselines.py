"""Baselines without privacy that follow change, for simulations. All of them are NOT PRIVATE.

They see exact sums, without noise, block by block of 512 slots, and show what following change
costs without privacy. Three textbook ways:

* *sliding window*: the least sum of the last 32 blocks;
* *restarting*: the least sum since the last restart, every 64 blocks;
* *fixed share* (Herbster & Warmuth 1998, §5): each block votes for its least sum; a vote multiplies
  its action's weight by e, then every action gets an equal part of 1/100 of all weight. In force is
  the largest weight. Differs from the paper: the largest weight plays, not a draw by weights.

There is no baseline of private tracking of the best expert (Asi, Raman & Saha 2025). Only the
abstract of that paper was available, which states bounds and no algorithm: neither its test for a
shift nor its thresholds follow from them. For an oblivious adversary the bound is that of a
reduction to static regret over all (N·T)^S sequences with S switches under (ε, δ)-privacy, which
neither runs at this size nor can be compared at δ = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.evidence.votes import Standing
from streamdp.core.learners import Leader, learner_of
from streamdp.lab.common.cells import BASELINE, Candidate
from streamdp.lab.play import First, this_block
from streamdp.wire.unprotected import NOT_PRIVATE

BLOCK = 512
_WINDOW_BLOCKS, _RESTART_BLOCKS = 32, 64
_SHARED, _POINT = 100, 1 << 24
"""One part in so many of all weight is shared; weights are in parts of 2**24."""

_RATE = 696  # e in parts of 2**8
_RATE_POINT = 8


@dataclass(frozen=True, slots=True)
class Baseline:
    """A learner without privacy: the first block whose losses count, and its memory."""

    name: str
    first: First  # of the blocks whose sums count at the end of a block
    shares: bool = False

    @property
    def label(self) -> str:
        """The name in tables."""
        return f"{self.name}, {NOT_PRIVATE}"

    @property
    def candidate(self) -> Candidate:
        """What it is called among the candidates; it takes no ε."""
        return Candidate(self.label, BASELINE, ())

    def kind(self, actions: Sequence[str]) -> Leader:
        """The learner that is played."""
        config = {"recipe": BASELINE, "schedule": f"capped {BLOCK}"}
        leader: Leader = learner_of(config, actions=actions)
        return replace(leader, memory=FixedShare(len(actions))) if self.shares else leader


@dataclass(frozen=True, slots=True)
class FixedShare:
    """Weights of actions; the largest is in force."""

    actions: int

    @property
    def name(self) -> str:
        """The name; it never stands in a ledger."""
        return "fixed share"

    @property
    def width(self) -> int:
        """A weight for each action."""
        return self.actions

    @property
    def since(self) -> int:
        """0: every vote counts."""
        return 1

    def after(self, standing: Standing, votes: Ints, lengths: Ints) -> Standing:
        """Count one more vote of each row."""
        weights, rows = standing.remembered.copy(), np.arange(len(votes))
        weights[weights.sum(axis=1) == 0] = _POINT // self.actions
        weights[rows, votes] = weights[rows, votes] * _RATE >> _RATE_POINT
        weights = weights * _POINT // weights.sum(axis=1, keepdims=True)
        weights += _POINT // (_SHARED * self.actions) - weights // _SHARED
        return Standing(weights.argmax(axis=1), weights)

    def sure_of(self, actions: Ints, lengths: Ints) -> Ints:
        """Put all weight on one action; simulations carry nothing over."""
        weights = np.zeros((len(actions), self.actions), dtype=np.int64)
        weights[np.arange(len(actions)), actions] = _POINT
        return weights


BASELINES = (
    Baseline("sliding window", lambda block: max(0, block + 1 - _WINDOW_BLOCKS)),
    Baseline("restarting", lambda block: block - block % _RESTART_BLOCKS),
    Baseline("fixed share", this_block, shares=True),
)
