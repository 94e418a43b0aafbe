"""A crowd's entries of the state: priors, and votes of the pool, each as its ledger line.

A prior's entry stays as long as its epoch, because later priors need it. A vote's entry stays until
the vote is published: the pool itself is saved with every checkpoint, as of its position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from streamdp.core.errors import StateMismatch, complaint
from streamdp.core.events import CrowdPrior
from streamdp.wire.lines import PoolLine, PriorLine
from streamdp.wire.published import decode_ledger


@dataclass(frozen=True, slots=True)
class SavedPrior:
    """A durable prior, and its ledger line."""

    epoch: int
    prior: CrowdPrior
    ordinal: int
    ledger: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SavedVote:
    """A durable vote of the pool that may wait to be published, and its ledger line."""

    epoch: int
    block: int
    first_offset: int
    last_offset: int
    epsilon: Fraction
    ordinal: int
    ledger: bytes = field(repr=False)


def decode_prior(value: bytes, *, epoch: int, number: int, where: str) -> SavedPrior:
    """Read a prior's entry, which is its ledger line."""
    line = decode_ledger(value)
    if not isinstance(line, PriorLine) or (line.epoch, line.number) != (epoch, number):
        raise StateMismatch(
            complaint(where, "damaged", expected=f"prior {number} of epoch {epoch}", got="another")
        )
    return SavedPrior(epoch, line.prior(), line.ordinal, value)


def decode_pooled(value: bytes, *, epoch: int, block: int, where: str) -> SavedVote:
    """Read the entry of a vote of the pool, which is its ledger line."""
    line = decode_ledger(value)
    if not isinstance(line, PoolLine) or (line.epoch, line.block) != (epoch, block):
        expected = f"vote {block} of the pool of epoch {epoch}"
        raise StateMismatch(complaint(where, "damaged", expected=expected, got="another"))
    first, last = line.first_offset, line.last_offset
    return SavedVote(epoch, block, first, last, line.charge, line.ordinal, value)
