"""Checks by a ledger's lines alone that openings carry over what they must: for `verification`.

What a key's learner may carry over is public: what its evidence keeps for that (the action in
force, or the history that follows from released sums), and the length of the last block that ended.
Each opening is compared with the newest learner of its key:

1. A carried opening names that learner, and carries what can be recomputed from its lines.
2. Nothing is carried into an epoch whose mark does not allow it.
3. Where the mark allows it, a key that can carry something over does. So does a key that was idle
   and comes back within an epoch.

Actions that stay are found by the marks of epochs, and their names in votes must agree. Marks do
not show an action that was absent for an epoch and is back: what depends on it is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.errors import StateMismatch
from streamdp.core.events import After
from streamdp.core.evidence.carrying import carried_to
from streamdp.core.evidence.evidence import STAYS_AWAY, Known
from streamdp.core.kinds.names import MOST_ACTIONS
from streamdp.wire.lines import CarriedOver, Carries, Charge
from streamdp.wire.retracing import Learners, Method, schedule_in

_UNKNOWN = -2
"""In place of an action's new number: it was gone in one epoch, and may be back."""


class NewestCharge(NamedTuple):
    """The newest learner of a key."""

    after: After
    length: int  # of the block before the one that is due
    learners: Learners
    row: int
    said: int  # the action in force, as the newest line says; -1 where it says none
    lost: bool  # whether nothing can be computed

    def known(self, actions: int) -> Known | None:
        """What the key may carry over, if it can be computed.

        `actions`: how many there are, if no line has said so.
        """
        if self.said >= 0:
            return Known(self.said)
        return None if self.lost else self.learners.known(self.row, actions)


@dataclass(slots=True)
class Succession:
    """Follows the lines of one partition."""

    names: Mapping[tuple[int, int], str]  # of actions, by epoch and number
    carries: Carries | None = None
    _marks: list[tuple[int, Carries]] = field(default_factory=list)  # those that carry over

    def begin(self, epoch: int, carries: Carries | None) -> None:
        """Begin an epoch."""
        self.carries = carries
        self._marks = [] if carries is None else [*self._marks, (epoch, carries)]

    def opened(self, line: Charge, before: NewestCharge | None) -> Iterator[str]:
        """Yield the faults of an opening."""
        carried = line.carried
        if not isinstance(carried, CarriedOver):
            if before is not None and self._must_carry(line, before):
                yield f"an opening that carries nothing over, where epoch {line.epoch} does"
            return
        old = After(carried.epoch, carried.born, carried.block)
        if before is None or before.after != old:
            newest = "none" if before is None else _named(before.after)
            yield f"an opening carried over from {_named(old)}; the key's newest learner: {newest}"
            return
        if old.epoch == line.epoch and old.born >= line.born:
            yield f"an opening carried over from {_named(old)}, which is not older"
        if old.epoch < line.epoch and self.carries is None:
            yield f"an opening carried over into epoch {line.epoch}, whose mark does not say so"
        schedule = schedule_in(carried)
        first = None if schedule is None else schedule.first_as_long(before.length)
        start = None if schedule is None or first is None else schedule.start(first)
        if (first, start) != (carried.first_block, line.start):
            yield (
                f"an opening carried over into block {carried.first_block} from slot {line.start}"
                f" on, after one of {before.length} slots; expected block {first}, slot {start}"
            )
        yield from self._matches(line, before)

    def _matches(self, line: Charge, before: NewestCharge) -> Iterator[str]:
        """Compare what is carried over with what the key's newest learner knows."""
        carried, method, actions = line.carried_over(), Method.of(line), None
        if method.learner is not None:
            actions = method.actions_of("history", len(carried.history or b"") // 8)
        expected, sure = self._expected(line, before, actions)
        known = before.known(max(actions or 0, before.learners.method.few))
        name = None if known is None else self.names.get((carried.after.epoch, known.action))
        if isinstance(line.action, str) and name not in (None, line.action):
            yield f"action {line.action!r} carried over where {name!r} was in force"
        elif not sure:
            return
        elif expected is None or expected.action != carried.action:
            yield f"action {line.action!r} carried over where another one was in force"
        elif expected.history != carried.history:
            yield "another history carried over than the released sums make"

    def _must_carry(self, line: Charge, before: NewestCharge) -> bool:
        """Whether an opening should have carried something over."""
        if self.carries is None and before.after.epoch != line.epoch:
            return False
        return self._expected(line, before, None)[0] is not None

    def _expected(
        self, line: Charge, before: NewestCharge, actions: int | None
    ) -> tuple[Known | None, bool]:
        """What an opening is to carry over, and whether lines and marks suffice to say so.

        `actions`: how many the opening says there are.
        """
        epoch, same = before.after.epoch, before.after.epoch == line.epoch
        marks = [mark for at, mark in self._marks if at > epoch]
        size = before.learners.actions or max(
            (old + count for mark in marks[:1] for _, old, count in mark.kept),
            default=actions or 0,
        )
        size = max(size, before.learners.method.few)
        known = before.known(size)
        if known is None:
            return None, False
        evidence, moves, sure = before.learners.method.evidence(size), None, True
        if not same:
            moves = _moved(max(size, known.action + 1), marks)
            of_it = moves if evidence.adds_up else moves[[known.action]]
            sure = not (of_it == _UNKNOWN).any()
            moves = np.maximum(moves, STAYS_AWAY)
        least = size if moves is None else int(moves.max(initial=1)) + 1
        if actions is not None and actions < least:
            got, expected = f"{actions} actions", f"{least} or more, which stay"
            raise StateMismatch("history", "length", expected=expected, got=got)
        now = Method.of(line).evidence(least if actions is None else actions)
        return carried_to(now, evidence, known, moves), sure


def _moved(actions: int, marks: Sequence[Carries]) -> Ints:
    """The new number of each action of an epoch, by the marks since."""
    moves = np.arange(actions)
    for at, mark in enumerate(marks):
        moves = np.where(moves == STAYS_AWAY, _UNKNOWN, moves) if at else moves
        step = np.full(int(moves.max(initial=0)) + 1, STAYS_AWAY)
        for new, old, count in mark.kept:
            upto = min(old + count, len(step))
            if old < upto and new + count <= MOST_ACTIONS:
                step[old:upto] = np.arange(new, new + upto - old)
        moves = np.where(moves < 0, moves, step[moves])
    return moves


def _named(after: After) -> str:
    return f"block {after.block} of the one born at {after.born} in epoch {after.epoch}"
