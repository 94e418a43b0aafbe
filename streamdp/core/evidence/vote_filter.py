"""A filter of votes: a posterior, in whole numbers, of which action is best now.

Where blocks have stopped growing, one vote may be wrong: the block was too short for the noise, or
for the gap between the two best actions. The filter weighs votes against each other. It is the
forward pass of a hidden Markov model:

* The best action stays the best from one vote to the next, except that with chance `hazard` it
  changes to any action: w ← (1 − h)·w + h/K.
* A vote is for the best action f times as often as for its strongest rival: w_vote ← f·w_vote.
* The action with the largest weight is in force; it stays as long as no other has a larger one.

f is learned from the votes: it is the ratio of the largest to the second largest running share of
votes. If one rival is nearly as good, it gets most dissenting votes: then a single vote says
little, and many must agree. If dissenting votes scatter, they are noise: then two or three votes
for one action suffice to follow a change. The pattern of shares survives a change: when two votes
in a row are for another action than the last such pair, these two actions swap their shares. A
rival's votes come scattered and those after a change come in a row, so the filter does not confuse
them, and many changes do not make it slow.

A block of fewer than `since` slots belongs to the time in which blocks grow, when each block knows
more than all before it together: there the vote is in force. The filter begins with the first block
of at least `since` slots, with a weight of .9 on that block's vote.

Whole numbers: weights and shares are in parts of 2**24, the hazard of 2**16, f of 2**8. No sum or
product exceeds 2**62, division rounds down: the same votes give the same bits on every platform.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.votes import Standing
from streamdp.core.schedule import LAST_SLOT

_POINT, _CHANCE, _FACTOR = 24, 16, 8
"""Bits after the point: of weights and shares, of the hazard, of f."""

_ONE = 1 << _POINT

_CERTAIN = _ONE * 9 // 10
"""The weight of the vote that the filter begins with."""

_AGREEING = _ONE * 7 // 10
"""Its share, before the filter knows how votes scatter."""

_VOTES = 50
"""How many votes a share remembers: 1/50 of each vote enters it."""

_LEAST, _MOST = (1 << _FACTOR) * 6 // 5, 64 << _FACTOR
"""f is kept between 1.2 and 64: a vote always counts for its action, and never proves it."""

_LATEST, _PAIR, _HEAD = 0, 1, 2
"""Columns: the latest vote, and the latest vote that came twice in a row, each plus 1."""

_NAME = re.compile(
    r"vote_filter of (\d{1,7}) actions since (\d{1,13}) at (\d{1,9}/[1-9]\d{0,8})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class VoteFilter:
    """Puts in force the action that the votes so far make likeliest; `named` restores it.

    Privacy: post-processing of votes, at no cost. It gets votes and lengths of blocks only.

    >>> memory = VoteFilter(actions=3, since=100, hazard=Fraction(1, 100))
    >>> standing = Standing(np.array([0]), np.zeros((1, memory.width), np.int64))
    >>> in_force = []
    >>> for vote in (1, 1, 1, 2, 1, 2, 2, 2, 2):
    ...     standing = memory.after(standing, np.array([vote]), np.array([100]))
    ...     in_force.append(standing.in_force.item())
    >>> in_force
    [1, 1, 1, 1, 1, 1, 1, 1, 2]
    """

    actions: int
    since: int
    hazard: Fraction

    def __post_init__(self) -> None:
        """Refuse arguments that whole numbers of these widths cannot represent."""
        exact = isinstance(self.hazard, Fraction) and Fraction(
            1, 1 << _CHANCE
        ) <= self.hazard <= Fraction(1, 2)
        if not (2 <= self.actions <= 10**6 and 1 <= self.since <= LAST_SLOT and exact):
            raise InvalidConfig(
                "memory",
                "out of range",
                expected="2 … 10**6 actions, blocks of slots, a hazard of 1/65536 … 1/2",
                got=f"{self.actions} actions, {self.since} slots, hazard {self.hazard}",
            )

    @property
    def name(self) -> str:
        """Its name in the ledger; `named` reads it back."""
        return f"vote_filter of {self.actions} actions since {self.since} at {self.hazard}"

    @property
    def width(self) -> int:
        """The latest vote and the latest pair, then a weight and a share for each action."""
        return _HEAD + 2 * self.actions

    def after(self, standing: Standing, votes: Ints, lengths: Ints) -> Standing:
        """The vote while blocks grow; from then on the likeliest action."""
        kept = lengths >= self.since
        if not kept.any():
            return Standing(votes, standing.remembered)
        in_force, remembered = votes.copy(), standing.remembered.copy()
        known = remembered[:, _LATEST] > 0
        new, going = np.flatnonzero(kept & ~known), np.flatnonzero(kept & known)
        if len(new):
            remembered[new] = self._begun(votes[new])
        in_force[going], remembered[going] = self._weighed(
            remembered[going], standing.in_force[going], votes[going]
        )
        return Standing(in_force, remembered)

    def sure_of(self, actions: Ints, lengths: Ints) -> Ints:
        """The memory after one vote for each action, if the votes of these blocks are filtered.

        So all that a learner carries over of its votes is one action, which a ledger line can hold.
        """
        kept = lengths >= self.since
        remembered = np.zeros((len(actions), self.width), dtype=np.int64)
        remembered[kept] = self._begun(actions[kept])
        return remembered

    def _begun(self, votes: Ints) -> Ints:
        """The memory after the first vote that is filtered."""
        parts = np.empty((len(votes), 2, self.actions), dtype=np.int64)
        for part, of_vote in enumerate((_CERTAIN, _AGREEING)):
            parts[:, part] = (_ONE - of_vote) // (self.actions - 1)
            parts[np.arange(len(votes)), part, votes] = of_vote
        head = np.stack([votes + 1, votes + 1], axis=1)
        return np.concatenate([head, parts.reshape(-1, 2 * self.actions)], axis=1)

    def _weighed(self, remembered: Ints, in_force: Ints, votes: Ints) -> tuple[Ints, Ints]:
        """The action in force and the memory after one more vote of each row."""
        rows, end = np.arange(len(votes)), _HEAD + self.actions
        shares, weights = remembered[:, end:].copy(), remembered[:, _HEAD:end]
        # The best action may have changed: all weights drift towards each other, and none dies.
        chance = (self.hazard.numerator << _CHANCE) // self.hazard.denominator
        share = -(-(chance << (_POINT - _CHANCE)) // self.actions)
        weights = weights - (weights * chance >> _CHANCE) + share
        # f of each row, in parts of 2**8.
        best = shares.argmax(axis=1)
        others = shares.copy()
        others[rows, best] = 0
        factors = (shares[rows, best] << _FACTOR) // np.maximum(others.max(axis=1), 1)
        weights[rows, votes] = weights[rows, votes] * factors.clip(_LEAST, _MOST) >> _FACTOR
        weights = (weights << _POINT) // weights.sum(axis=1, keepdims=True)
        best = weights.argmax(axis=1)
        now = np.where(weights[rows, in_force] == weights[rows, best], in_force, best)
        shares -= shares // _VOTES
        shares[rows, votes] += _ONE // _VOTES
        before = remembered[:, _PAIR] - 1
        pair = np.where(remembered[:, _LATEST] == votes + 1, votes, before)
        of_before, of_pair = shares[rows, before], shares[rows, pair]
        shares[rows, before], shares[rows, pair] = of_pair, of_before
        head = np.stack([votes + 1, pair + 1], axis=1)
        return now, np.concatenate([head, weights, shares], axis=1)


def named(name: str) -> VoteFilter:
    """The filter of this name in the ledger.

    >>> named(VoteFilter(3, 512, Fraction(1, 300)).name) == VoteFilter(3, 512, Fraction(1, 300))
    True
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidConfig(
            "memory", "unknown", expected="a name that this version writes", got=name
        )
    numerator, _, denominator = match[3].partition("/")
    return VoteFilter(int(match[1]), int(match[2]), Fraction(int(numerator), int(denominator)))
