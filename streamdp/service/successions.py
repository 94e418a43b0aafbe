"""Checks by a ledger's lines alone that openings carry over what they must: for `verification`.

What a key's learner may carry over is public: the name of the action in force, the length of the
last block that ended, and in a feedback stream the history that follows from released sums. Each
opening is compared with the newest learner of its key:

1. A carried opening names that learner, and carries what can be recomputed from its lines.
2. Nothing withheld is carried over, and nothing into an epoch whose mark does not allow it.
3. Where the mark allows it, a key that can carry something over does. So does a key that was idle
   and comes back within an epoch, unless it may have opened before `idle` was switched on: nothing
   says what was withheld from such keys, so they open anew.

An action whose name stands in no line (in force, but never voted for) is not judged.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streamdp.core.arrays import Floats
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import OPENING, After
from streamdp.core.evidence.carrying import STAYS_AWAY, moved
from streamdp.core.evidence.policy_rule import CARRIED_PER_ARM
from streamdp.core.kinds.names import MOST_ACTIONS
from streamdp.core.learners import PolicyLearner
from streamdp.core.learners.feedback.learner import feedback_learner_of
from streamdp.service.standings import schedule_in
from streamdp.wire.lines import CarriedOver, Carries, Charge, from_base64
from streamdp.wire.published import CARRIED


@dataclass(slots=True)
class PublicRow:
    """The public part of one key's newest learner."""

    after: After
    length: int = 0  # of the block before the one that is due
    action: str | None = None  # in force, if a line has named it
    withheld: bool = False
    learner: str = ""  # of a feedback stream
    history: Floats | None = None  # None if it cannot be computed


