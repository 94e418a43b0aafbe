"""What everybody can see of a service while it works: its pages, metrics and logs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streamdp.ports import Partition
from streamdp.serve.about import About
from streamdp.service.charges_by_others import alone
from streamdp.service.life import Observe, unobserved
from streamdp.service.loop import Service
from streamdp.service.operations import LatestStatus
from streamdp.service.spec import StreamSpec
from streamdp.service.view import Steps, View, status_of
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from tests.support.asking import Observer, Process

RECORDS, BLOCKS, CHANGED = 60, 12, 47


@dataclass
class Lines:
    """A log that is kept."""

    lines: list[str] = field(default_factory=list)

    def info(self, event: str, **fields: object) -> None:
        self.lines.append(json.dumps([event, fields], default=str))

    warning = error = info


async def worked(
    log: MemoryLog, made: StreamSpec, lines: Lines, *, observe: Observe = unobserved
) -> View:
    """A service that takes the partition, learns everything that is there, and drains."""
    view = View([made])
    transport = MemoryTechnology(log).transport(worker="w")
    service = Service(
        [made],
        transport,
        by_others=alone,
        view=view,
        log=lines,
        clock=lambda: 0.0,
        observe=observe,
    )

    async def drain() -> None:
        while view.part(Partition("home", 0)).position < RECORDS:
            await asyncio.sleep(0)  # durable: what is not yet public goes out with the drain
        service.drain()

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(service.run())
        group.create_task(drain())
    return view


Asked = Sequence[tuple[str, bytes]]

"""Addresses, each with what is posted there; nothing is posted where that is empty."""


async def seen(
    log: MemoryLog, about: About, view: View, lines: Lines, asked: Asked
) -> Mapping[str, object]:
    """Everything that may be seen of it: of the process that learns, and of one that serves."""
    steps = Steps(lambda: 0.0)
    steps.observe("poll", 0.01)
    answers: dict[str, object] = {"log": lines.lines}
    latest = LatestStatus(lambda: 0.0)
    latest.take(status_of(view, steps, now=5.0))
    answers["snapshot"] = latest.process
    process = Process(latest, about)
    for target in ("/metrics", "/healthz", "/readyz", "/v1/status", "/nothing"):
        answer = await process.ask(target)
        answers[f"operations {target}"] = (answer.status, dict(answer.headers), answer.body)
    publications = MemoryTechnology(log).publications()
    observer = Observer.over(lambda: publications, about=about)
    async with observer.knowledge.following():
        await observer.knowledge.cache.ready()
        while not observer.knowledge.histories["home"].loaded:
            await asyncio.sleep(0)
        for target, body in asked:
            answer = await observer.ask(target, method="POST" if body else "GET", body=body)
            answers[target] = (answer.status, dict(answer.headers), answer.body)
    return answers
