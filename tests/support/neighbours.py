"""Everything that a service lets be seen of one input, so that neighbouring inputs can be compared.

The real service lives a whole life on a real transport: it works, loses a commit in the middle,
takes the partition again and rebuilds, begins a new epoch, and halts over what
contradicts itself. Only chance is replaced: selections, openings and estimates come from a script,
and time from a loop whose clock moves only when nothing is left to do, so that two lives of the
same course are the same to the byte.
"""

from __future__ import annotations

import asyncio
import io
import logging
import re
import selectors
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import pytest
import structlog

import streamdp as sd
from streamdp.lab.audit.script import Script, Scripted, ScriptedRandomness, key_of
from streamdp.ports import Commit, Headers, Key, Partition, Technology, Transport, Value
from streamdp.service import logs
from streamdp.service.charges_by_others import alone
from streamdp.service.loop import Service
from streamdp.service.quarantine import Quarantine, quarantining
from streamdp.service.settings import LoopSettings, Pace
from streamdp.service.spec import StreamSpec
from streamdp.service.view import Status, View
from streamdp.testing.faults import FaultPlan
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import Isolation, MemoryLog
from streamdp.wire.formats import Format, configure
from streamdp_adapters.sqlite import Settings, Sqlite
from tests.support.scripted_choice import releases_scripted_estimates
from tests.support.services import Between
from tests.support.streams import spec

T = TypeVar("T")

ACTIONS = ("a", "an action of many letters", "ü")
RUNS, BLOCKS, RECORDS = 6, 60, 120
HALF = RECORDS // 2
HOME = Partition("home", 0)
PACED = LoopSettings(
    poll_records=7,
    batch_records=7,
    commit_seconds=0.0,
    idle_commit_seconds=0.05,
    retry_seconds=(0.01,),
    pace=Pace(records=30, seconds=0.5, bytes_a_cut=1),  # rows lag, so a rebuild has to read,
)
PATIENCE = 30  # looks after which a life that does not get on is ended; others need up to 3
Observed = dict[str, object]


class _Selector(selectors.DefaultSelector):
    """Does not wait: the clock goes on instead."""

    loop: Clockwork

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing will ever happen again")
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class Clockwork(asyncio.SelectorEventLoop):
    """An event loop with a counter for a clock, and without threads."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., T], *args: object
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()

        def act() -> None:
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_soon(act)
        return future


@dataclass(frozen=True)
class Course:
    """What is the same for neighbours: format, estimates, the script of chance."""

    format: str = "json"
    script: int = 0  # another one draws other actions
    aside: Callable[[Technology], Technology] | None = None  # where unusable records go, if at all

    @cached_property
    def layout(self) -> Format:
        options = {} if self.format == "json" else {"frames": True}
        return configure(self.format, actions=ACTIONS, options=options)

    def by_script(self, patch: pytest.MonkeyPatch) -> None:
        """Release estimates by a script too; votes are drawn by one anyway."""
        releases_scripted_estimates(patch)

    def spec(self, *, epoch: int = 1, epsilon: str = "1/2") -> StreamSpec:
        """A stream whose chance is scripted."""
        runs, blocks = np.arange(RUNS)[:, None], np.arange(BLOCKS + 1)
        script = Script(
            many=len(ACTIONS),
            actions=(runs + blocks * (1 + self.script) + self.script) % len(ACTIONS),
            windows=np.full((RUNS, BLOCKS + 1), 1 << 63, dtype=np.uint64),
            coins=np.zeros((RUNS, 4 * RECORDS, len(ACTIONS)), dtype=np.bool_),
        )
        learner = sd.incumbent_leader(actions=ACTIONS, epsilon=epsilon, schedule="capped 3")
        made = spec(
            learner=cast("sd.Leader", Scripted(learner)),
            randomness=ScriptedRandomness(script),
            estimates=[sd.estimate("block_regret", epsilon="1/4", min_length=2)],
            epoch=epoch,
            most_keys=RUNS - 1,  # the last key gets no learner
            most_key_bytes=8,
        )
        if self.aside is None:
            return replace(made, format=self.layout)
        topics = replace(made.topics, quarantined=True)
        kept = Quarantine(topics, self.layout)
        return replace(made, format=self.layout, topics=topics, quarantine=kept)

    def records(self, *, at: int, content: Value) -> list[tuple[Key, Value]]:
        """Many records, of which one is the neighbours' own; the null key and a long one too."""
        rows = (np.arange(4 * RECORDS * len(ACTIONS)) * 37 % 101 / 100).astype(np.float32)
        frames_of = rows.reshape(RECORDS, 4, len(ACTIONS))
        frames = 1 if self.format == "json" else 4
        values: list[Value] = [self.layout.encode(row[:frames]) for row in frames_of]
        values[at] = content
        return [(key_at(number), value) for number, value in enumerate(values)]

    def headers(self) -> None:
        """Records of losses have none."""


