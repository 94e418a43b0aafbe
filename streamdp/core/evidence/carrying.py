"""What a key's new learner begins with: the public state of the key's previous learner.

A learner is new where an epoch begins, and where an idle key comes back. Its key carries over:

1. *The action in force*, by its name. If no new action has that name, nothing tells which one is
   good for the key, and the key opens like a new key.
2. *The length reached*: the new learner begins with its first block that is at least as long as the
   last one that ended. So a key that has learned for long does not go through short blocks again.
   The open block is abandoned: it is not selected from, and nothing of it is carried (P9).
   A learner that carried over and has ended no block yet counts as if the block before its first
   had ended: a key that leaves again and again before any block ends begins one length lower each
   time. At its full length it would never notice a change again; where nothing changes this costs
   little while a visit has some 50/ε events (docs/operating.md has the rule).
3. *The history* of a feedback stream, arm by arm: an arm that stays keeps its two numbers (weight
   and weighted sum of the posterior), by name; a new arm has none. Only posteriors can be carried:
   the numbers of other rules have a meaning under their own rates alone, so there keys open anew.

A memory of votes begins again, sure of the carried action (`Memory.sure_of`).

Privacy: everything read here was released, or follows from releases, so it costs nothing. The
import contract of this package keeps open sums out of reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.events import SPARE, After, Carried
from streamdp.core.evidence.evidence import STAYS_AWAY, Known, PublicEvidence
from streamdp.core.schedule import Schedule


class Learning(Protocol):
    """What carrying over needs to know of a learner; a `Kind` is one."""

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of its actions."""

    @property
    def schedule(self) -> Schedule:
        """Where its blocks end."""

    @property
    def evidence(self) -> PublicEvidence:
        """What its releases are evidence of."""


@dataclass(frozen=True)
class Passage:
    """Carries keys over from one learner to another; or to the same one, which keeps everything."""

    before: Learning
    now: Learning

    @cached_property
    def moves(self) -> Ints | None:
        """The new number of each old action; None where the learner is the same.

        >>> from streamdp.core.learners.incumbent_leader import incumbent_leader
        >>> old, new = (incumbent_leader(actions=of, epsilon=1) for of in map(list, ("abc", "can")))
        >>> Passage(old, new).moves
        array([ 1, -1,  0])
        """
        if self.before is self.now:
            return None
        now = {name: at for at, name in enumerate(self.now.actions) if name != SPARE}
        numbers = [now.get(name, STAYS_AWAY) for name in self.before.actions]
        return np.array(numbers, dtype=np.int64)

    @cached_property
    def _first_blocks(self) -> dict[int, int]:
        return {}

    def first_block(self, due: int) -> int:
        """The new learner's first block, where this block of the old one was open."""
        if due not in self._first_blocks:
            ended = self.before.schedule.length_before(due)
            self._first_blocks[due] = self.now.schedule.first_as_long(ended)
        return self._first_blocks[due]

    def carried(self, after: After, known: Known) -> Carried | None:
        """What a key's new learner begins with; None: the key opens like a new one."""
        now = carried_to(*self._evidence, known, self.moves)
        if now is None:
            return None
        return Carried(now.action, self.first_block(after.block), after, now.history)

    @cached_property
    def _evidence(self) -> tuple[PublicEvidence, PublicEvidence]:
        return self.now.evidence, self.before.evidence


def carried_to(
    now: PublicEvidence, before: PublicEvidence, known: Known, moves: Ints | None
) -> Known | None:
    """What one learner's evidence knows of a key, as another's begins with it.

    `moves` has the new number of each action; None stands for a key that comes back to the learner
    that it had: it keeps everything, whatever its numbers mean.
    """
    if moves is None:
        return known
    if now.carries != before.carries or now.carries == "nothing":
        return None
    return now.moved(known, moves, before)
