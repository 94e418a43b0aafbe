"""Computes again, from a learner's ledger lines alone, what its releases put in force.

A line has what was drawn, and names how it counts: a memory of votes, or a learner with its
options. What is in force is a function of these (`core.evidence`), so anybody who has the ledger
arrives at the same bits. `Learners` folds the lines of openings and of blocks' ends like an engine,
whatever the kind, many learners at once:

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
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Columns, Ints
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import SUMS, Carried
from streamdp.core.evidence import NEWEST, named
from streamdp.core.evidence.evidence import Known, PublicEvidence, PublicRow
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.votes import Votes
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.names import MOST_ACTIONS
from streamdp.core.learners.recipes import kind_written
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

    @property
    def few(self) -> int:
        """The fewest columns: of two actions, and the spare ones."""
        return 2 + self.spare

    @property
    def spare(self) -> int:
        """The columns that had no name when the epoch began."""
        return 0 if self.learner is None else _spare(self.learner)

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
        if rest or actions < few:
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
        return kind_written(text, actions=[str(action) for action in range(actions)])
    except InvalidConfig:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        got = f"{text[:_SHOWN]!r} ({type(error).__name__})"
        expected = "a recipe with its options"
        raise InvalidConfig("learner", "unreadable", expected=expected, got=got) from None


@lru_cache(maxsize=64)
def _spare(text: str) -> int:
    """How many columns a learner says are spare; 0 if it is unreadable, which `_learner` says."""
    try:
        spare = int(json.loads(text).get("room", 0))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return 0
    return min(max(spare, 0), MOST_ACTIONS)


class _Numbers(NamedTuple):
    actions: int
    released: int
    in_force: int
    history: int


@lru_cache(maxsize=64)
def _numbers_of_few(method: Method) -> _Numbers:
    """How many numbers there are of the fewest columns; of more, as many for each."""
    kind = method.kind(method.few)
    if kind is None:
        return _Numbers(2, 1, 1, 0)
    row, width = PublicRow.opened(kind.evidence, _NOTHING), kind.releases[0].width
    history = len(row.known().history or b"") // 8
    return _Numbers(len(kind.actions), width, row.in_force(1).size, history)


class Learners:
    """The public columns of learners that count alike, a row for each.

    Rows are the caller's numbers. How many actions there are may be known only when the first of
    them has released something: until then nothing is known of any row, which is zeros.
    """

    __slots__ = ("_columns", "actions", "method")

    def __init__(self, method: Method, *, actions: int = 0) -> None:
        self.method = method
        self.actions = actions  # 0 until something says how many there are
        self._columns: dict[str, NDArray[Any]] = {}

    def count(self, what: Literal["released", "in_force", "history"], numbers: int) -> None:
        """Note how many actions there are, by how many numbers something has."""
        actions = self.method.actions_of(what, numbers)
        if self.actions not in (0, actions):
            got, expected = f"{actions} actions", f"{self.actions}, as before"
            raise StateMismatch("sums", "length", expected=expected, got=got)
        self.actions = actions

    @property
    def evidence(self) -> PublicEvidence:
        """What releases are evidence of."""
        return self.method.evidence(self.actions)

    def opened(self, rows: Ints, released: Ints) -> None:
        """Begin rows with these openings; nothing is drawn where policies are in force."""
        self._clear(rows)
        if self.actions or self.method.learner is None:
            self._put(rows, self.evidence.opened(released))

    def resumed(
        self,
        rows: Ints,
        carried: Sequence[Carried],
        lengths: Ints,
        allowed: Bools | None = None,
    ) -> None:
        """Begin rows, in blocks of these lengths, with what is carried."""
        self._clear(rows)
        self._put(rows, self.evidence.resumed(carried, lengths, allowed))

    def begin(self, row: int, line: Charge, allowed: Bools | None = None) -> int:
        """Begin a row with its opening, under what its list allows; return its first block."""
        rows = np.array([row])
        if line.carried is UNSET:
            drawn = line.released()
            self.opened(rows, np.zeros((1, 0), dtype=np.int64) if drawn is None else drawn[None])
            return 0
        carried, schedule = line.carried_over(), schedule_in(line.carried)
        if self.method.learner is not None:
            self.count("history", len(carried.history or b"") // 8)
        length = 0  # `successions` reports a schedule that is none
        if schedule is not None:
            length = int(schedule.lengths(np.array([carried.block]))[0])
        self.resumed(rows, [carried], np.array([length]), allowed)
        return carried.block

    def folded(
        self, rows: Ints, released: Ints, lengths: Ints, allowed: Bools | None = None
    ) -> None:
        """Add the release of a block of each row; the next ones are of the allowed actions."""
        self._put(rows, self.evidence.fold(self._of(rows), released, lengths, allowed))

    def wrong(self, row: int, released: Ints, length: int) -> str:
        """Why no block of a row, of this length, ends with this release; "" if one may."""
        return self.evidence.wrong(self._of(np.array([row])), released, length)

    def in_force(self, rows: Ints, lengths: Ints, allowed: Bools | None = None) -> NDArray[Any]:
        """What is in force during the next blocks of rows, which have these lengths."""
        return self.evidence.in_force(self._of(rows), lengths, allowed)

    def policies(self, rows: Ints, blocks: Ints, allowed: Bools | None = None) -> Policy:
        """The policies in force during these blocks of rows, over the allowed actions."""
        kind = self.method.kind(self.actions)
        if kind is None:
            raise StateMismatch("votes put no policy in force")
        policies: Policy = self.in_force(rows, kind.schedule.lengths(blocks), allowed)
        return policies

    def known(self, row: int, actions: int) -> Known:
        """What the key of a row may carry over; of `actions`, if nothing has said how many."""
        of = self if self.actions else Learners(self.method, actions=actions)  # all rows are zeros
        return next(of.evidence.known(of._of(np.array([row if self.actions else 0]))))

    def row(self, row: int) -> PublicRow:
        """The public columns of one learner."""
        return PublicRow(self.evidence, self._of(np.array([row])))

    def _clear(self, rows: Ints) -> None:
        if self._columns:
            self._reach(int(rows.max(initial=0)))
        for column in self._columns.values():
            if column[rows].any():  # memory that nothing was written to takes no room
                column[rows] = 0

    def _of(self, rows: Ints) -> Columns:
        self._reach(int(rows.max(initial=0)))
        return {name: column[rows] for name, column in self._columns.items()}

    def _put(self, rows: Ints, columns: Columns) -> None:
        self._reach(int(rows.max(initial=0)))
        for name, column in columns.items():
            self._columns[name][rows] = column

    def _reach(self, row: int) -> None:
        """Make room, once there is anything to keep."""
        for of in self.evidence.fields:
            self._columns[of.name] = grown(
                self._columns.get(of.name), row + 1, dtype=of.dtype, shape=of.shape
            )


def grown(
    column: NDArray[Any] | None, rows: int, *, dtype: Any, shape: tuple[int, ...] = ()
) -> NDArray[Any]:
    """The column with room for so many rows; twice as many as before, if it was too short."""
    if column is None:
        return np.zeros((rows, *shape), dtype=dtype)
    if rows <= len(column):
        return column
    longer = np.zeros((max(rows, 2 * len(column)), *shape), dtype=dtype)
    if column.dtype.names or column.any():
        longer[: len(column)] = column
    return longer


def released_by(line: Charge, learners: Learners, row: int) -> Ints:
    """What a block of a row released; `StateMismatch` if its learner cannot release it."""
    released = line.released()
    if released is None:
        raise StateMismatch("does not say what was drawn")
    if learners.method.learner is not None:
        learners.count("released", len(released))
    if wrong := learners.wrong(row, released, line.stop - line.start):
        raise StateMismatch(wrong)
    return released


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


def released_with(kind: Kind, line: Charge) -> Iterator[str]:
    """Yield why this learner, of whatever number of actions, does not end a block like that."""
    charges = [of.epsilon for of in kind.releases if of.name == line.kind]
    if [line.charge] != charges:
        theirs = charges[0] if charges else "none"
        yield f"block {line.block} is charged ε = {line.epsilon}, its learner's is {theirs}"
    scale = kind.recipe.scale
    if line.scale is UNSET or Fraction(line.scale) != scale:
        got = "none" if line.scale is UNSET else line.scale
        yield f"block {line.block} has noise of scale {got}, its learner's is {scale}"
