"""The real service with a seeded feedback stream on a technology, held against the offline fold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.ports import Headers, Key, Partition, Records, StreamTopics, Technology, Value
from streamdp.service.spec import StreamSpec
from streamdp.service.view import PartitionStatus, Status
from streamdp.testing.judge import Evidence, judge, judge_fold
from streamdp.wire.feedback import Played
from tests.support.decoding import decode
from tests.support.lasting import lasting
from tests.support.services import Worker, serving
from tests.support.streams import ACTIONS, feedback_spec, shown

PARTITIONS = 2
_Sent = tuple[Sequence[tuple[Key, Value]], Sequence[Headers]]


def stream(app: str, *, played: Played = "header", name: str = "clicks") -> StreamSpec:
    """Growing blocks, seeded bits."""
    learner = policy_blocks(actions=ACTIONS, epsilon="1/2", schedule="geometric 2", played=played)
    topics = StreamTopics(app, name, f"{app}-{name}", headers=True)
    return replace(feedback_spec(learner=learner), topics=topics)


async def differences(technology: Technology, made: StreamSpec, *, records: int) -> list[str]:
    """What the judge finds in ledger and policies of a service that read so many records."""
    sent = _made_up(records)
    await technology.administrator().create([made.topics], partitions=PARTITIONS)
    await _send(technology, made, sent, slice(None))
    await _served(technology, made, until=records // PARTITIONS)
    return await lasting(lambda: _seen(technology, made, sent))


async def differences_of_two(
    technology: Technology, made: StreamSpec, *, records: int
) -> list[str]:
    """The same of two services, of which one joins the other, and then goes on alone.

    Each partition has two owners at least: the first service has all, the second takes some while
    records come, and the rest when the first ends at once, with records that it was just sent.
    """
    sent, part = _made_up(records), records // PARTITIONS // 3
    await technology.administrator().create([made.topics], partitions=PARTITIONS)
    async with _serving(technology, made, "one") as first:
        await _send(technology, made, sent, slice(part))
        await _until(lambda: _reached([first], part))
        async with _serving(technology, made, "two") as second:
            await _until(lambda: _owned(first) == _owned(second) == 1)
            await _send(technology, made, sent, slice(part, 2 * part))
            await _until(lambda: _reached([first, second], 2 * part))
            await _send(technology, made, sent, slice(2 * part, None))
            first.task.cancel()
            await asyncio.wait([first.task])
            await _until(lambda: _reached([second], records // PARTITIONS))
            await second.drained()
            assert second.service.halted == []
    return await lasting(lambda: _seen(technology, made, sent))


def _serving(
    technology: Technology, made: StreamSpec, worker: str
) -> AbstractAsyncContextManager[Worker]:
    return serving([made], technology.transport(worker=worker))


def _parts(of: Worker) -> dict[int, PartitionStatus]:
    """What a service knows of the partitions that it was given."""
    (stream,) = of.view.streams.values()
    return stream.partitions


def _owned(of: Worker) -> int:
    """How many partitions a service works on."""
    return sum(part.status is Status.RUNNING for part in _parts(of).values())


def _reached(services: Sequence[Worker], position: int) -> bool:
    """Whether each partition's owner has read up to there.

    One that is still taking its partition shows how far the owner before it was, and leaves what
    that one recorded to the next if it is told to drain.
    """
    positions = [0] * PARTITIONS
    for service in services:
        for number, part in _parts(service).items():
            if part.status is Status.RUNNING:
                positions[number] = max(positions[number], part.position)
    return min(positions) >= position


async def _until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not what():
            await asyncio.sleep(0.02)


def _made_up(records: int) -> list[_Sent]:
    """What each partition gets."""
    return [shown(records // PARTITIONS, seed=number) for number in range(PARTITIONS)]


async def _send(
    technology: Technology, made: StreamSpec, sent: Sequence[_Sent], some: slice
) -> None:
    producer = technology.producer()
    for number, (rows, headers) in enumerate(sent):
        await producer.send(made.topics.input, rows[some], headers=headers[some], partition=number)
    await producer.close()


async def _seen(technology: Technology, made: StreamSpec, sent: Sequence[_Sent]) -> list[str]:
    """What is wrong with that which can be read now."""
    reader = technology.publications()
    actions = [r async for batch in reader.actions(made.topics, follow=False) for r in batch]
    ledger = [r async for batch in reader.ledger(made.topics, follow=False) for r in batch]
    await reader.close()
    wrong = []
    for number, records in enumerate(sent):
        evidence = Evidence(
            Partition(made.name, number),
            [r for r in actions if r.partition == number],
            [r for r in ledger if r.partition == number],
        )
        wrong += [*judge(evidence), *_fold(made, number, records, evidence)]
    return wrong


async def _served(technology: Technology, made: StreamSpec, *, until: int) -> None:
    """Learn from everything, and publish it."""
    async with _serving(technology, made, "one") as only:
        await _until(lambda: _reached([only], until))
        await only.drained()
        assert only.service.halted == []


def _fold(made: StreamSpec, number: int, sent: _Sent, evidence: Evidence) -> list[str]:
    """What differs from the engine alone, fed with the same records at once."""
    rows, headers = sent
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    place, offsets = Partition(made.name, number), range(len(rows))
    records = Records(place, 0, offsets, keys, values, len(rows), headers)
    batch, _ = decode(made.format, [records], most_key_bytes=64)
    engine = made.engine(number)
    return judge_fold(evidence, engine=engine, lines=made.lines, log=[batch], whole="whole")
