"""Computes again, from a learner's ledger lines alone, what its releases put in force.

A line has what was drawn, and names how it counts: a memory of votes, or a learner with its
options. What is in force is a function of these (`core.evidence`), so anybody who has the ledger
arrives at the same bits. `Retraced` reads the lines of one learner (one key, epoch and birth) in
their order, those of openings and of blocks' ends, and folds them like an engine, whatever the
kind:

1. All lines name the same memory or learner, and one that this version knows.
2. Where a learner is named, ε, the noise's scale and the block's slots are those that it releases
   with. What was drawn is what its evidence can be: a vote for one of the actions, say, or exact
   counts of no more shows than the block has slots.
3. Where a line says what is in force beside what was drawn, the releases put that in force.
4. After a line that is wrong nothing can be computed, because a release is missing.

The names of the actions are not in the ledger. Policies do not depend on them, only on how many
there are; and this follows from how many numbers a line has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from msgspec import UNSET

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import OPENING, SUMS
from streamdp.core.evidence import NEWEST, named
from streamdp.core.evidence.evidence import Known, PublicEvidence, PublicRow
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.votes import Votes
from streamdp.core.kinds.kind import Kind
from streamdp.core.learners import kind_of
from streamdp.core.schedule import Schedule, schedule_of
from streamdp.wire.lines import CarriedOver, Charge

_SHOWN = 80  # characters of a foreign text that are shown
_NOTHING: Ints = np.zeros(0, dtype=np.int64)


class Method(NamedTuple):
    """How releases count, as a line names it."""

    memory: str = ""  # of votes; "" for none
    learner: str | None = None  # with its options; None where votes count

    @classmethod
    def of(cls, line: Charge) -> Method:
        """What a line names."""
        if line.learner is UNSET and line.kind != SUMS:
            return cls("" if line.memory is UNSET else line.memory)
        return cls(learner="" if line.learner is UNSET else line.learner)

    def __str__(self) -> str:
        """For messages: the beginning of a foreign text."""
        return repr((self.memory if self.learner is None else self.learner)[:_SHOWN])

    def kind(self, actions: int) -> Kind | None:
        """The learner that is named, with this many actions."""
        return None if self.learner is None else _learner(self.learner, actions)

    def evidence(self, actions: int) -> PublicEvidence:
        """What its releases are evidence of; of votes, the memory knows how many actions."""
        return _evidence(self, actions)

    def actions_of(self, what: Literal["released", "in_force", "history"], numbers: int) -> int:
        """How many actions there are, if what is released, in force or kept has so many numbers."""
        of_few, few = getattr(_numbers_of_few(self), what), _numbers_of_few(self).actions
        actions, rest = divmod(numbers * few, of_few or numbers * few + 1)
        if rest or actions < 2:
            expected = f"{of_few} for each {few} actions"
            raise StateMismatch(what, "numbers", expected=expected, got=numbers)
        return actions


@lru_cache(maxsize=64)
def _evidence(method: Method, actions: int) -> PublicEvidence:
    kind = method.kind(actions)
    if kind is not None:
        return kind.evidence
    memory = named(method.memory) if method.memory else None
    return Votes(NEWEST) if memory is None else Votes(memory, memory.actions)


@lru_cache(maxsize=64)
def _learner(text: str, actions: int) -> Kind:
    try:
        return kind_of(json.loads(text), actions=[str(action) for action in range(actions)])
    except InvalidConfig:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        got = f"{text[:_SHOWN]!r} ({type(error).__name__})"
        expected = "a recipe with its options"
        raise InvalidConfig("learner", "unreadable", expected=expected, got=got) from None


class _Numbers(NamedTuple):
    actions: int
    released: int
    in_force: int
    history: int


@lru_cache(maxsize=64)
def _numbers_of_few(method: Method) -> _Numbers:
    """How many numbers there are of the fewest actions; of more, as many for each."""
    kind = method.kind(2)
    if kind is None:
        return _Numbers(2, 1, 1, 0)
    row, width = PublicRow.opened(kind.evidence, _NOTHING), kind.releases[0].width
    history = len(row.known().history or b"") // 8
    return _Numbers(len(kind.actions), width, row.in_force(1).size, history)


class Retraced:
    """Follows one learner's lines of openings and ends of blocks, in order."""

    __slots__ = ("_opening", "_row", "_said", "actions", "block", "lost", "method")

    def __init__(self, *, actions: int = 0) -> None:
        self.method: Method | None = None
        self.actions = actions  # 0 until lines say how many there are
        self.block = 0  # the open one
        self.lost = False  # whether nothing can be computed any more
        self._opening: Charge | None = None
        self._row: PublicRow | None = None
        self._said: int | None = None  # the action in force, as the newest line says

    def read(self, line: Charge) -> Iterator[str]:
        """Read the next line; yield what is wrong with it, given those before it."""
        method, opens = Method.of(line), line.kind == OPENING
        self.method = self.method or method
        if method != self.method:
            what = "memory" if method.learner is None else "learner"
            yield f"another {what} than before: {method}, not {self.method}"
            return
        self._said = line.says_in_force()
        self.block = line.block + 1
        if opens:
            self._opening = line
            self.block = line.carried.first_block if isinstance(line.carried, CarriedOver) else 0
        self.lost = self.lost or self._opening is None
        try:
            released = line.released()
            if released is not None and method.learner is not None:
                self._count(method.actions_of("released", len(released)))
            if not opens and (kind := method.kind(self.actions or 2)) is not None:
                yield from _released_with(kind, line)
                if self.actions:  # how long blocks are may depend on it
                    yield from _in_slots_of(kind, line)
            if opens and method.learner is not None and line.carried is not UNSET and not self.lost:
                history = line.carried_over().history or b""
                self._count(method.actions_of("history", len(history) // 8))
            if released is not None:
                yield from self._followed(line, method, released)
            elif not (opens and method.learner is not None):
                self.lost = True
                yield f"block {line.block} does not say what was drawn"
        except (InvalidConfig, StateMismatch) as error:
            self.lost = True
            yield f"block {line.block}: {error}"

    def _followed(self, line: Charge, method: Method, released: Ints) -> Iterator[str]:
        """Fold what was drawn, and compare with what follows."""
        evidence = method.evidence(self.actions)
        if wrong := evidence.wrong(released, line.stop - line.start):
            raise StateMismatch(wrong)
        if self.lost:
            return
        row = self.row()
        if line.kind != OPENING:
            row.fold(released, line.stop - line.start)
        if not method.memory:
            if line.in_force is not UNSET:
                yield "names an action in force beside the vote, but no memory"
        elif line.in_force is UNSET:
            yield f"block {line.block} ({line.kind}) does not name vote and action in force"
        elif (computed := int(row.in_force(0))) != line.in_force:
            yield (
                f"block {line.block}: the votes put action {computed} in force,"
                f" but the line names {line.in_force}"
            )

    def _count(self, actions: int) -> None:
        if self.actions not in (0, actions):
            got, expected = f"{actions} actions", f"{self.actions}, as before"
            raise StateMismatch("sums", "length", expected=expected, got=got)
        self.actions = actions

    def row(self) -> PublicRow:
        """The public columns after the newest line."""
        if self._row is None:
            self._row = self._opened(self.actions)
        return self._row

    def _opened(self, actions: int) -> PublicRow:
        """The public columns of the learner when it opened, with so many actions."""
        line, method = self._opening, self.method
        assert line is not None
        assert method is not None
        if line.carried is UNSET:
            drawn = line.released()
            return PublicRow.opened(method.evidence(actions), _NOTHING if drawn is None else drawn)
        carried, schedule = line.carried_over(), schedule_in(line.carried)
        length = 0  # `successions` reports a schedule that is none
        if schedule is not None:
            length = int(schedule.lengths(np.array([carried.block]))[0])
        return PublicRow.resumed(method.evidence(actions), carried, length)

    def policy(self, parts: int) -> Policy | None:
        """The policy in force after the newest line, of so many parts; None: unknowable."""
        if self.lost or self.method is None or self.method.learner is None:
            return None
        self._count(self.method.actions_of("in_force", parts))
        kind = self.method.kind(self.actions)
        assert kind is not None
        length = int(kind.schedule.lengths(np.array([self.block]))[0])
        policy: Policy = self.row().in_force(length)
        return policy

    def known(self, actions: int) -> Known | None:
        """What the key may carry over, if it can be computed.

        `actions`: how many there are, if no line has said so.
        """
        if self._said is not None:
            return Known(self._said)
        if self.lost or self._opening is None:
            return None
        return (self.row() if self.actions else self._opened(actions)).known()


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


def _released_with(kind: Kind, line: Charge) -> Iterator[str]:
    """Yield why this learner, of whatever number of actions, does not end a block like that."""
    charges = [of.epsilon for of in kind.releases if of.name == line.kind]
    if [line.charge] != charges:
        theirs = charges[0] if charges else "none"
        yield f"block {line.block} is charged ε = {line.epsilon}, its learner's is {theirs}"
    scale = kind.noise_parameters["scale"]
    if line.scale is UNSET or Fraction(line.scale) != scale:
        got = "none" if line.scale is UNSET else line.scale
        yield f"block {line.block} has noise of scale {got}, its learner's is {scale}"


def _in_slots_of(kind: Kind, line: Charge) -> Iterator[str]:
    """Yield why this learner has no such block; how long its blocks are may depend on actions."""
    start, stop = kind.schedule.start(line.block), kind.schedule.stop(line.block)
    if (line.start, line.stop) != (start, stop):
        yield (
            f"block {line.block} has the slots [{line.start}, {line.stop}), its learner's"
            f" [{start}, {stop})"
        )
