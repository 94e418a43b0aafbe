"""Streams whose keys go idle, and stores with the timestamps that say so."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamdp.core.events import Key
from streamdp.ports import Records
from streamdp.service.spec import StreamSpec
from streamdp.testing.judge import judge_fold
from streamdp.wire.lines import Charge
from tests.support.carrying import (
    charges,
    store_of,
    stream,
)  # fmt: skip
from tests.support.decoding import decode
from tests.support.protocol_model import Store, evidence

HOUR = 3_600_000


@dataclass
class Dated(Store):
    """A store whose records have timestamps."""

    stamps: list[int] = field(default_factory=list)

    def records(self, start: int, stop: int) -> Records:
        """Input by offsets."""
        records = super().records(start, stop)
        return replace(records, timestamps=[self.stamps[at] for at in records.offsets])


def dated(learner: Any, hours: Sequence[float], keys: Sequence[Key]) -> Dated:
    """Records of these keys at these hours."""
    plain = store_of(learner, len(keys))
    store = Dated([(key, value) for key, (_, value) in zip(keys, plain.input, strict=True)])
    store.headers = plain.headers
    store.stamps = [int(hour * HOUR) for hour in hours]
    return store


def of_two(learner: Any, *, rounds: int = 4, seed: int = 3) -> Dated:
    """One key always, another in every second period of a few hours, with gaps between."""
    chance, hours, keys = random.Random(seed), [], []
    for at in range(rounds * 60):
        period = at // 20 % 3
        hours.append(10 + at * 0.1 - chance.random() * 0.05)
        keys.append(b"fr" if period == 0 and chance.random() < 0.5 else b"de")
    return dated(learner, hours, keys)


def idles(learner: Any, *, idle: int | None = HOUR, **more: Any) -> StreamSpec:
    """Keys that leave after an hour or two."""
    plain = stream(learner, **more)
    return replace(plain, topics=replace(plain.topics, headers=True), idle=idle)


def openings_of(store: Dated, key: Key) -> list[Charge]:
    """Every opening of a key, in order."""
    return [line for line in charges(store) if line.kind == "opening" and line.identity.key == key]


def folded(store: Dated, of: StreamSpec) -> list[str]:
    """The judge's own fold of the input in one batch."""
    records = [store.records(0, store.end)]
    batch, _ = decode(of.format, records, most_key_bytes=64, idle=of.idle)
    return judge_fold(
        evidence(store),
        engine=of.engine(0, heritage={}),
        lines=of.lines,
        log=[batch],
        whole="whole",
    )
