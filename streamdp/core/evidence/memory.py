"""Memory: from the votes of one key to the action that is in force. Many keys at a time.

A *vote* is the action that a block's private choice released. The engine asks a memory at the end
of each block, after the vote was drawn, what is in force from the next slot on. A memory is a pure
function of this key's votes and of the blocks that they were drawn from:

1. It is asked once for each vote, in the order of the blocks; different keys do not meet.
2. What it remembers between votes is a fixed number of integers for each key, below 2**31. They are
   saved with the key's row, and `ledger verify` computes them again from the ledger.
3. The same votes give the same answer however blocks were cut into batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.schedule import LAST_SLOT


@dataclass(frozen=True, slots=True)
class Standing:
    """The public standing of some keys: one entry for each of R rows."""

    in_force: Ints  # R: the action that readers are told
    remembered: Ints  # R × W: what the memory keeps; 0 before the first vote


class Memory(Protocol):
    """How votes become the action in force."""

    @property
    def name(self) -> str:
        """What the ledger calls it, with all that is needed to compute it again; "" for none."""

    @property
    def width(self) -> int:
        """How many integers are remembered for each key."""

    @property
    def since(self) -> int:
        """The vote of a block of fewer slots is in force at once."""

    def after(self, standing: Standing, votes: Ints, lengths: Ints) -> Standing:
        """What holds once each row has cast a vote, drawn from a block of this length."""

    def sure_of(self, actions: Ints, lengths: Ints) -> Ints:
        """What is remembered (R × W) where these actions are carried into blocks of this length."""


@dataclass(frozen=True, slots=True)
class NewestVote:
    """No memory: the newest vote is in force."""

    @property
    def name(self) -> str:
        """The ledger does not mention it: the vote says everything."""
        return ""

    @property
    def width(self) -> int:
        """Nothing is remembered."""
        return 0

    @property
    def since(self) -> int:
        """No block is so long."""
        return LAST_SLOT + 1

    def after(self, standing: Standing, votes: Ints, lengths: Ints) -> Standing:
        """The votes, whatever was in force."""
        return Standing(votes, standing.remembered)

    def sure_of(self, actions: Ints, lengths: Ints) -> Ints:
        """Nothing."""
        return np.zeros((len(actions), 0), dtype=np.int64)


NEWEST = NewestVote()
"""The memory of every recipe that does not say otherwise."""
