"""Would the judge see what a feedback service published wrongly?"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from streamdp.core.events import Batch
from streamdp.ports import Partition, Published
from streamdp.testing.judge import Evidence, judge, judge_counts
from tests.support.decoding import decode
from tests.support.services import Room
from tests.support.streams import feedback_spec, shown

pytestmark = pytest.mark.slow

CLICKS = Partition("clicks", 0)


@lru_cache
def judged() -> tuple[Evidence, Batch]:
    """What a service published, and its input."""

    async def run() -> Room:
        room = Room([feedback_spec()], partitions=1)
        async with room.worker():
            room.send("clicks", *shown(100))
            await room.until(room.is_read)
        return room

    room = asyncio.run(run())
    made = room.specs["clicks"]
    records = room.log.batch(made.topics, 0, 0, 10**9, 10**9)
    return room.evidence(CLICKS), decode(made.format, [records], most_key_bytes=64)[0]


def changed(records: list[Published], field: str, dtype: str) -> list[Published]:
    """One number more, in the middle."""
    at = next(n for n, record in enumerate(records) if n > 30 and b'"kind":"sums"' in record.value)
    line = json.loads(records[at].value)
    numbers = np.frombuffer(b64decode(line[field]), dtype).copy()
    numbers[0] += 1
    line[field] = b64encode(numbers.tobytes()).decode()
    value = json.dumps(line, separators=(",", ":")).encode()
    return [*records[:at], replace(records[at], value=value), *records[at + 1 :]]


def counts(evidence: Evidence) -> list[str]:
    return judge_counts(evidence, engine=feedback_spec().engine(0), log=[judged()[1]])


def test_does_the_judge_hold_policies_and_counts_against_what_they_follow_from() -> None:
    evidence, _ = judged()
    assert (judge(evidence), counts(evidence)) == ([], [])
    other = replace(evidence, actions=changed(list(evidence.actions), "policy", "<u4"))
    assert ["does not follow from the sums" in fault for fault in judge(other)] == [True]
    other = replace(evidence, ledger=changed(list(evidence.ledger), "shown", "<i8"))
    assert ["counts that are not the input's" in fault for fault in counts(other)] == [True]


def test_does_the_judge_see_sums_that_were_drawn_twice() -> None:
    """As a reader of aborted data would."""
    evidence, _ = judged()
    twice = changed(list(evidence.ledger), "sums", "<i8")
    (fault,) = judge(replace(evidence, seen=[record.value for record in twice]))
    assert "seen with two different releases" in fault
