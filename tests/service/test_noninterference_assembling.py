"""Does anything of an assembling service, but one event's content, depend on outcomes?

Layer 4 of the audit for assemblies: the real service on a memory log, with its time by a script.
Lives in which one request's content or its outcomes differ (unreadable; none, a click, many,
garbage, late ones) must be the same to the byte in everything that others see: ledger, order and
sizes of commits, keys, headers and lengths of events, positions of requests, logs, the status
page's data, the metrics page. A clock that each outcome moves shows that no duration of the public
page has the time in it in which outcomes are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from streamdp.assembly.join import Join
from streamdp.ports import Partition, Records, Value
from streamdp.serve.metrics import MetricsPage
from streamdp.service.assembling import fingerprints
from streamdp.service.assembling.partition import Contents, PartitionAssembly
from streamdp.service.assembling.worker import AssemblyWorker
from streamdp.service.charges_by_others import alone
from streamdp.service.loop import Service
from streamdp.service.metrics import ProcessMetrics, ServiceFacts
from streamdp.service.view import Steps, View, status_of
from streamdp.testing.memory import MemoryTransport
from streamdp.wire.state import Checkpoint, LastRecord, encode_checkpoint
from streamdp_adapters.registry.fields import RecordField
from streamdp_adapters.registry.formats import JSON_SCHEMA, Reading
from streamdp_adapters.registry.schemas import Schema, prefix
from tests.support.assembling_group import SETTINGS, Group
from tests.support.assembly_model import (
    GRACE,
    PREDICTS,
    READS_REQUESTS,
    SAYS,
    SECRET,
    UNREADABLE,
    WINDOW,
)
from tests.support.assembly_mutants import CapsUnreadableForNobody, CapsWhatCanBeRead
from tests.support.services import Lines
from tests.support.showing import ABOUT
from tests.support.visits import CAP, SPEC, TOPICS

SPEC_ = replace(SPEC, cap=replace(CAP, secret=SECRET), recipe=READS_REQUESTS, most_at_once=3)
REQUESTS = 10
QUIET = 200_000  # milliseconds: for so long nothing comes
CLICK, FEW = SAYS % (1, 1), SAYS % (0.25, 0.25)
CONTENT = PREDICTS % 0.5

GONE = "deleted by retention before they are read"
UNREAD = "a content that cannot be read"
OUTCOMES: dict[str, list[tuple[int, Value]]] = {  # of one request: when, and what
    "none": [],
    "a click": [(300, CLICK)],
    "many": [(at, FEW) for at in range(10, 900, 10)],
    "garbage": [(300, b"\xff" * 999), (301, None), (302, b'{"truth": "1"}')],
    "late": [(WINDOW + 1, CLICK), (WINDOW + 40, CLICK), (9 * WINDOW, CLICK)],
    GONE: [(300, CLICK)] * 5,
    UNREAD: [(300, CLICK)],
}


@dataclass
class Hand:
    """A clock that stands still, but for what moves it."""

    seconds: float = 0.0


class Slow(MemoryTransport):
    """Needs a second for each outcome that it reads."""

    hand: Hand

    async def read_second_input(
        self, partition: Partition, start: int, stop: int
    ) -> AsyncIterator[Records]:
        async for records in super().read_second_input(partition, start, stop):
            self.hand.seconds += len(records)
            yield records


@dataclass
class Life:
    """A service that assembles, step by step; `seen` is what anybody can see of it."""

    outcomes: list[tuple[int, Value]]
    content: Value = CONTENT  # of the fourth request
    retained: bool = True
    usual: Value = CONTENT  # of the others
    group: Group = field(default_factory=lambda: Group(spec=SPEC_, partitions=1))

    async def lived(self) -> dict[str, object]:
        """Requests are read, then time passes, twice; between, outcomes of one of them come.

        At the end nothing comes for long.
        """
        hand, log = Hand(), Lines()
        view, steps = View([], assemblies=[SPEC.name]), Steps(lambda: 0.0)
        view.sources = [s for of in self.group.spec.contents if (s := of.source) is not None]
        transport = Slow(self.group.log, worker="lone")
        transport.hand = hand

        def observe(step: str, seconds: float) -> None:
            if step == "commit":  # how often it polls depends on the machine
                steps.observe(step, seconds)

        service = Service(
            [self.group.spec], transport, by_others=alone, view=view, log=log, settings=SETTINGS,
            now=lambda: self.group.now, clock=lambda: hand.seconds,
            observe=observe,
        )  # fmt: skip
        task = asyncio.create_task(service.run())
        for turn in range(2):
            begin = turn * 3 * WINDOW
            self._requests(begin)
            if turn == 0:
                self._clicks()
            await self._until(lambda: self._read(view) == len(self._log("requests").offsets))
            self.group.now = begin + 2 * WINDOW + GRACE
            await self.group.until(REQUESTS * (turn + 1))
            await self._until(lambda: not self._open(view))
        self.group.now += QUIET
        await self._until(lambda: self._kept(view) == 0)
        status = status_of(view, steps, now=hand.seconds)
        facts = ServiceFacts([ABOUT], status, assemblies={SPEC.name: SPEC.epoch})
        page = MetricsPage(
            ProcessMetrics(lambda: facts, most_series=5000).families, application=ABOUT.topics.app
        ).render()
        service.drain()
        await task
        lines = [line for line in log.lines if line[1].get("partition") in (None, "clicks/0")]
        return {
            "commits": self._commits(),
            "log": lines,
            "metrics": page,
            "status": status,
            "registries": [(of.subject, of.lost_at, of.faults()) for of in view.sources],
        }

    def _requests(self, begin: int) -> None:
        for number in range(REQUESTS):
            self.group.log.now = begin + number
            headers = [("streamdp-request", b"%d" % number), ("streamdp-person", b"p")]
            content = self.content if number == 3 and begin == 0 else self.usual
            record = (b"k%d" % (number % 2), content)
            self.group.log.append(TOPICS.input, [record], headers=[headers], partition=0)

    def _clicks(self) -> None:
        for after, value in self.outcomes:
            self.group.log.now = after
            headers = [[("streamdp-request", b"3")]]
            self.group.log.append(
                TOPICS.second_input, [(b"k1", value)], headers=headers, partition=0
            )
        if not self.retained:
            self.group.log.trim(TOPICS.second_input, 0, before=len(self.outcomes))

    def _log(self, topic: str) -> Any:
        return self.group.log.input(topic, 0)

    def _read(self, view: View) -> int:
        parts = view.assemblies[SPEC.name].partitions
        return parts[0].position if 0 in parts else 0

    def _open(self, view: View) -> int:
        return view.assemblies[SPEC.name].partitions[0].open

    def _kept(self, view: View) -> int:
        """Requests that a start would read again."""
        part = view.assemblies[SPEC.name].partitions[0]
        return part.position - part.low_water

    async def _until(self, what: Callable[[], bool]) -> None:
        for _ in range(20_000):
            if what():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it never came to be")

    def _commits(self) -> list[object]:
        """What can be seen of each: values of the trusted state by their length alone."""
        return [
            (
                commit.next_offset, commit.low_water, list(commit.ledger),
                [(place, len(value or b"")) for place, value in commit.state],
                [(key, len(value or b""), list(headers)) for key, value, headers in commit.records],
            )
            for attempt in self.group.log.attempts
            if attempt.partition.number == 0
            for commit in [attempt.commit]
        ]  # fmt: skip

    def events(self) -> list[Value]:
        """The contents, which alone may differ."""
        return [value for _, value, _ in self.group.events(0)]


def lived(name: str) -> tuple[dict[str, object], list[Value]]:
    content = UNREADABLE if name == UNREAD else CONTENT
    life = Life(OUTCOMES[name], content, retained=name != GONE)
    return asyncio.run(life.lived()), life.events()


def differing(one: dict[str, object], two: dict[str, object]) -> list[str]:
    return [name for name in one if one[name] != two[name]]


def test_are_neighbours_the_same_but_for_one_event() -> None:
    """Whatever the fourth request says and what came of it, be it nothing or a hundred outcomes."""
    plain, events = lived("none")
    contents = {events[3]}
    for name in list(OUTCOMES)[1:]:
        other, others = lived(name)
        assert differing(plain, other) == [], name
        assert [at for at in range(len(events)) if events[at] != others[at]] in ([], [3])
        contents.add(others[3])
    assert len(contents) >= 2


BY_REGISTRY: dict[str, list[tuple[int, Value]]] = {
    "none": [],
    "of a schema": [(300, prefix(1) + CLICK)],
    "of a schema that nobody knows": [(300, prefix(7) + CLICK)] * 3,
    "without a schema": [(300, CLICK), (301, None), (302, b"")],
}


def lived_by_registry(name: str) -> tuple[dict[str, object], list[Value]]:
    options = {"registry": "http://nowhere", "subject": "outcomes-value"}
    reading = JSON_SCHEMA.reading(RecordField("truth", "number"), options)
    reading.registry.fetched.schemas = (Schema(1, "JSON", "{}"),)
    group = Group(spec=replace(SPEC_, outcomes=reading), partitions=1)
    life = Life(BY_REGISTRY[name], group=group)
    return asyncio.run(life.lived()), life.events()


def test_no_outcome_says_anything_by_its_schema() -> None:
    """Whether a registry knows it or not; the page says how long the registry is silent."""
    plain, events = lived_by_registry("none")
    metrics = plain["metrics"]
    assert isinstance(metrics, bytes)
    assert b'streamdp_registry_silent_seconds{application="shop",subject="outcomes-value"} 0.0' in (
        metrics
    )
    for name in list(BY_REGISTRY)[1:]:
        other, others = lived_by_registry(name)
        assert differing(plain, other) == [], name
        moved = [at for at in range(len(events)) if events[at] != others[at]]
        assert moved == ([3] if name == "of a schema" else [])


def test_a_registry_that_unknown_schemas_silence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: an outcome of an unknown schema makes the page say that the registry is silent."""
    honest = Contents.read

    def read(self: Contents, records: Records) -> Any:
        for reading, part in [] if self._formats is None else self._formats.cut(records):
            assert isinstance(reading, Reading)
            if any(value and value[:5] not in reading.readers for value in part.values):
                reading.registry.fetched.lost_at = 1.0
        return honest(self, records)

    monkeypatch.setattr(Contents, "read", read)
    plain, _ = lived_by_registry("none")
    told, _ = lived_by_registry("of a schema that nobody knows")
    assert "registries" in differing(plain, told)


