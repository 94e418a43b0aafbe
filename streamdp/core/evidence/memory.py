"""Memory: computes the action in force from the votes of a key, for many keys at a time.

A *vote* is the action that a block's private choice released. At the end of each block, after the
vote was drawn, the engine asks a memory what is in force from the next slot on. A memory is a pure
function of this key's votes and of the blocks that they were drawn from:

1. It is asked once for each vote, in the order of the blocks; each key is treated alone.
2. Between votes it keeps a fixed number of integers for each key, below 2**31. They are saved with
   the key's row, and `ledger verify` computes them again from the ledger.
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

    in_force: Ints  # R: the action that readers use
    remembered: Ints  # R × W: what the memory keeps; 0 before the first vote


class Memory(Protocol):
    """Turns votes into the action in force."""

    @property
    def name(self) -> str:
        """Its name in the ledger, with all that is needed to compute it again; "" for none."""

    @property
    def width(self) -> int:
        """How many integers are remembered for each key."""

    @property
    def since(self) -> int:
        """The vote of a block of fewer slots is in force at once."""

    def after(self, standing: Standing, votes: Ints, lengths: Ints) -> Standing:
        """The standing after each row has cast a vote, drawn from a block of this length."""

    def sure_of(self, actions: Ints, lengths: Ints) -> Ints:
        """What is remembered (R × W) where these actions are carried into blocks of this length."""


@dataclass(frozen=True, slots=True)
class NewestVote:
    """No memory: the newest vote is in force."""

    @property
    def name(self) -> str:
        """Empty: the ledger does not mention it, as the vote says everything."""
        return ""

    @property
    def width(self) -> int:
        """Nothing is remembered."""
        return 0

    @property
    def since(self) -> int:
        """Longer than any block: every vote is in force at once."""
        return LAST_SLOT + 1

    def after(self, standing: Standing, votes: Ints, lengths: Ints) -> Standing:
        """The votes, whatever was in force."""
        return Standing(votes, standing.remembered)

    def sure_of(self, actions: Ints, lengths: Ints) -> Ints:
        """Nothing."""
        return np.zeros((len(actions), 0), dtype=np.int64)


NEWEST = NewestVote()
"""The memory of every recipe that does not say otherwise."""
