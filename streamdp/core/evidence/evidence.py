"""The interface of evidence: releases in, what is in force out. Plain arrays, no bank.

The engine, a rebuild, `ledger verify`, the status page and what an epoch carries over all go
through these functions, so that they cannot disagree:

    opened / resumed    the public columns of a learner that begins, new or carried over
    fold                the public columns after one more release
    in_force            the action or policy that follows from them

`fold` is cheap and is asked for every release; `in_force` may be costly and is asked when needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from streamdp.core.arrays import Columns, Field, Floats, Ints
from streamdp.core.events import Carried

InForce = NDArray[Any]
"""What is in force for R rows: the number of an action (R), or a policy's parts (R × K)."""


class PublicEvidence(Protocol):
    """What follows from the releases of a key, as a frozen value."""

    @property
    def answers(self) -> Literal["action", "policy"]:
        """What is in force: one action, or a policy."""

    @property
    def carries(self) -> str:
        """What a key may carry over: what this means is the same wherever it is called the same."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The public columns: all that is kept of a key's releases."""

    def opened(self, released: Ints) -> Columns:
        """The public columns of new rows after these openings; columns left out are 0."""

    def resumed(self, carried: Sequence[Carried], lengths: Ints) -> Columns:
        """The public columns of rows that begin, in blocks of these lengths, with what is carried.

        Columns left out are 0.
        """

    def fold(self, public: Columns, released: Ints, lengths: Ints) -> Columns:
        """The public columns after a release of each row, from a block of this length.

        Columns left out stay as they are.
        """

    def in_force(self, public: Columns, lengths: Ints) -> InForce:
        """What is in force during the next blocks of rows, which have these lengths."""

    def known(self, public: Columns) -> Iterator[tuple[int, Floats | None]]:
        """What each row's key may carry over: its action in force, or its history."""
