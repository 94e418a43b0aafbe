"""Learners whose keys donate, a log with many keys, and the pool's lines."""

from __future__ import annotations

from dataclasses import replace

import streamdp as sd
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


def donates(schedule: str = "capped 8", *, memory: bool = False) -> sd.Leader:
    """A learner whose keys donate blocks of one and two slots."""
    learner = leader(schedule=schedule)
    return crowded(replace(learner, memory=remembers().memory) if memory else learner, donates=3)


def pool_lines(store: Store) -> list[PoolLine]:
    """The votes of the pool on the ledger."""
    lines = [decode_ledger(record.value) for record in store.ledger]
    return [line for line in lines if isinstance(line, PoolLine)]


def many(count: int = 240) -> Store:
    """Fifteen keys, so that many slots are donated."""
    return Store(mapped(count, keys=KEYS))
