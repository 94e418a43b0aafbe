"""The policies of one key over time, recomputed from the ledger's sums on demand.

The policy after a block is a public function of all sums of the learner so far. Computing it takes
over a tenth of a millisecond for each block, too long for a start that reads a long ledger; so only
the sums are kept, and none for a key with more than `MOST_BLOCKS` blocks. No policy can be computed
if the learner's opening was not read, or after a line that was withheld. A carried-over history
stands in the opening's line, and the policies begin with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET

from streamdp.core.errors import StateMismatch
from streamdp.core.events import OPENING, BlockSums
from streamdp.core.evidence.policy import PARTS
from streamdp.wire.lines import Charge
from streamdp.wire.retracing import NEW, begun_with, policies_after

MOST_BLOCKS = 128
"""Most blocks of a key whose policies are computed: doubling blocks never reach it."""

MOST_POINTS = 32
"""Policies that are computed at once, spread evenly over the blocks, beside the newest."""


class PolicyPoint(NamedTuple):
    """The policy in force from a slot on, after a number of blocks."""

    slot: int
    blocks: int
    shares: Sequence[float]


class PolicyHistory:
    """Keeps one learner's sums from its opening on."""

    __slots__ = ("_begun", "_computed", "_learner", "_slots", "_sums")

    def __init__(self) -> None:
        self._learner = ""
        self._begun = NEW
        self._slots: list[int] = []  # the slot from which each policy is in force
        self._sums: list[BlockSums] | None = []  # None: no policy can be computed
        self._computed: list[PolicyPoint] = []  # by the newest call

    def add(self, line: Charge, sums: BlockSums | None) -> None:
        """Keep what the line of an opening or of a block's sums says."""
        if self._sums is None:
            return
        text = "" if line.learner is UNSET else line.learner
        if line.kind == OPENING and not self._slots and line.withheld is not True:
            self._open(text, line)
        elif (
            sums is not None
            and text == self._learner
            and line.block == self._begun.block + len(self._sums)
            and len(self._sums) < MOST_BLOCKS
            and self._slots
        ):
            self._sums.append(sums)
            self._slots.append(line.stop)
        else:
            self._sums, self._computed = None, []

    def _open(self, learner: str, line: Charge) -> None:
        self._learner, self._slots = learner, [line.stop]
        try:
            self._begun = begun_with(line)
        except StateMismatch:  # the ledger is read, not trusted
            self._sums = None

    def points(self, actions: int) -> list[PolicyPoint]:
        """The policies, the oldest first; empty if they cannot be computed."""
        if not self._sums:
            return []
        last = len(self._sums)
        if self._computed and self._computed[-1].blocks == last:
            return self._computed
        every = -(-len(self._slots) // MOST_POINTS)
        wanted = sorted({*range(0, last + 1, every), last})
        policies = policies_after(
            self._learner,
            self._sums,
            wanted,
            actions=actions,
            begun=self._begun,
        )
        self._computed = [
            PolicyPoint(self._slots[at], at, (policy / PARTS).tolist())
            for at, policy in zip(wanted, policies, strict=True)
        ]
        return self._computed
