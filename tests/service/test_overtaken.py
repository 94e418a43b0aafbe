"""Is a contradiction believed only by whoever still owns the partition?

Everything that halts a partition was read at two moments at least. If another process took it in
between, the two may differ though nothing is wrong: so ownership is asked for before any halt.
`tests/kafka/test_takeover.py` freezes real takers between their reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp.ports import Partition, Records, StreamTopics, Transport
from streamdp.service.settings import Pace
from streamdp.service.view import Status
from streamdp.testing.memory_log import MemoryLog
from tests.support.services import QUICK, Between, Room
from tests.support.streams import events, spec

KEYS = tuple(b"key %d" % number for number in range(12))
HOME0 = Partition("home", 0)


class Overtaken(Between):
    """Another process takes the partition where this one has just been given its input."""

    def __init__(self, inner: Transport, log: MemoryLog, topics: StreamTopics) -> None:
        super().__init__(inner)
        self.log, self.topics = log, topics

    def read(self, partition: Partition, start: int, stop: int) -> AsyncIterator[Records]:
        """The heir gets on, and retention eats what it does not need any more."""
        self.log.fence(self.topics, partition.number)
        self.log.trim(self.topics.input, partition.number, before=stop)
        return super().read(partition, start, stop)


async def test_is_a_mismatch_of_who_was_overtaken_no_halt() -> None:
    """A rebuild that meets expired input is only told so while the partition is its own."""
    slowly = replace(QUICK, pace=Pace(records=10_000, seconds=10_000.0))
    room = Room([spec()], partitions=1)
    room.send("home", events(100, keys=KEYS))
    async with room.worker(settings=slowly):
        await room.until(room.is_read)
    topics = room.specs["home"].topics
    async with room.worker(around=lambda inner: Overtaken(inner, room.log, topics)) as worker:
        await room.until(lambda: bool(worker.log.of("partition_fenced")))
        assert worker.log.of("partition_halted") == []
    async with room.worker() as owner:  # whose reads contradict each other for good
        await room.until(lambda: owner.view.part(HOME0).status is Status.HALTED)
        assert "no longer retained" in owner.view.part(HOME0).message


class Unsure(Between):
    """Cannot say whether a partition is still its own, at first."""

    def __init__(self, inner: Transport, answers: Sequence[Exception]) -> None:
        super().__init__(inner)
        self.answers = list(answers)

    async def confirm(self, partition: Partition) -> None:
        """Fail as long as there is an answer to fail with."""
        if self.answers:
            raise self.answers.pop(0)
        await super().confirm(partition)


@pytest.mark.parametrize(
    ("answers", "takes"),
    [
        ([TransportLost("no broker"), TransportLost("no broker")], 3),
        ([InvalidConfig("no right")], 1),
        ([ValueError("a defect of a transport")], 1),
    ],
)
async def test_is_a_halt_put_off_until_somebody_answers(
    answers: list[Exception], takes: int
) -> None:
    """While nobody says who owns it, it is taken again; a question that fails hides no halt."""
    room = Room([spec()], partitions=1)
    room.send("home", events(100, keys=KEYS))
    async with room.worker():
        await room.until(room.is_read)
    room.log.replace_state(room.specs["home"].topics, 0, {})
    async with room.worker(around=lambda inner: Unsure(inner, answers)) as worker:
        await room.until(lambda: worker.view.part(HOME0).status is Status.HALTED)
        assert "the state is gone" in worker.view.part(HOME0).message
    assert len(worker.log.of("partition_taking")) == takes
