"""Streams that take each other's place on one input, and what each of their ledgers says."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, cast

import pytest

from streamdp.ports import (
    Partition,
    Published,
    StaticMembership,
    StreamTopics,
    Technology,
    Transport,
)
from streamdp.service.config import Configuration
from streamdp.service.process import run
from streamdp.service.protocol import Cut, PartitionWork
from streamdp.service.run import Running, run_service
from streamdp.service.settings import Pace
from streamdp.service.view import Reason, Status
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from tests.support.calling import Streamdp
from tests.support.services import Lines
from tests.support.streams import events

CONFIG = """
app = "{app}"
[transport]
{transport}
[topics.{input}]
budget = "{budget}"
{streams}
[service]
on_halt = "exit"
idle_commit_seconds = 0.05
"""
STREAM = """
[streams.{name}]
input = "{input}"
start = "earliest"
epoch = {epoch}
actions = ["a", "b", "c"]
[streams.{name}.learner]
epsilon = "{epsilon}"
schedule = "capped 3"
"""


def configured(
    folder: Path,
    *names: str,
    budget: str = "1/2",
    epsilon: str = "1/2",
    epoch: int = 1,
    app: str = "shop",
    source: str = "losses",
    transport: str = "",
) -> Path:
    """A configuration of these streams, all on one input; without a transport on files."""
    path = folder / "shop.toml"
    streams = [
        STREAM.format(name=name, input=source, epoch=epoch, epsilon=epsilon) for name in names
    ]
    text = CONFIG.format(
        app=app,
        transport=transport or f'kind = "sqlite"\npath = "{folder}/shop.db"',
        input=source,
        budget=budget,
        streams="".join(streams),
    )
    path.write_text(text)
    return path


def lived(
    path: Path, count: int, technology: Technology | None = None, *, log: Lines | None = None
) -> Reason | None:
    """Send events, run until every stream has read everything, drain; why it halted, if it did."""
    configuration = Configuration.load(path, {})
    technology = technology or configuration.technology()
    (source,) = configuration.tables.topics

    @asynccontextmanager
    async def stopping(running: Running) -> AsyncIterator[None]:
        async def stop() -> None:
            await running.joined.wait()
            while not all(_is_done(running, name) for name in running.view.streams):
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        task = asyncio.create_task(stop())
        yield None
        task.cancel()

    async def work() -> Reason | None:
        producer = technology.producer()
        await producer.send(source, events(count, keys=[b"fr", b"de"]))
        await producer.close()
        return await run_service(
            configuration, technology=technology, log=log or Lines(), observers=[stopping]
        )

    return run(work, log=Lines())


def _is_done(running: Running, name: str) -> bool:
    parts = running.view.streams[name].partitions.values()
    return bool(parts) and all(
        part.status is Status.RUNNING and part.lag == 0 and part.blocks > 0 for part in parts
    )


def charges(path: Path, name: str) -> list[Charge]:
    """The lines of a stream's ledger that have charged something."""
    configuration = Configuration.load(path, {})
    topics = StreamTopics(configuration.app, name, "")

    async def read() -> list[Published]:
        reader = configuration.technology().publications()
        records = [r async for batch in reader.ledger(topics, follow=False) for r in batch]
        await reader.close()
        return records

    return charging([record.value for record in asyncio.run(read())])


def charging(values: list[bytes]) -> list[Charge]:
    """The lines that have charged something."""
    lines = [decode_ledger(value) for value in values]
    return [line for line in lines if isinstance(line, Charge) and line.charge]


def verified(streamdp: Streamdp, path: Path) -> tuple[int, str, list[str]]:
    """What `ledger verify` says: exit code, the highest charge, what it counted beside."""
    ended = streamdp("ledger", "verify", "--config", str(path), "--json")
    report = ended.json
    return ended.code, report["topics"][0]["highest"], report["not_configured"]


class Dead(Exception):
    """The end of a process, in the middle of a step."""


class Dying:
    """A technology whose worker dies at a step of the first commit that publishes charges."""

    def __init__(self, technology: Technology, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.check_streams = technology.check_streams
        self.publications = technology.publications
        self.producer = technology.producer
        self.administrator = technology.administrator
        self._technology = technology
        self._step = step
        self._publishing = False
        cut = PartitionWork.cut

        def noted(work: PartitionWork, *, now: float, pace: Pace) -> Cut:
            made = cut(work, now=now, pace=pace)
            self._publishing |= bool(charging([line for _, line in made.commit.ledger]))
            return made

        monkeypatch.setattr(PartitionWork, "cut", noted)

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, app: str) -> Self:
        """Never asked."""
        raise NotImplementedError

    def transport(
        self, *, worker: str, static_membership: StaticMembership = StaticMembership.STRANGERS
    ) -> Transport:
        """One that dies."""
        transport: Any = self._technology.transport(
            worker=worker, static_membership=static_membership
        )
        transport._reached = self._reached
        return cast(Transport, transport)

    def _reached(self, step: str, partition: Partition) -> None:
        if self._publishing and step == self._step:
            raise Dead


def shared(one: list[Charge], other: list[Charge]) -> list[tuple[object, int]]:
    """The keys and records that both have drawn from: two blocks of a key overlap."""
    return [
        (a.key, max(a.first_offset, b.first_offset))
        for a in one
        for b in other
        if a.key == b.key
        and max(a.first_offset, b.first_offset) <= min(a.last_offset, b.last_offset)
    ]
