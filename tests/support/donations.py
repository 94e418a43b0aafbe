"""Learners whose keys donate, a log with many keys, and the pool's lines."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import streamdp as sd
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.wire.lines import PoolLine
from streamdp.wire.published import decode_ledger
from tests.support.carrying import (
    leader,
    mapped,
    remembers,
)
from tests.support.crowded import crowded
from tests.support.protocol_model import Store

KEYS = [b"%d" % number for number in range(15)]


HALF = Control(Fraction(1, 2))
"""Of `KEYS` seven are in this control group."""


def donates(
    schedule: str = "capped 8", *, memory: bool = False, control: Control = NO_CONTROL
) -> sd.Leader:
    """A learner whose keys donate blocks of one and two slots."""
    learner = leader(schedule=schedule)
    learner = replace(learner, memory=remembers().memory) if memory else learner
    return crowded(learner, donates=3, control=control)


def pool_lines(store: Store) -> list[PoolLine]:
    """The votes of the pool on the ledger."""
    lines = [decode_ledger(record.value) for record in store.ledger]
    return [line for line in lines if isinstance(line, PoolLine)]


def many(count: int = 240) -> Store:
    """Fifteen keys, so that many slots are donated."""
    return Store(mapped(count, keys=KEYS))