class AnyCourse(Protocol):
    """What a life needs to know of a stream, whichever kind it is."""

    @property
    def aside(self) -> Callable[[Technology], Technology] | None:
        """Where unusable records go, if anywhere."""
        ...

    def by_script(self, patch: pytest.MonkeyPatch) -> None:
        """Let a script decide all charged releases."""
        ...

    def spec(self, *, epoch: int = 1, epsilon: str = "1/2") -> StreamSpec:
        """A stream whose chance is scripted."""
        ...

    def records(self, *, at: int, content: Value) -> list[tuple[Key, Value]]:
        """Many records, of which one is the neighbours' own."""
        ...

    def headers(self) -> Sequence[Headers] | None:
        """Those of the records, which neighbours share."""
        ...


def key_at(number: int) -> Key:
    """The key of a record: many, the null key and one that is too long among them."""
    keys: list[Key] = [None, *(key_of(run) for run in range(1, RUNS)), b"longer than is taken"]
    return keys[number * 5 % 11 % len(keys)]


@dataclass
class Witness(Between):
    """A transport whose commits are written down: order, places, sizes; never what is trusted."""

    inner: Transport
    seen: list[object] = field(default_factory=list)

    async def commit(self, partition: Partition, commit: Commit) -> None:
        sizes = [(key, None if value is None else len(value)) for key, value in commit.state]
        public = [(key, len(value)) for key, value in (*commit.actions, *commit.ledger)]
        self.seen.append((commit.next_offset, commit.low_water, sizes, public, repr(commit)))
        await self.inner.commit(partition, commit)


class Life:
    """One life of a stream on one technology, and what it let be seen."""

    def __init__(self, course: AnyCourse, technology: Technology, faulty: Technology) -> None:
        self.course, self.technology, self.faulty = course, technology, faulty
        self.seen: Observed = {}
        self._log = io.StringIO()
        self._commits: list[object] = []

    async def lived(
        self, records: Sequence[tuple[Key, Value]], headers: Sequence[Headers] | None
    ) -> Observed:
        """Work, lose a commit, rebuild, begin an epoch, and halt."""
        first = self.course.spec()
        tools = self.technology.administrator()
        await tools.create([first.topics], partitions=1)
        await tools.close()
        producer = self.technology.producer()

        async def send(part: slice) -> None:
            named = None if headers is None else headers[part]
            await producer.send(first.topics.input, records[part], headers=named, partition=0)

        await send(slice(HALF))
        await self.work("first", first, until=HALF)
        await send(slice(HALF, -20))
        await self.work("lost and again", first, until=RECORDS - 20, on=self.faulty)
        await self.work("again", first, until=RECORDS - 20)
        await send(slice(-20, None))
        await producer.close()
        await self.work("another ε", self.course.spec(epsilon="1/3"), until=RECORDS)
        await self.work("epoch", self.course.spec(epoch=2), until=RECORDS)
        await self.work("older epoch", first, until=2 * RECORDS)
        reader = self.technology.publications()
        for name, lines in (
            ("actions", reader.actions(first.topics, follow=False)),
            ("ledger", reader.ledger(first.topics, follow=False)),
        ):
            self.seen[name] = [record async for batch in lines for record in batch]
        await reader.close()
        self.seen["commits"] = self._commits
        return self.seen | {"log": self.log}

    @property
    def log(self) -> str:
        """Every line without its time, which is the machine's."""
        return re.sub(r'"time": ?"[^"]*", ', "", self._log.getvalue())

    async def work(
        self,
        name: str,
        made: StreamSpec,
        *,
        until: int,
        on: Technology | None = None,
    ) -> None:
        """A process: it takes the partition, reads on as far as there is, and drains."""
        aside = self.technology if self.course.aside is None else self.course.aside(self.technology)
        async with quarantining([made.quarantine], aside):
            await self._work(name, made, until=until, on=on)

    async def _work(
        self, name: str, made: StreamSpec, *, until: int, on: Technology | None
    ) -> None:
        view, loop = View([made]), asyncio.get_running_loop()
        transport = Witness((on or self.technology).transport(worker=name), self._commits)
        steps: list[tuple[str, float, str]] = []
        service = Service(
            [made],
            transport,
            by_others=alone,
            view=view,
            log=logs.set_up(level="info", style="json", stream=self._log),
            settings=PACED,
            clock=loop.time,
            observe=lambda step, seconds: steps.append((step, seconds, shown(view))),
        )
        running = asyncio.create_task(service.run())
        looks = 0
        while view.part(HOME).position < until and view.part(HOME).status is not Status.HALTED:
            await asyncio.sleep(0.01)
            looks += 1
            if looks > PATIENCE or running.done():
                break
        service.drain()
        self.seen[f"{name}: ended by"] = await running
        self.seen[f"{name}: steps"] = (looks, [(step, seconds) for step, seconds, _ in steps])
        self.seen[f"{name}: view"] = [snapshot for *_, snapshot in steps] + [shown(view)]
        shown_objects = (view, service, service.halted, made.charge, made.digest, transport)
        self.seen[f"{name}: reprs"] = re.sub(" at 0x[0-9a-f]+", "", repr(shown_objects))
        tools = self.technology.administrator()
        peeked = await tools.peek(made.topics, 0)
        await tools.close()
        self.seen[f"{name}: sizes"] = sorted((k, len(v)) for k, v in peeked.state.items())
        self.seen[f"{name}: repr of state"] = repr(peeked)