def test_is_a_life_told_in_full() -> None:
    """The comparison would be worth little if little happened."""
    seen, events = lived("many")
    assert len(events) == 2 * REQUESTS
    commits, page = seen["commits"], seen["metrics"]
    assert isinstance(commits, list)
    assert isinstance(page, bytes)
    assert len(commits) >= 8
    assert b"streamdp_commit_seconds_count" in page
    assert (
        b'streamdp_events_assembled_total{application="shop",partition="0",stream="clicks"} 20.0'
        in page
    )


def _counts_outcomes(patch: pytest.MonkeyPatch) -> None:
    """Mutant: the view's events are outcomes too."""
    honest = PartitionAssembly._read_up_to

    async def read(self: PartitionAssembly, start: int, stop: int) -> None:
        self.events += stop - start
        await honest(self, start, stop)

    patch.setattr(PartitionAssembly, "_read_up_to", read)


def _measures_reading(patch: pytest.MonkeyPatch) -> None:
    """Mutant: how long a commit takes has in it how long outcomes are read."""
    honest = AssemblyWorker._round

    async def round_(self: AssemblyWorker, work: PartitionAssembly) -> int:
        begun = self._around.clock()
        count = await honest(self, work)
        self._around.observe("commit", self._around.clock() - begun)
        return count

    patch.setattr(AssemblyWorker, "_round", round_)


