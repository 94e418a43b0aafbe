"""The interface of evidence: releases in, what is in force out. Plain arrays, no bank.

The engine, a rebuild, `ledger verify`, the status page and what an epoch carries over all go
through these functions, so that they cannot disagree:

    opened / resumed    the public columns of a learner that begins, new or carried over
    fold                the public columns after one more release
    in_force            the action or policy that follows from them

`fold` is cheap and is asked for every release; `in_force` may be costly and is asked when needed.
`PublicRow` is the columns of one learner, for those who follow a ledger or a state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Columns, Field, Floats, Ints
from streamdp.core.events import Carried

InForce = NDArray[Any]
"""What is in force for R rows: the number of an action (R), or a policy's parts (R × K)."""


STAYS_AWAY = -1
"""In place of an action's new number: no new action has its name."""


class Known(NamedTuple):
    """What a key may carry over of its releases."""

    action: int  # the action in force; 0 where a policy is
    history: bytes | None = None  # what the evidence says beside an action, with a fixed length


class PublicEvidence(Protocol):
    """What follows from the releases of a key, as a frozen value."""

    @property
    def answers(self) -> Literal["action", "policy"]:
        """What is in force: one action, or a policy."""

    @property
    def listed(self) -> int:
        """How many actions a list names, for all cells alike; 0 where what follows heeds none."""

    @property
    def carries(self) -> str:
        """What a key may carry over: it means the same wherever it is called the same.

        "nothing" if it means nothing to another learner.
        """

    @property
    def adds_up(self) -> bool:
        """Whether what a key carries over depends on releases before the newest one too."""

    @property
    def says_more(self) -> bool:
        """Whether something else than the number of the newest release may be in force."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The public columns: all that is kept of a key's releases."""

    def of_named(self, released: Ints, named: int | None = None) -> Ints:
        """What is published of drawn releases: no noise of columns that have no name.

        `named`: how many columns (of a cell) have a name; None: those that began with one.
        """

    def opened(self, released: Ints) -> Columns:
        """The public columns of new rows after these openings; columns left out are 0."""

    def resumed(
        self, carried: Sequence[Carried], lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        """The public columns of rows that begin, in blocks of these lengths, with what is carried.

        Columns left out are 0. `allowed`: as in `in_force`, of these blocks.
        """

    def fold(
        self, public: Columns, released: Ints, lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        """The public columns after a release of each row, from a block of this length.

        Columns left out stay as they are. `allowed`: as in `in_force`, of the next blocks.
        """

    def in_force(self, public: Columns, lengths: Ints, allowed: Bools | None = None) -> InForce:
        """What is in force during the next blocks of rows, which have these lengths.

        `allowed` says which actions may have a chance in a policy (K, at least one); None: all.
        With contexts it is the same for all cells.
        """

    def likely_best(self, public: Columns) -> Floats | None:
        """How likely each arm is the best, R × K, by what policies follow from; None: not said."""

    def wrong(self, public: Columns, released: Ints, length: int) -> str:
        """Why no block of this length, of this one row, ends with this release; "" if one may."""

    def known(self, public: Columns) -> Iterator[Known]:
        """What each row's key may carry over."""

    def moved(self, known: Known, moves: Ints, before: PublicEvidence) -> Known | None:
        """The same under the new number of each action; None if nothing of it stays.

        It was kept by the evidence `before`, which `carries` the same.
        """


@dataclass(slots=True)
class PublicRow:
    """The public columns of one learner, folded release by release."""

    evidence: PublicEvidence
    columns: Columns

    @classmethod
    def opened(cls, evidence: PublicEvidence, released: Ints) -> Self:
        """The row of a new learner after this opening."""
        return cls(evidence, {**_zeros(evidence), **evidence.opened(released[None])})

    @classmethod
    def resumed(
        cls, evidence: PublicEvidence, carried: Carried, length: int, allowed: Bools | None = None
    ) -> Self:
        """The row of a learner that begins with what is carried, in a block of this length."""
        begun = evidence.resumed([carried], np.array([length]), allowed)
        return cls(evidence, {**_zeros(evidence), **begun})

    def fold(self, released: Ints, length: int, allowed: Bools | None = None) -> None:
        """Add the release of a block of this length."""
        now = self.evidence.fold(self.columns, released[None], np.array([length]), allowed)
        self.columns = {**self.columns, **now}

    def in_force(self, length: int, allowed: Bools | None = None) -> NDArray[Any]:
        """What is in force during the next block, which has this length."""
        lengths = np.array([length])
        of_row: NDArray[Any] = self.evidence.in_force(self.columns, lengths, allowed)[0]
        return of_row

    def likely_best(self) -> Floats | None:
        """How likely each arm is the best, by what the policy follows from; None: not said."""
        chances = self.evidence.likely_best(self.columns)
        return None if chances is None else chances[0]

    def known(self) -> Known:
        """What its key may carry over."""
        return next(self.evidence.known(self.columns))


def _zeros(evidence: PublicEvidence) -> Columns:
    return {of.name: np.zeros((1, *of.shape), dtype=of.dtype) for of in evidence.fields}
