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
   little while a visit has some 50/ε events (docs/operating.md has the measurements).
3. *The history* of a feedback stream, arm by arm: an arm that stays keeps its two numbers (weight
   and weighted sum of the posterior), by name; a new arm has none. Only posteriors can be carried:
   the numbers of other rules have a meaning under their own rates alone, so there keys open anew.

A memory of votes begins again, sure of the carried action (`Memory.sure_of`).

Privacy: everything read here was released, or follows from releases, so it costs nothing. The
import contract of this package keeps open sums out of reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.events import After, Carried
from streamdp.core.evidence.policy_rule import CARRIED_PER_ARM
from streamdp.core.schedule import Schedule

STAYS_AWAY = -1
"""In place of an action's new number: no new action has its name."""


@dataclass(frozen=True, slots=True)
class Known:
    """The public part of one key's learner."""

    after: After
    action: int  # the action in force, as the old learner numbers it
    history: Floats | None = None  # feedback streams: 2 × K


@dataclass(frozen=True)
class Passage:
    """Carries keys over from one configuration of a stream to another."""

    actions_before: Sequence[str] = field(repr=False)
    actions_now: Sequence[str] = field(repr=False)
    schedule_before: Schedule
    schedule_now: Schedule
    histories: bool = False  # whether a feedback stream's histories mean the same in both

    @cached_property
    def moves(self) -> Ints:
        """The new number of each old action.

        >>> from streamdp.core.schedule import dyadic
        >>> Passage(("a", "b", "c"), ("c", "a", "new"), dyadic(), dyadic()).moves
        array([ 1, -1,  0])
        """
        now = {name: at for at, name in enumerate(self.actions_now)}
        numbers = [now.get(name, STAYS_AWAY) for name in self.actions_before]
        return np.array(numbers, dtype=np.int64)

    @cached_property
    def _first_blocks(self) -> dict[int, int]:
        return {}

    def first_block(self, due: int) -> int:
        """The new learner's first block, where this block of the old one was open."""
        if due not in self._first_blocks:
            ended = self.schedule_before.length_before(due)
            self._first_blocks[due] = self.schedule_now.first_as_long(ended)
        return self._first_blocks[due]

    def carried(self, known: Known) -> Carried | None:
        """What a key's new learner begins with; None: the key opens like a new one."""
        after = known.after
        block = self.first_block(after.block)
        if known.history is None:
            action = int(self.moves[known.action])
            return None if action == STAYS_AWAY else Carried(action, block, after)
        if not self.histories or not (self.moves != STAYS_AWAY).any():
            return None
        history = moved(known.history, self.moves, actions=len(self.actions_now))
        return Carried(0, block, after, history.astype("<f8").tobytes())


def moved(history: Floats, moves: Ints, *, actions: int) -> Floats:
    """A feedback learner's history under the new numbers of its arms; zeros for arms without one.

    >>> moved(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, -1]), actions=3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 3.0, 0.0]]
    """
    renumbered = np.zeros((CARRIED_PER_ARM, actions))
    stays = moves != STAYS_AWAY
    renumbered[:, moves[stays]] = history[:, stays]
    return renumbered
