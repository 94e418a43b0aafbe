"""Assembling services of one group, in memory, that come and go."""

from __future__ import annotations

import asyncio
from fractions import Fraction

from streamdp.ports import OutputRecord, no_fault
from streamdp.service.assembly_spec import AssemblySpec
from streamdp.service.charges_by_others import alone
from streamdp.service.loop import Service
from streamdp.service.settings import LoopSettings
from streamdp.service.view import View
from streamdp.testing.faults import Dice
from streamdp.testing.memory import MemoryTransport
from streamdp.testing.memory_log import MemoryLog
from tests.support.assembly_model import Logs
from tests.support.services import Lines
from tests.support.visits import SPEC, TOPICS

PARTITIONS = 3

SETTINGS = LoopSettings(
    poll_seconds=0.001, commit_seconds=0.001, idle_commit_seconds=0.01, retry_seconds=(0.0,),
    drain_seconds=10.0,
)  # fmt: skip

MOST_TURNS = 20_000  # of waiting for a condition, each a thousandth of a second


class Group:
    """A log with its time, and services that share it."""

    def __init__(
        self,
        *,
        chance: Fraction = Fraction(0),
        spec: AssemblySpec = SPEC,
        partitions: int = PARTITIONS,
    ) -> None:
        self.log, self.now, self.partitions = MemoryLog(), 0, partitions
        self.reached = Dice(seed=5, chance=chance) if chance else no_fault
        self.spec = spec
        for topic in (TOPICS.input, TOPICS.second_input, TOPICS.output):
            self.log.create(topic, partitions=partitions)

    def service(self, name: str, *, settings: LoopSettings = SETTINGS) -> tuple[Service, View]:
        """One process."""
        view = View([], assemblies=[SPEC.name])
        transport = MemoryTransport(self.log, worker=name, reached=self.reached)
        service = Service(
            [self.spec], transport, by_others=alone, view=view, log=Lines(), settings=settings,
            now=lambda: self.now,
        )  # fmt: skip
        return service, view

    def events(self, number: int) -> list[OutputRecord]:
        """What lies in a partition of the output."""
        part = self.log.input(TOPICS.output, number)
        headers = [list(pairs) for pairs in part.headers]
        return list(zip(part.keys, part.values, headers, strict=True))

    async def until(self, count: int) -> None:
        """Wait until so many events have left, of all partitions."""
        for _ in range(MOST_TURNS):
            if sum(len(self.events(number)) for number in range(self.partitions)) >= count:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("too few events")

    def send(self, logs: list[Logs], *, now: int) -> None:
        """What has come of each partition's logs by a moment."""
        for number, part in enumerate(logs):
            for topic, records in (
                (TOPICS.input, part.requests),
                (TOPICS.second_input, part.outcomes),
            ):
                sent = len(self.log.input(topic, number).offsets)
                for at, key, headers, value in records[sent:]:
                    if at > now:
                        break
                    self.log.now = at
                    self.log.append(topic, [(key, value)], headers=[headers], partition=number)
        self.now = now
