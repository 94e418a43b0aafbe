"""The policies of one key over time, computed again from its ledger lines when somebody looks.

A line tells sums; the policy after it is a public function of all sums of the learner so far
(`streamdp.wire.retracing`). Computing one takes about a millisecond, so lines are only followed,
and what is needed to compute the policy after some of them is kept: at most `MARKS`, evenly spread
over the blocks, and the newest. Nothing can be computed of a learner whose first lines were not
read, or after a line that was withheld.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamdp.core.evidence.policy import PARTS
from streamdp.wire.lines import Charge
from streamdp.wire.retracing import Mark, Retraced, policies_at

MARKS = 32
"""Policies of a key that can be computed; every second one goes when there are more."""


class PolicyPoint(NamedTuple):
    """The policy in force from a slot on, after the releases of so many blocks."""

    slot: int
    blocks: int
    shares: Sequence[float]


class PolicyHistory:
    """Follows one learner's lines from its opening on."""

    __slots__ = ("_every", "_marks", "_newest", "_retraced")

    def __init__(self) -> None:
        self._retraced = Retraced()
        self._marks: list[tuple[int, Mark]] = []
        self._newest: tuple[int, Mark] | None = None
        self._every = 1  # which blocks are marked

    def add(self, line: Charge) -> None:
        """Follow a line; what is wrong with it is for `ledger verify` to say."""
        for _ in self._retraced.read(line):
            pass
        mark = self._retraced.mark()
        if mark is None:
            return
        self._newest = (line.stop, mark)
        if mark.block % self._every:
            return
        self._marks.append(self._newest)
        if len(self._marks) > MARKS:
            self._marks, self._every = self._marks[::2], 2 * self._every

    def points(self, actions: int) -> list[PolicyPoint]:
        """The policies that can be computed, the oldest first."""
        if self._retraced.actions not in (None, actions):
            return []
        marks = [*self._marks]
        if self._newest is not None and not any(each is self._newest for each in marks[-1:]):
            marks.append(self._newest)
        policies = policies_at([mark for _, mark in marks], actions)
        return [
            PolicyPoint(slot, mark.block, (policy / PARTS).tolist())
            for (slot, mark), policy in zip(marks, policies, strict=True)
        ]
