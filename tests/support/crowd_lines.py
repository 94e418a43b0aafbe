"""Streams with a crowd whose draws are a script, and the ledger lines that they leave."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.bank import Bank
from streamdp.core.engine.draws import Fresh
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.service.protocol import Pace
from streamdp.wire.lines import Charge, PriorLine
from streamdp.wire.published import Mode, decode_ledger
from tests.support.carrying import (
    leader,
    store_of,
    stream,
)
from tests.support.crowded import crowded
from tests.support.protocol_model import Store, restore, settle


def lines_of(store: Store) -> list[Charge | PriorLine]:
    """Openings, votes or sums, and priors, in the order of the ledger."""
    lines = [decode_ledger(record.value) for record in store.ledger]
    return [line for line in lines if isinstance(line, Charge | PriorLine)]


def scripted(patch: pytest.MonkeyPatch, script: int) -> None:
    """Draws that follow from names alone; estimates there are none."""

    def values(self: Fresh, bank: Bank, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return (bank.block[rows] * (1 + script) + bank.born[rows] + script) % 3

    patch.setattr(Fresh, "actions", values)
    patch.setattr(Fresh, "openings", values)


def seen(
    count: int,
    changed: int | None,
    crash: bool,
    learner: sd.Leader | PolicyLearner | None = None,
) -> tuple[list[object], list[int]]:
    """All that a life lets be seen, and the sizes of all that it saves."""
    learner = crowded(leader()) if learner is None else learner
    store, of = store_of(learner, count), stream(learner)
    if changed is not None:
        store.input[changed] = (store.input[changed][0], b"garbage")
    sizes = []
    work = restore(store, of)
    for start in range(0, count, 9):
        work.absorb([store.records(start, start + 9)], mode=Mode.LIVE)
        commit = work.cut(now=start, pace=Pace()).commit
        sizes += [len(value or b"") for _, value in commit.state]
        store.decide(commit)
        if crash:
            work = restore(store, of)
    settle(store, work)
    return [[record.value for record in topic] for topic in (store.ledger, store.actions)], sizes
