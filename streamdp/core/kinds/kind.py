"""The interface of a kind: what a stream keeps of its events, draws from it, and puts in force.

A kind is a frozen value. It says

1. which *private* columns a key's row has, and what a batch's slots add to them (`adder`);
2. which releases a block ends with, what each costs, and how it is drawn (`draw`): the only
   function that sees private columns and random bits together;
3. which *evidence* its releases are: a value of `core.evidence`, which holds the public columns and
   computes what is in force. It cannot import what a private sum or noise is made of, and gets
   released numbers only. That is why publishing what is in force costs nothing.

Everything else (slots, blocks, charges, frames, limits, saving, rebuilding, idle keys) is the
engine's, written once for all kinds.

Privacy: a kind states its own argument: the relation, its ε and the sensitivity behind it. The
engine adds that every slot lies in one block, that the block is charged before anything is drawn
from it, and that `draw` is called once for each release (P4, P5, P6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from streamdp.core.arrays import Bools, Columns, Field, Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Batch
from streamdp.core.evidence.evidence import PublicEvidence
from streamdp.core.kinds.estimates import Estimate
from streamdp.core.kinds.recipe import Recipe
from streamdp.core.randomness import Bits
from streamdp.core.schedule import Schedule
from streamdp.core.segments import BatchSlots

BitsOf = Callable[[int, Ints, Ints], Bits]
"""The bits of a purpose for some rows, one draw each, at these indices (blocks or slots)."""


@dataclass(frozen=True, slots=True)
class BlockRelease:
    """One release at the end of a block, of `width` integers."""

    name: str  # `action`, `sums`, or an estimate's
    epsilon: Fraction  # charged to each slot of the block; 0 where nothing is private
    width: int
    shortest: int = 1  # blocks of fewer slots do not have it

    def due(self, lengths: Ints) -> Bools:
        """Which blocks have it: a function of public lengths."""
        return lengths >= self.shortest


class SlotContents(Protocol):
    """What the slots of a batch add to private columns."""

    def add(self, which: Any, rows: Ints) -> None:
        """Add these segments, which are of different rows, to their rows."""
        ...


class SlotAdder(Protocol):
    """Reads batches for one engine; keeps its working memory between them."""

    def contents(self, slots: BatchSlots, bits: BitsOf) -> SlotContents:
        """What these slots add; nothing changes yet."""
        ...


class Kind(Protocol):
    """What a stream learns, as a frozen value."""

    def __hash__(self) -> int:
        """A value."""

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of the actions; with contexts, of the arms: the actions in each cell."""

    @property
    def schedule(self) -> Schedule:
        """Where blocks end."""

    @property
    def recipe(self) -> Recipe:
        """How it was made: what a ledger, a page and a configuration say of it."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The private columns of a row."""

    @property
    def releases(self) -> tuple[BlockRelease, ...]:
        """What a block ends with. The first one is evidence; the others are only published."""

    @property
    def evidence(self) -> PublicEvidence:
        """What the first release is evidence of: the public columns, and what is in force."""

    def with_estimates(self, estimates: Sequence[Estimate]) -> Kind:
        """The same kind, releasing these estimates too; refuse what it cannot release."""

    def checked(self, batch: Batch) -> Batch:
        """The batch as this kind reads it; refuse other columns and shapes, never content."""

    def adder(self, private: Columns) -> SlotAdder:
        """What adds batches to these columns."""

    def opening(self, rows: int, bits: Callable[[int], Bits]) -> Ints:
        """The openings of new rows, R × the first release's width: no data, no charge."""

    def draw(
        self, name: str, private: Columns, public: Columns, bits: Callable[[int], Bits]
    ) -> Ints:
        """Draw the release of this name for R rows whose block has ended: R × its width."""

    def law(self, name: str, private: Columns, public: Columns, released: Ints) -> Floats:
        """ln of the probability that `draw` releases these numbers for R rows; for the audit."""


def check_columns(batch: Batch, names: frozenset[str]) -> None:
    """Refuse a batch with other columns than these."""
    if batch.content.keys() != names:
        expected, got = " and ".join(sorted(names)), " and ".join(batch.content) or "nothing"
        raise InvalidConfig("batch", "of another kind", expected=expected, got=got)


def check_even(batch: Batch) -> None:
    """Refuse a batch whose columns are of different lengths."""
    slots = len(batch.offsets)
    for column in (batch.index, *batch.content.values()):
        if len(column) != slots:
            raise InvalidConfig("batch", "uneven columns", expected=slots, got=len(column))
