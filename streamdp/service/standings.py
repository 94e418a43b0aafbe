"""The action in force, recomputed from a ledger's votes, for `verification`.

A line of a learner with a memory carries the vote that was drawn, the memory's name, and the action
in force after it. Name and votes suffice to compute the action again; each line is compared with
that. After a withheld vote (shadow mode) nobody can compute what is remembered, so later lines of
that learner are counted, not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from msgspec import UNSET

from streamdp.core.errors import InvalidConfig
from streamdp.core.events import OPENING
from streamdp.core.evidence import Ints, Standing, VoteFilter, named
from streamdp.core.schedule import Schedule, schedule_of
from streamdp.wire.lines import CarriedOver, Charge


class Follower:
    """Follows one learner's lines of openings and actions, in order."""

    __slots__ = ("_known", "_memory", "_name", "unjudged")

    def __init__(self) -> None:
        self._name: str | None = None
        self._memory: VoteFilter | None = None
        self._known: Standing | None = None
        self.unjudged = False  # whether the newest line comes after a withheld vote

    def read(self, line: Charge) -> Iterator[str]:
        """Yield the faults of a line, given the lines before it."""
        name = "" if line.memory is UNSET else line.memory
        if self._name is None:
            self._name = name
            try:
                self._memory = _named(name) if name else None
            except InvalidConfig as error:
                yield str(error)
        if name != self._name:
            yield f"another memory than before: {name[:80]!r}, not {self._name[:80]!r}"
        if self._memory is None:
            if line.in_force is not UNSET:
                yield "names an action in force beside the vote, but no memory"
            return
        yield from self._judged(self._memory, line)

    def _judged(self, memory: VoteFilter, line: Charge) -> Iterator[str]:
        self.unjudged = False
        if line.withheld is True:
            self._known = None
            return
        if not isinstance(line.index, int) or not isinstance(line.in_force, int):
            yield f"block {line.block} ({line.kind}) does not name vote and action in force"
            return
        if line.index >= memory.actions:
            yield f"block {line.block}: a vote for action {line.index} of {memory.actions}"
            return
        vote = np.array([line.index], dtype=np.int64)
        if line.kind == OPENING:
            self._known = Standing(vote, _begun(memory, vote, line))
        elif self._known is None:
            self.unjudged = True
            return
        else:
            length = np.array([line.stop - line.start], dtype=np.int64)
            self._known = memory.after(self._known, vote, length)
        computed = int(self._known.in_force[0])
        if computed != line.in_force:
            yield (
                f"block {line.block}: the votes put action {computed} in force,"
                f" but the line names {line.in_force}"
            )


def _begun(memory: VoteFilter, vote: Ints, line: Charge) -> Ints:
    """The memory with which a learner opens: certain of the action that was carried over."""
    if not isinstance(line.carried, CarriedOver):
        return np.zeros((1, memory.width), dtype=np.int64)
    schedule = schedule_in(line.carried)
    if schedule is None:  # `successions` reports it
        return np.zeros((1, memory.width), dtype=np.int64)
    return memory.sure_of(vote, schedule.lengths(np.array([line.carried.first_block])))


def schedule_in(carried: CarriedOver) -> Schedule | None:
    """The schedule that a carried opening names; None if it names none."""
    return _schedule(carried.schedule)


@lru_cache(maxsize=64)
def _schedule(written: str) -> Schedule | None:
    name, _, parameter = written.partition(" ")
    try:
        return schedule_of(name, parameter or None)
    except InvalidConfig:
        return None


@lru_cache(maxsize=64)
def _named(name: str) -> VoteFilter:
    return named(name)