def shown(view: View) -> str:
    """All that the view holds of the partition."""
    return repr(view.work[HOME.stream])


def _run(work: Callable[[], Any]) -> Observed:
    """On a loop with a counter for a clock; what libraries warn of is seen too."""
    with warnings.catch_warnings(record=True) as caught, _clean_logs():
        warnings.simplefilter("always")
        with asyncio.Runner(loop_factory=Clockwork) as runner:
            seen: Observed = runner.run(work())
        return seen | {"warnings": [str(warning.message) for warning in caught]}


@contextmanager
def _clean_logs() -> Iterator[None]:
    """Whatever a life's log changes for the process is put back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


def on_memory(course: AnyCourse, *, at: int, content: Value) -> Observed:
    """A life on the memory transport, and what uncommitted readers saw of it."""
    log = MemoryLog(gap=1)
    lost = MemoryTechnology(log, reached=FaultPlan({"commit: sent": {3}, "take: read": {2}}))

    async def work() -> Observed:
        life = Life(course, MemoryTechnology(log), lost)
        seen = await life.lived(course.records(at=at, content=content), course.headers())
        newest = course.spec(epoch=2)
        topics = newest.topics
        for isolation in Isolation:
            seen[f"actions, {isolation}"] = log.actions(topics, isolation)
            seen[f"ledger, {isolation}"] = log.ledger(topics, isolation)
        state = log.state(topics, 0)
        for name, broken in _broken(state):
            log.replace_state(topics, 0, broken)
            await life.work(name, newest, until=2 * RECORDS)
        return seen | life.seen | {"log": life.log}

    return _run(work)


def _broken(state: Mapping[bytes, bytes]) -> Iterator[tuple[str, dict[bytes, bytes]]]:
    """States that contradict themselves."""
    # of the newest epoch: one that an earlier epoch has left is read for what it carries over alone
    row = max((key for key in state if b'"row"' in key), default=None)
    if row is None:
        return  # a broken service that saves none
    point = next(key for key in state if b'"checkpoint"' in key)
    yield "a row is damaged", {**state, row: state[row][:-9] + b"x" + state[row][-8:]}
    yield "a row is gone", {key: value for key, value in state.items() if key != row}
    yield "a row is short", {**state, row: state[row][:-1]}
    yield "no checkpoint", {key: value for key, value in state.items() if key != point}
    yield "foreign", {**state, b"foreign": b"1"}


def on_sqlite(course: AnyCourse, folder: Path, *, at: int, content: Value) -> Observed:
    """A life on SQLite's files, and how large they are."""
    settings = Settings.from_mapping({"path": str(folder / "trusted.db"), "actions": "all"})
    lost = Sqlite(settings, reached=FaultPlan({"commit: recorded": {3}, "take: copied": {2}}))

    async def work() -> Observed:
        life = Life(course, Sqlite(settings), lost)
        return await life.lived(course.records(at=at, content=content), course.headers())

    seen = _run(work)
    names = (
        ["trusted.published.db"] if content is None else sorted(p.name for p in folder.iterdir())
    )
    seen["sizes of files"] = [(name, (folder / name).stat().st_size) for name in names]
    return seen


def differences(one: Observed, other: Observed) -> list[str]:
    """The names of what is not the same."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
