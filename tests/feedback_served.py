"""The real service with a seeded feedback stream on a technology, held against the offline fold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.ports import Headers, Key, Partition, Records, StreamTopics, Technology, Value
from streamdp.service.batches import decode
from streamdp.service.loop import Service
from streamdp.service.past import alone
from streamdp.service.spec import StreamSpec
from streamdp.service.view import View
from streamdp.testing.judge import Evidence, judge, judge_fold
from streamdp.wire.feedback import Played
from tests.services import QUICK, Lines
from tests.streams import ACTIONS, feedback_spec, shown

PARTITIONS = 2
_Sent = tuple[Sequence[tuple[Key, Value]], Sequence[Headers]]


def stream(app: str, *, played: Played = "header", name: str = "clicks") -> StreamSpec:
    """Growing blocks, seeded bits."""
    learner = policy_blocks(actions=ACTIONS, epsilon="1/2", schedule="geometric 2", played=played)
    topics = StreamTopics(app, name, f"{app}-{name}", headers=True)
    return replace(feedback_spec(learner=learner), topics=topics)


async def differences(technology: Technology, made: StreamSpec, *, records: int) -> list[str]:
    """What the judge finds in ledger and policies of a service that read so many records."""
    sent = [shown(records // PARTITIONS, seed=number) for number in range(PARTITIONS)]
    await technology.administrator().create([made.topics], partitions=PARTITIONS)
    producer = technology.producer()
    for number, (rows, headers) in enumerate(sent):
        await producer.send(made.topics.input, rows, headers=headers, partition=number)
    await producer.close()
    await _served(technology, made, until=records // PARTITIONS)
    reader = technology.publications()
    actions = [each async for batch in reader.actions(made.topics, follow=False) for each in batch]
    ledger = [each async for batch in reader.ledger(made.topics, follow=False) for each in batch]
    await reader.close()
    found = []
    for number, each in enumerate(sent):
        evidence = Evidence(
            Partition(made.name, number),
            [record for record in actions if record.partition == number],
            [record for record in ledger if record.partition == number],
        )
        found += [*judge(evidence), *_fold(made, number, each, evidence)]
    return found


async def _served(technology: Technology, made: StreamSpec, *, until: int) -> None:
    """Learn from everything, and publish it."""
    view = View([made])
    transport = technology.transport(worker="one")
    service = Service([made], transport, past=alone, view=view, log=Lines(), settings=QUICK)
    running = asyncio.create_task(service.run())
    parts = [Partition(made.name, number) for number in range(PARTITIONS)]
    async with asyncio.timeout(60):
        while any(view.part(each).position < until for each in parts):
            assert not running.done()
            await asyncio.sleep(0.02)
    service.drain()
    await running
    assert service.halted == []


def _fold(made: StreamSpec, number: int, sent: _Sent, evidence: Evidence) -> list[str]:
    """What differs from the engine alone, fed with the same records at once."""
    rows, headers = sent
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    place, offsets = Partition(made.name, number), range(len(rows))
    records = Records(place, 0, offsets, keys, values, len(rows), headers)
    batch, _ = decode(made.format, [records], most_key_bytes=64)
    engine = made.engine(number)
    return judge_fold(evidence, engine=engine, lines=made.lines, log=[batch], whole="whole")
