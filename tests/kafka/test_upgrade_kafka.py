"""Does a running stream of the version before go on bit for bit on a broker, under load and kills?

`golden/upgrade/running.json` is everything that a partition had left durable in mid-stream under
the version before there were memories, from a configuration that named no recipe: its state with
three releases that were recorded and not yet published, its whole ledger and actions. Beside it
stands what that version itself went on to release. It is never made anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from streamdp.core.errors import StreamdpError
from streamdp.ports import Commit, Key, Partition, Value
from streamdp.service.spec import StreamSpec
from streamdp.testing.judge import Evidence, judge
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from tests.crash.process import Place
from tests.crash.scenario import Input, Scenario, Shown
from tests.support.lending import lend
from tests.support.streams import events

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
FOLDER = Path(__file__).parents[1] / "golden" / "upgrade"
GOLDEN = json.loads((FOLDER / "running.json").read_text())
HOME = Partition("home", 0)
KEYS = [b"%d" % number for number in range(20)]
KILLS = ["commit: sent", "poll", "commit: decided"]


@dataclass
class Known(Input):
    """The input that the version before had read a part of, and was going to read."""

    left: list[tuple[Key, Value]] = field(default_factory=lambda: events(6000, seed=11, keys=KEYS))

    def more(self, chance: random.Random, *, partitions: int, per_partition: int) -> Iterator[int]:
        """The next records."""
        self.sent.setdefault(0, []).extend(self.left[:per_partition])
        del self.left[:per_partition]
        yield 0


class Upgraded(Scenario):
    """The stream of the version before, and what this version makes of it."""

    def _counts(self, spec: StreamSpec, number: int, evidence: Evidence) -> list[str]:
        """How many lines are due is in the golden file alone."""
        return []

    def findings(
        self,
        seen: dict[tuple[str, int], list[bytes]] | None = None,
        *,
        whole: str = "whole",
        shown: Shown = (),
    ) -> list[str]:
        """What was published that the version before would not have published, or not yet."""
        (spec,) = self.place.specs()
        (evidence,) = self.evidence(spec)
        lines = [fields(record.value) for record in evidence.ledger[len(GOLDEN["ledger"]) :]]
        wrong = judge(evidence)
        if [record.value.decode() for record in evidence.ledger][: len(GOLDEN["ledger"])] != [
            line for _, line in GOLDEN["ledger"]
        ]:
            wrong.append("what was published before has changed")
        if lines != GOLDEN["later"]:
            same = sum(
                1 for one, other in zip(lines, GOLDEN["later"], strict=False) if one == other
            )
            wrong.append(f"{len(lines)} lines, {same} as they should be of {len(GOLDEN['later'])}")
        return wrong


def fields(value: bytes) -> list[Any]:
    """What a line says of a release, whatever the version of its form."""
    line = decode_ledger(value)
    assert isinstance(line, Charge)
    read = [line.start, line.stop, line.first_offset, line.last_offset]
    return [
        line.key, line.born, line.block, line.kind, line.index, *read, line.epsilon, line.digest,
    ]  # fmt: skip


def keyed(records: Sequence[tuple[str | None, str]]) -> list[tuple[Key, bytes]]:
    """Records of a golden file."""
    return [(None if key is None else key.encode(), value.encode()) for key, value in records]


class Silent:
    """Hears nothing but that the partition is there."""

    def __init__(self) -> None:
        self.mine = asyncio.Event()

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """Ours."""
        self.mine.set()

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """Over."""

    def settled(self, stream: str) -> None:
        """All were announced."""

    def failed(self, partition: Partition, error: StreamdpError) -> None:
        """Must not be."""
        raise error


async def plant(place: Place) -> None:
    """Make durable what the version before had left, by the commit that it would have used."""
    transport, heard = place.technology().transport(worker="before"), Silent()
    await transport.join([spec.topics for spec in place.specs()], heard)
    await asyncio.wait_for(heard.mine.wait(), 60)
    await transport.take(HOME)
    state = [(key.encode(), b64decode(value)) for key, value in GOLDEN["state"].items()]
    lines = keyed(GOLDEN["actions"]), keyed(GOLDEN["ledger"])
    await transport.commit(HOME, Commit(GOLDEN["group"], state, *lines))
    await transport.close()


def test_does_a_running_stream_go_on_bit_for_bit_through_kills_under_load(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every later release, and their order, is what the version before would have published.

    Its topics have the names that were recorded, so never on an outside broker, which remembers.
    """
    settings: dict[str, object] = {
        "bootstrap": lend(request.config, "plain").bootstrap, "single_broker": True,
        "session_timeout_ms": 1500,
    }  # fmt: skip
    place = Place("kafka", settings, "upgraded", 1, upgraded=True)
    known = Known()
    made = Upgraded(place, tmp_path, random.Random(7), input=known)
    made.prepare()
    made.send(GOLDEN["group"] + 100)
    asyncio.run(plant(place))
    for step in KILLS * TIMES:
        with made.running(step=step, passage=made.chance.randrange(2, 9)) as process:
            for _ in range(5):
                made.send(100 // TIMES)
            made.await_dead(process)
    assert sum(made.steps.values()) == len(KILLS) * TIMES, made.steps
    made.send(len(known.left))
    assert made.finish() == []
