"""Votes: the evidence of streams of losses. A memory computes the action in force from them.

A *vote* is the action that a block's private choice released. At the end of each block, after the
vote was drawn, the engine asks a memory what is in force from the next slot on. A memory is a pure
function of this key's votes and of the blocks that they were drawn from:

1. It is asked once for each vote, in the order of the blocks; each key is treated alone.
2. Between votes it keeps a fixed number of integers for each key, below 2**31. They are saved with
   the key's row, and `ledger verify` computes them again from the ledger.
3. The same votes give the same answer however blocks were cut into batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from streamdp.core.arrays import Bools, Columns, Field, Ints
from streamdp.core.events import Carried
from streamdp.core.evidence.evidence import STAYS_AWAY, Known, PublicEvidence
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


@dataclass(frozen=True, slots=True)
class Votes:
    """The action in force, and what the memory keeps of earlier votes."""

    memory: Memory
    actions: int | None = None  # how many there are, where it is known
    answers: Literal["action"] = "action"
    listed: int = 0
    carries: str = "action"
    adds_up: bool = False  # the newest line says what is in force

    @property
    def says_more(self) -> bool:
        """Where there is a memory."""
        return self.memory != NEWEST

    @property
    def fields(self) -> tuple[Field, ...]:
        """The action in force, and the memory's integers."""
        return (
            Field("action", np.int32),
            Field("remembered", np.int32, (self.memory.width,)),
        )

    def of_named(self, released: Ints, named: int | None = None) -> Ints:
        """All: every action has a name."""
        return released

    def opened(self, released: Ints) -> Columns:
        """The openings are in force at once; the memory has no vote yet."""
        return {"action": released[:, 0]}

    def resumed(
        self, carried: Sequence[Carried], lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        """The carried actions are in force, and the memory begins sure of them."""
        actions = np.array([known.action for known in carried], dtype=np.int64)
        return {"action": actions, "remembered": self.memory.sure_of(actions, lengths)}

    def fold(
        self, public: Columns, released: Ints, lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        """Put votes into the memory.

        Where blocks are shorter than its `since` it is not asked: the vote is in force.
        """
        votes = released[:, 0]
        weighed = np.flatnonzero(lengths >= self.memory.since)
        if not len(weighed):
            return {"action": votes}
        remembered, in_force = public["remembered"].astype(np.int64), votes.copy()
        before = Standing(public["action"][weighed].astype(np.int64), remembered[weighed])
        now = self.memory.after(before, votes[weighed], lengths[weighed])
        in_force[weighed], remembered[weighed] = now.in_force, now.remembered
        return {"action": in_force, "remembered": remembered}

    def in_force(self, public: Columns, lengths: Ints, allowed: Bools | None = None) -> Ints:
        """The action in force, allowed or not: readers show another in its place."""
        return public["action"].astype(np.int64)

    def wrong(self, public: Columns, released: Ints, length: int) -> str:
        """A vote is one number, below that of the actions."""
        if released.shape != (1,):
            return f"a vote of {released.size} numbers"
        if self.actions is not None and not 0 <= released[0] < self.actions:
            return f"a vote for action {released[0]} of {self.actions}"
        return ""

    def likely_best(self, public: Columns) -> None:
        """Votes do not say."""

    def known(self, public: Columns) -> Iterator[Known]:
        """The action in force; a memory of votes is not carried over."""
        return map(Known, public["action"].tolist())

    def moved(self, known: Known, moves: Ints, before: PublicEvidence) -> Known | None:
        """The action, by its name; if it is gone, nothing tells which one is good for the key."""
        action = int(moves[known.action])
        return None if action == STAYS_AWAY else Known(action)
