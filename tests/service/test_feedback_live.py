"""Is what a seeded feedback service publishes the offline fold of its input, bit for bit?

Sums, counts, policies, and every other byte of ledger and actions topic, on memory and SQLite
(`tests/kafka/test_same_on_kafka.py`: on a broker).
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from streamdp.core.events import Batch
from streamdp.core.kinds.feedback import PLAYED
from streamdp.core.kinds.recipe import Played
from streamdp.ports import Partition, Published, Technology
from streamdp.testing.judge import Evidence, judge, judge_counts
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp_adapters.sqlite import Sqlite
from tests.support.decoding import decode
from tests.support.feedback_served import differences, stream
from tests.support.services import Room
from tests.support.streams import feedback_spec, shown

pytestmark = pytest.mark.slow

CLICKS = Partition("clicks", 0)


def _memory(folder: Path) -> Technology:
    return MemoryTechnology(MemoryLog(gap=1))


def _sqlite(folder: Path) -> Technology:
    return Sqlite.from_settings({"path": folder / "home.db", "actions": "all"}, app="shop")


@pytest.mark.parametrize("played", PLAYED)
@pytest.mark.parametrize("open_", [_memory, _sqlite], ids=["memory", "sqlite"])
def test_is_what_is_published_the_offline_fold(
    open_: Callable[[Path], Technology], played: Played, tmp_path: Path
) -> None:
    made = stream("shop", played=played)
    assert asyncio.run(differences(open_(tmp_path), made, records=400)) == []


# Would the judge see it?


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
