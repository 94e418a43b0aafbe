"""Votes: the evidence of streams of losses. A memory computes the action in force from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from streamdp.core.arrays import Columns, Field, Ints
from streamdp.core.events import Carried
from streamdp.core.evidence.evidence import STAYS_AWAY, Known
from streamdp.core.evidence.memory import Memory, Standing


@dataclass(frozen=True, slots=True)
class Votes:
    """The action in force, and what the memory keeps of earlier votes."""

    memory: Memory
    actions: int | None = None  # how many there are, where it is known
    answers: Literal["action"] = "action"
    carries: str = "action"
    adds_up: bool = False  # the newest line says what is in force

    @property
    def fields(self) -> tuple[Field, ...]:
        """The action in force, and the memory's integers."""
        return (
            Field("action", np.int32),
            Field("remembered", np.int32, (self.memory.width,)),
        )

    def opened(self, released: Ints) -> Columns:
        """The openings are in force at once; the memory has no vote yet."""
        return {"action": released[:, 0]}

    def resumed(self, carried: Sequence[Carried], lengths: Ints) -> Columns:
        """The carried actions are in force, and the memory begins sure of them."""
        actions = np.array([known.action for known in carried], dtype=np.int64)
        return {"action": actions, "remembered": self.memory.sure_of(actions, lengths)}

    def fold(self, public: Columns, released: Ints, lengths: Ints) -> Columns:
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

    def in_force(self, public: Columns, lengths: Ints) -> Ints:
        """The action in force."""
        return public["action"].astype(np.int64)

    def wrong(self, released: Ints, length: int) -> str:
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

    def moved(self, known: Known, moves: Ints) -> Known | None:
        """The action, by its name; if it is gone, nothing tells which one is good for the key."""
        action = int(moves[known.action])
        return None if action == STAYS_AWAY else Known(action)
