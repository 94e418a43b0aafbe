"""The real service on a technology, run until it has read its input, and what it released."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields

from msgspec import UNSET

import streamdp as sd
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import Cell, cells_of, parse_candidates, parse_epsilons
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.topics import topic_log
from streamdp.ports import Key, StreamTopics, Technology, Value
from streamdp.service.spec import StreamSpec
from streamdp.wire.lines import Charge, key_bytes
from streamdp.wire.published import decode_ledger
from tests.support import replayed
from tests.support.services import serving
from tests.support.streams import ACTIONS, spec

SEED, EPOCH = 5, 3
LEARNERS = (
    "incumbent_leader:schedule=capped 8",
    "remembering_leader:schedule=geometric 2 to 8",
    "prefix_softmax",
    "noisy_leader:noise=gumbel:resample=bernoulli",
    "incumbent_leader:schedule=restarting 12",
)

Released = dict[tuple[int, Key], list[int]]
OfLines = dict[tuple[int, Key], dict[int, int]]  # by block; the opening is -1


def cells() -> Sequence[Cell]:
    return cells_of(parse_candidates(LEARNERS), parse_epsilons("1"), actions=ACTIONS)


def learners() -> Sequence[sd.Leader]:
    """What the service runs."""
    return [cell.learner for cell in cells()]


def stream(number: int, learner: sd.Leader, *, app: str, input: str) -> StreamSpec:  # noqa: A002
    made = spec(
        name=f"s{number}",
        app=app,
        learner=learner,
        epoch=EPOCH,
        randomness=sd.SeededRandomness(SEED),
    )
    return StreamSpec(
        **{field.name: getattr(made, field.name) for field in fields(StreamSpec)}
        | {"topics": StreamTopics(app, f"s{number}", input)}
    )


async def lived(
    technology: Technology, records: Sequence[tuple[Key, Value]], *, app: str, partitions: int
) -> list[Released]:
    """Serve the input with one stream for each learner; the actions that each released."""
    specs = [
        stream(number, learner, app=app, input=f"{app}.input")
        for number, learner in enumerate(learners())
    ]
    topics = [spec.topics for spec in specs]
    await technology.administrator().create(topics, partitions=partitions)
    producer = technology.producer()
    await producer.send(f"{app}.input", records)
    await producer.close()
    wanted = [_lines(records, leader) for leader in learners()]
    async with (
        serving(specs, technology.transport(worker="one")) as running,
        asyncio.timeout(240),
    ):
        while True:
            released = [await _released(technology, stream_topics) for stream_topics in topics]
            if [sum(map(len, by_key.values())) for by_key in released] == wanted:
                break
            assert not running.task.done()
            await asyncio.sleep(0.02)
    return [
        {name: [held[block] for block in sorted(held)] for name, held in by_key.items()}
        for by_key in released
    ]


def _blocks(records: Sequence[tuple[Key, Value]], leader: sd.Leader) -> dict[Key, int]:
    """How many blocks of each key end."""
    counts: dict[Key, int] = {}
    for key, _ in records:
        counts[key] = counts.get(key, 0) + 1
    return {key: leader.schedule.block_of(slots + 1) for key, slots in counts.items()}


def _lines(records: Sequence[tuple[Key, Value]], leader: sd.Leader) -> int:
    """How many releases there will be: the openings, and every block that ends."""
    return sum(1 + blocks for blocks in _blocks(records, leader).values())


async def _released(technology: Technology, topics: StreamTopics) -> OfLines:
    actions: OfLines = {}
    reader = technology.publications()
    async for batch in reader.ledger(topics, follow=False):
        for record in batch:
            line = decode_ledger(record.value)
            if isinstance(line, Charge) and line.kind in ("opening", "action"):
                place = actions.setdefault((record.partition, key_bytes(line)), {})
                action = line.index if line.in_force is UNSET else line.in_force
                assert isinstance(action, int)
                place[-1 if line.kind == "opening" else line.block] = action
    await reader.close()
    return actions


def replayed_like(technology: Technology, *, app: str) -> list[Released]:
    """The same from a replay of the topic."""
    log = topic_log(technology, f"{app}.input", ReadOptions(actions=ACTIONS), name="topic")
    released: list[Released] = []
    for number, cell in enumerate(cells()):
        actions = replayed.replayed(log, [cell], Bench((SEED,), f"s{number}", EPOCH))
        released.append({(part, key): held for (_, _, part, key), held in actions.items()})
    return released
