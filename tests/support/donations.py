"""Learners whose keys donate, a log with many keys, the pool's lines, and what is wrong there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import msgspec

import streamdp as sd
from streamdp.core.events import Key
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.ports import Value
from streamdp.service.spec import StreamSpec
from streamdp.service.verification import Verification
from streamdp.testing.judge import judge
from streamdp.wire.lines import LedgerLine, PoolLine
from streamdp.wire.published import decode_ledger
from tests.support.carrying import (
    leader,
    live,
    mapped,
    remembers,
    stream,
    verified,
)
from tests.support.crowded import crowded
from tests.support.protocol_model import Store, evidence

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


def come_and_go(count: int) -> Store:
    """Nine keys, three at a time: each is there for thirty records and away for sixty."""
    values = [value for _, value in mapped(count, keys=KEYS)]
    keyed: list[tuple[Key, Value]]
    keyed = [(KEYS[(at // 30 * 3 + at % 3) % 9], value) for at, value in enumerate(values)]
    return Store(keyed, headers=[[] for _ in values])


def forgetting(learner: sd.Leader) -> StreamSpec:
    """A stream that forgets keys which were idle for 20 ms."""
    of = stream(learner)
    return replace(of, topics=replace(of.topics, headers=True), idle=20)


def in_pieces(store: Store, learner: sd.Leader, *, step: int = 6) -> list[str]:
    """All that anybody has against a life that is taken anew again and again."""
    of = stream(learner)
    for stop in range(step, store.end + 1, step):
        live(store, of, stop)
    return judge(evidence(store)) + verified(store, of)


def highest_charge(store: Store, of: StreamSpec) -> Fraction:
    """The most that one record was charged, as `ledger verify` adds it up."""
    verification = Verification()
    verification.read(of.topics, store.ledger)
    (verdict,) = verification.verdicts({of.topics.input: of.charge}, {})
    return verdict.highest


DROPPED: dict[str, object] = {"drop": True}


def broken(store: Store, of: StreamSpec, wrong: Callable[[LedgerLine], dict[str, object]]) -> str:
    """What is wrong with the ledger once fields of some lines are others."""
    verification = Verification()
    for record in store.ledger:
        change = wrong(decode_ledger(record.value))
        if change == DROPPED:
            continue
        line = msgspec.json.decode(record.value) | change
        verification.read(of.topics, [replace(record, value=msgspec.json.encode(line))])
    return "\n".join(verification.violations)