def _logs_positions(patch: pytest.MonkeyPatch) -> None:
    """Mutant: the log says how far outcomes were read."""
    honest = AssemblyWorker._show

    def show(self: AssemblyWorker, work: PartitionAssembly) -> None:
        honest(self, work)
        log, at = self._around.log, work._join.outcome_at
        if at:
            log.info("partition_running", partition=str(self.partition), outcomes=at)

    patch.setattr(AssemblyWorker, "_show", show)


def _narrow_positions(patch: pytest.MonkeyPatch) -> None:
    """Mutant: a checkpoint as wide as the position of outcomes is."""

    def encode(point: Checkpoint) -> bytes:
        assert point.joined
        return encode_checkpoint(point) + b" " * len(str(int(point.joined.outcomes)))

    patch.setattr("streamdp.service.assembling.partition.encode_checkpoint", encode)


def _settles_for_outcomes(patch: pytest.MonkeyPatch) -> None:
    """Mutant: in a quiet time there is a commit only if outcomes have come."""
    honest = PartitionAssembly._move_on

    async def move_on(self: PartitionAssembly, time: int) -> None:
        start = self._join.outcome_at
        if await self._transport.stop_second_input(self.partition, start, timestamp=time) > start:
            await honest(self, time)
        else:
            self.history = self.position  # so that the view says the same

    patch.setattr(PartitionAssembly, "_move_on", move_on)


def _narrow_fingerprints(patch: pytest.MonkeyPatch) -> None:
    """Mutant: the newest outcome's place is as wide as its offset is."""
    honest = fingerprints.Inputs.newest

    def newest(self: fingerprints.Inputs) -> tuple[LastRecord | None, str]:
        request, outcome = honest(self)
        return request, outcome.lstrip("0")

    patch.setattr(fingerprints.Inputs, "newest", newest)


@pytest.mark.parametrize(
    ("mutant", "member"),
    [
        (_counts_outcomes, "metrics"),
        (_measures_reading, "metrics"),
        (_logs_positions, "log"),
        (_narrow_positions, "commits"),
        (_settles_for_outcomes, "commits"),
        (_narrow_fingerprints, "commits"),
    ],
)
def test_is_a_service_that_tells_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    plain, _ = lived("none")
    assert any(member in differing(plain, lived(name)[0]) for name in ("many", "late"))


@pytest.mark.parametrize("mutant", [CapsWhatCanBeRead, CapsUnreadableForNobody])
def test_a_join_that_caps_by_contents_is_caught(
    mutant: type[Join], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later events of the person would say whether one of their requests could be read."""
    monkeypatch.setattr("streamdp.service.assembling.partition.Join", mutant)
    (_, plain), (_, other) = lived("a click"), lived(UNREAD)
    assert {at for at in range(len(plain)) if plain[at] != other[at]} - {3}
