"""What draws for a loop's client, and the events that its records make."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from streamdp.assembly.join import Join, Positions
from streamdp.assembly.recipes import AssemblyRecipe
from streamdp.assembly.rules import Combine, Rules
from streamdp.client import (
    Answer,
    Why,
)
from streamdp.client.answers import Context
from streamdp.ports import Headers, Key, StreamTopics, Technology, Value
from tests.support.assembly_model import encode

ACTIONS = ("grid", "list")

RULES = Rules(window=60_000, grace=30_000, combine=Combine.MAX, default=1.0)

LATER = 1 << 60  # after any deadline


class Draws:
    """Answers by turns, from one release."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Key, str]] = []

    def choose(
        self,
        stream: str,
        key: Key,
        request: str,
        *,
        context: Context | None = None,
        exclude: Collection[str] = (),
    ) -> Answer:
        self.asked.append((stream, key, request))
        action = ACTIONS[len(self.asked) % 2]
        return Answer(action, Why.PUBLISHED, 0, 1, 17, 3, probability=0.25)


Row = tuple[int, int, Key, Headers, Value]


async def rows(technology: Technology, topic: str) -> list[Row]:
    """Everything in a topic: offset, timestamp, key, headers, value."""
    administrator = technology.administrator()
    of = StreamTopics("reader", "reader", topic, headers=True)
    try:
        return [
            row
            async for batch in administrator.history(of, after={})
            for row in zip(batch.offsets, batch.timestamps, batch.keys, batch.headers,
                           batch.values, strict=True)
        ]  # fmt: skip
    finally:
        await administrator.close()


def joined(requests: Sequence[Row], outcomes: Sequence[Row], recipe: AssemblyRecipe) -> list[Any]:
    """The events of two logs: losses and headers."""
    join = Join(RULES, recipe, encode, positions=Positions(0, 0, 0))
    for offset, at, key, headers, value in requests:
        join.request(offset, at, key, headers, value)
    _, times, keys, pairs, values = zip(*outcomes, strict=True)
    join.outcomes(times, keys, pairs, values, next_offset=outcomes[-1][0] + 1)
    count = join.due(LATER, most=1000)
    return [
        (key, json.loads(value or b""), dict(headers)) for key, value, headers in join.emit(count)
    ]