@dataclass(slots=True)
class Succession:
    """Follows the lines of one partition."""

    epoch: int = 0
    carries: Carries | None = None
    _marks: list[tuple[int, Carries]] = field(default_factory=list)  # those that carry over
    _keys: dict[object, PublicRow] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)  # of this epoch's actions
    _noted_from: int | None = None  # learners born from here on carry over within the epoch

    def begin(self, epoch: int, carries: Carries | None) -> None:
        """Begin an epoch; forget the one before unless this epoch carries over."""
        self.epoch, self.carries = epoch, carries
        self._names, self._noted_from = {}, None
        if carries is None:
            self._keys, self._marks = {}, []
        else:
            self._marks.append((epoch, carries))

    def read(self, line: Charge, history: Floats | None) -> Iterator[str]:
        """Yield the faults of an opening; remember other lines.

        `history`: the result of a feedback stream's sums up to this line (from `Retraced`).
        """
        if isinstance(line.index, int) and isinstance(line.action, str):
            self._names[line.index] = line.action
        key = line.identity.key
        before = self._keys.get(key)
        if line.kind == OPENING:
            yield from self._opened(line, before)
            if before is not None and before.after.epoch == line.epoch:
                self._came_back(line)
            self._keys[key] = self._begun(line, history)
        elif before is not None:
            before.after = before.after._replace(block=line.block + 1)
            before.length = line.stop - line.start
            self._tell(before, line)
            before.history = history

    def _came_back(self, line: Charge) -> None:
        """Note an idle key that came back: `idle` applies from there, or from where it was born."""
        born, known = line.born, self._noted_from
        if isinstance(line.carried, CarriedOver) and line.carried.epoch == line.epoch:
            born = line.carried.born
        self._noted_from = born if known is None else min(known, born)

    def _tell(self, public: PublicRow, line: Charge) -> None:
        """Note the action that a line puts in force."""
        if line.learner is not UNSET:
            public.withheld = public.withheld or line.withheld is True
            return
        public.withheld = line.withheld is True
        index = line.index if line.in_force is UNSET else line.in_force
        public.action = self._names.get(index) if isinstance(index, int) else None

    def _begun(self, line: Charge, history: Floats | None) -> PublicRow:
        """The public part of a learner that opens."""
        first = line.carried.first_block if isinstance(line.carried, CarriedOver) else 0
        public = PublicRow(After(line.epoch, line.born, first))
        if isinstance(line.carried, CarriedOver):
            schedule = schedule_in(line.carried)
            if schedule is not None and first:
                public.length = schedule.length_before(first)
        self._tell(public, line)
        if isinstance(line.learner, str):
            public.learner, public.history = line.learner, history
        return public

    def _opened(self, line: Charge, before: PublicRow | None) -> Iterator[str]:
        carried = line.carried
        if (line.mechanism == CARRIED) != isinstance(carried, CarriedOver):
            yield f"an opening by {line.mechanism!r} that contradicts what it carries"
            return
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
        if before.withheld and line.withheld is not True:
            yield "an opening carried over from what was withheld"
        yield from self._matches(line, carried, before)

    def _matches(self, line: Charge, carried: CarriedOver, before: PublicRow) -> Iterator[str]:
        """Compare what is carried over with the learner before."""
        schedule = schedule_in(carried)
        first = None if schedule is None else schedule.first_as_long(before.length)
        start = None if schedule is None or first is None else schedule.start(first)
        if (first, start) != (carried.first_block, line.start):
            yield (
                f"an opening carried over into block {carried.first_block} from slot {line.start}"
                f" on, after one of {before.length} slots; expected block {first}, slot {start}"
            )
        if line.withheld is True:
            return
        if isinstance(line.action, str) and before.action not in (None, line.action):
            yield f"action {line.action!r} carried over where {before.action!r} was in force"
        if isinstance(line.learner, str):
            yield from self._same_history(line, carried, before)

    def _same_history(self, line: Charge, carried: CarriedOver, before: PublicRow) -> Iterator[str]:
        """Check that a feedback stream's arms keep their numbers, and that new ones have none."""
        now = carried.history if isinstance(carried.history, str) else ""
        actions = len(from_base64(now, "history")) // (8 * CARRIED_PER_ARM)
        expected = np.zeros((CARRIED_PER_ARM, actions))
        if before.history is not None:
            moves = self._moves(carried.epoch, before.history.shape[1])
            if moves is None:
                return
            if actions <= int(moves.max()):
                yield f"a history of {actions} actions carried over; more of them stay"
                return
            expected = moved(before.history, moves, actions=actions)
        if b64encode(expected.astype("<f8").tobytes()).decode() != now:
            yield "another history carried over than the released sums make"

    def _moves(self, since: int, actions: int) -> NDArray[np.int64] | None:
        """The new number of each action of an epoch, by marks; None if they do not suffice.

        Marks do not show an action that was absent for an epoch and is back: only its name does.
        """
        moves, marks = np.arange(actions), [mark for at, mark in self._marks if at > since]
        for mark in marks:
            if len(marks) > 1 and (moves == STAYS_AWAY).any():
                return None
            step = np.full(MOST_ACTIONS, STAYS_AWAY)
            for new, old, count in mark.kept:
                if max(old, new) + count <= MOST_ACTIONS:
                    step[old : old + count] = np.arange(new, new + count)
            moves = np.where(moves == STAYS_AWAY, STAYS_AWAY, step[moves])
        return moves

    def _must_carry(self, line: Charge, before: PublicRow) -> bool:
        """Whether an opening should have carried something over."""
        if before.withheld:
            return False
        if before.after.epoch == line.epoch:  # the key was idle
            known = self._noted_from
            if self.carries is None and (known is None or before.after.born < known):
                return False
            return before.action is not None or bool(before.learner)
        if self.carries is None:
            return False
        since = [mark for at, mark in self._marks if at > before.after.epoch]
        if not isinstance(line.learner, str):
            removed = {name for mark in since for name in mark.removed}
            return before.action is not None and before.action not in removed
        posterior = all(_keeps_a_posterior(name) for name in (before.learner, line.learner))
        return posterior and all(mark.kept for mark in since)


def _named(after: After) -> str:
    return f"block {after.block} of the one born at {after.born} in epoch {after.epoch}"


@lru_cache(maxsize=64)
def _learner(config: str, actions: int) -> PolicyLearner | None:
    """A feedback learner as lines name it; the names of actions make no difference to it."""
    try:
        return feedback_learner_of(json.loads(config), actions=[str(n) for n in range(actions)])
    except (InvalidConfig, ValueError, TypeError):
        return None


def _keeps_a_posterior(config: str) -> bool:
    learner = _learner(config, 2)
    return learner is not None and learner.evidence.carries == "posterior"
