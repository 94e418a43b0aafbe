"""Are unusable records set aside, bounded and in order, without anything public noticing?

Layer 4 of the audit with the quarantine on (`tests.support.neighbours` tells what a life is):
inputs that differ in one record must be the same to the byte in everything public, whether what is
set aside can be written, cannot, or hangs. And with the quarantine on, everything public is as
without.
"""

from __future__ import annotations

import asyncio
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from streamdp.core.errors import StateMismatch, TransportLost
from streamdp.core.events import Batch
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.ports import Key, Partition, Records, Taken, Technology, Value
from streamdp.service import logs, quarantine
from streamdp.service.charges_by_others import ALONE
from streamdp.service.diagnosis import quarantined
from streamdp.service.protocol import PartitionWork, Restoring
from streamdp.service.quarantine import Quarantine, quarantining
from streamdp.service.spec import StreamSpec
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.wire.formats import Format, configure
from streamdp.wire.quarantined import MOST_REASON, MOST_VALUE, Quarantined, read_quarantined
from streamdp_adapters.sqlite import Settings, Sqlite
from tests.support.loss_batches import made_of
from tests.support.neighbours import Course, Observed, differences, on_memory
from tests.support.scripted_choice import releases_scripted_estimates
from tests.support.services import Room
from tests.support.streams import ACTIONS, events, feedback_spec, spec

HOME = Partition("home", 0)
GOOD, BAD = b'{"losses":[0.1,0.9,0.3]}', b'{"losses":[0.1,"x",0.3]}'
CONTENTS: tuple[Value, ...] = (GOOD, BAD, b"\xff" * len(GOOD))
EARLY, LAST = 12, 119


def aside(*, frames: bool = False) -> StreamSpec:
    """A stream that sets unusable records aside."""
    made = spec()
    topics = replace(made.topics, quarantined=True)
    layout = configure("float32", actions=ACTIONS, options={"frames": True})
    format_ = layout if frames else made.format
    return replace(made, topics=topics, format=format_, quarantine=Quarantine(topics, format_))


def queue(made: StreamSpec) -> Quarantine:
    """Its quarantine."""
    assert made.quarantine is not None
    return made.quarantine


def written(log: MemoryLog, made: StreamSpec) -> list[tuple[Key, Quarantined]]:
    """All entries, as they were written."""
    parts = [log.input(made.topics.quarantine, n) for n in range(log.partitions(made.topics.input))]
    return [
        (key, read_quarantined(value))
        for part in parts
        for key, value in zip(part.keys, part.values, strict=True)
    ]


def room(made: StreamSpec, *, partitions: int = 1) -> Room:
    """A log with the stream's topics."""
    place = Room([made], partitions=partitions)
    place.log.create(made.topics.quarantine, partitions=partitions)
    return place


def work(made: StreamSpec) -> PartitionWork:
    """A partition at work, from its first start."""
    log = MemoryLog()
    log.create(made.topics.input, partitions=1)
    tools = MemoryTechnology(log).administrator()
    return Restoring(made, HOME, asyncio.run(tools.peek(made.topics, 0)), by_others=ALONE).finish()


def records(values: Sequence[Value], *, start: int = 0) -> Records:
    """Consecutive records of one key."""
    offsets = range(start, start + len(values))
    return Records(HOME, start, offsets, [b"fr"] * len(values), values, start + len(values))


# -- what is set aside -----------------------------------------------------------------------------


async def test_is_every_unusable_record_set_aside_with_its_reason_and_in_order() -> None:
    """Once each, through the service, by offset; usable ones never."""
    made = aside()
    given = events(400)

    place = room(made)
    place.send("home", given)
    async with quarantining([made.quarantine], MemoryTechnology(place.log)), place.worker():
        await place.until(place.is_read)
    assert place.wrong() == []
    entries = written(place.log, made)
    bad = [(at, key) for at, (key, _) in enumerate(given) if made.format.explain(given[at][1])]
    assert [(entry.offset, key) for key, entry in entries] == bad
    assert len(bad) > 5
    assert {entry.value for _, entry in entries} == {b"\xffgarbage"}
    assert {(entry.partition, entry.length) for _, entry in entries} == {(0, 8)}
    assert all(entry.reason == made.format.explain(entry.value) for _, entry in entries)


def absorb(at_work: PartitionWork, *parts: Records) -> None:
    """Read and apply records."""
    at_work.absorb([read for part in parts for read in at_work.read(part)])


def test_is_a_frame_with_one_bad_row_set_aside_once() -> None:
    """And none whose losses are finite, however large."""
    made = aside(frames=True)
    rows = np.full((3, 4, 3), 0.5, dtype="<f4")
    rows[1, 2, 0] = np.nan
    rows[2] = 3e38  # three of them add up to infinity
    absorb(work(made), records([row.tobytes() for row in rows]))
    reasons = [(entry.offset, made.format.explain(entry.value)) for entry in queue(made).take(9)]
    assert reasons == [(1, "1 rows with NaN or infinity, the first is 2"), (2, None)]


@pytest.mark.parametrize("played", ["header", "value"])
def test_is_unusable_feedback_set_aside_and_a_loss_of_one_half_not(played: str) -> None:
    """What waits is what will be written: losses of 1/2 must not take the room of what is wrong."""
    learner = policy_blocks(actions=ACTIONS, epsilon="1/2", schedule="capped 3", played=played)
    made = feedback_spec(name="home", learner=learner, content="loss")
    made = replace(made, quarantine=Quarantine(made.topics, made.format))
    values: list[Value] = [
        b'{"action":"a","loss":0.5}', b'{"action":"a","loss":0}', b"{", None, b'{"loss":"x"}',
        b'{"action":"nobody","loss":1}',
    ]  # fmt: skip
    given = replace(records(values), headers=[[("streamdp-action", b"a")]] * 5 + [[]])
    absorb(work(made), given)
    wrong = [at for at, value in enumerate(values) if made.format.explain(value) is not None]
    assert [entry.offset for entry in queue(made).take(9)] == wrong
    assert wrong == ([2, 3, 4] if played == "header" else [2, 3, 4, 5])


def test_is_nothing_set_aside_again() -> None:
    """Neither by a rebuild, nor when what was not durable is applied again."""
    made = aside()
    values = [GOOD, BAD, None, GOOD]
    first = work(made)
    absorb(first, records(values))
    assert [entry.offset for entry in queue(made).take(9)] == [1, 2]
    again = work(made)
    absorb(again, records(values[:3]), records([GOOD, BAD], start=3))
    assert [entry.offset for entry in queue(made).take(9)] == [4]
    restoring = Restoring(aside(), HOME, asyncio.run(_peeked()), by_others=ALONE)
    restoring.feed(records([BAD]))
    assert restoring.spec.quarantine is not None
    assert restoring.spec.quarantine.take(9) == []


async def _peeked() -> Taken:
    log = MemoryLog()
    log.create(spec().topics.input, partitions=1)
    return await MemoryTechnology(log).administrator().peek(spec().topics, 0)


def test_is_an_entry_bounded_whatever_is_in_the_record() -> None:
    """In its value and its reason; the key is bounded by the stream's limits."""
    made = aside()

    class Talkative:
        """A format whose reasons quote everything."""

        def explain(self, value: Value) -> str | None:
            return "\ud800" + str(value) * 5

    kept = Quarantine(made.topics, Talkative())  # type: ignore[arg-type]  # the rest is not asked
    value = b"x" * (MOST_VALUE * 3)
    kept.notice(0, [records([value])], made_of([np.nan]))
    log = MemoryLog()
    log.create(made.topics.quarantine, partitions=1)
    log.create(made.topics.input, partitions=1)
    asyncio.run(writing(kept, MemoryTechnology(log)))
    [(key, entry)] = written(log, made)
    assert (key, entry.length, entry.value) == (b"fr", 3 * MOST_VALUE, value[:MOST_VALUE])
    assert len(entry.reason) == MOST_REASON
    assert "xxx" not in repr(entry)
    with pytest.raises(StateMismatch) as caught:
        read_quarantined(b'{"secret":1}')
    assert "secret" not in str(caught.value)


async def writing(kept: Quarantine, technology: Technology) -> None:
    """Let it write what waits, and end."""
    async with quarantining([kept], technology):
        pass


def test_is_what_waits_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest stay; how many did not is known to the operator's line, and to no repr."""
    monkeypatch.setattr(quarantine, "MOST_WAITING", 10)
    monkeypatch.setattr(quarantine, "MOST_BYTES", 1000)
    made = aside()
    kept = queue(made)
    kept.notice(0, [records([b"?" * 898] + [b"!"] * 20)], made_of([np.nan] * 21))
    assert kept.line() == "quarantine: 0 records written, 11 dropped"
    assert [entry.offset for entry in kept.take(99)] == list(range(10))
    kept.notice(0, [records([b"?" * 999, b"!", None], start=21)], later(made_of([np.nan] * 3), 21))
    assert [entry.offset for entry in kept.take(99)] == [22, 23]
    assert repr(kept) == "Quarantine(home)"
    assert "11" not in re.sub(" at 0x[0-9a-f]+", "", repr(made))


def later(batch: Batch, offset: int) -> Batch:
    """The same from another offset on."""
    return replace(batch, offsets=batch.offsets + offset)


def test_does_noticing_never_raise() -> None:
    """Whatever it is given: it comes after the batch was applied, and that stands."""
    kept = queue(aside())
    kept.notice(0, [records([BAD])], later(made_of([np.nan]), 7))
    assert (kept.take(9), kept.dropped) == ([], 1)


async def test_does_sqlite_keep_the_newest_entries_in_the_trusted_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the trusted file alone, as many as may stay; `doctor` reads them, newest last."""
    monkeypatch.setattr(quarantine, "MOST_KEPT", 5)
    made = aside()
    technology = Sqlite(Settings.from_mapping({"path": str(tmp_path / "trusted.db")}))
    kept = queue(made)
    kept.notice(0, [records([BAD] * 12)], made_of([np.nan] * 12))

    tools = technology.administrator()
    try:
        made_now = await tools.create([made.topics], partitions=1)
        assert [finding.subject for finding in made_now] == [
            "topic home-losses", "topic shop.home.quarantine",
        ]  # fmt: skip
        await writing(kept, technology)
        findings = await quarantined(tools, made.topics, count=3)
        every = await quarantined(tools, made.topics, count=99)
        assert len(every) == 5 + 1
        off = await quarantined(tools, spec().topics, count=3)
        assert "quarantine = true" in off[0].detail
    finally:
        await tools.close()
    lines = [f"{finding.subject}: {finding.detail}" for finding in findings]
    assert [line.partition(":")[0] for line in lines] == ["NOT PRIVATE"] * 4
    assert ["@9:" in lines[0], "@10:" in lines[1], "@11:" in lines[2]] == [True] * 3
    assert made.format.explain(BAD) in lines[0]  # type: ignore[operator]
    assert '24 bytes: b\'{"losses"' in lines[0]
    published = tmp_path / "trusted.published.db"
    assert not published.exists() or b'"x"' not in published.read_bytes()


# -- what nobody may notice ------------------------------------------------------------------------


@dataclass
class Broken:
    """A technology whose producers do not do what they should."""

    inner: Technology
    how: str
    closed: list[str] = field(default_factory=list)

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, app: str) -> Broken:
        raise NotImplementedError

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def producer(self, *, kept: int | None = None) -> Broken:
        return self

    async def send(
        self, topic: str, records: Sequence[tuple[Key, Value]], *, partition: int | None = None
    ) -> None:
        if records or self.how != "told":
            logging.getLogger("aiokafka.client").warning("Topic %s is not known", topic)
        if self.how == "hangs":
            await asyncio.Event().wait()
        raise TransportLost(f"{len(records)} records")

    async def close(self) -> None:
        self.closed.append("closed")
        if self.how == "hangs":
            await asyncio.Event().wait()
        raise ValueError("it cannot even be closed")


def broken(how: str) -> Callable[[Technology], Technology]:
    """What a quarantine would be written on."""
    return lambda inner: Broken(inner, how)  # type: ignore[return-value]  # by __getattr__


def same(technology: Technology) -> Technology:
    """A quarantine that can be written."""
    return technology


@pytest.fixture(autouse=True)
def estimates_by_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate is a charged release: what is drawn comes from a script here."""

    releases_scripted_estimates(monkeypatch)


def lives(aside: Callable[[Technology], Technology] | None, at: int) -> list[Observed]:
    """The lives of neighbours."""
    return [on_memory(Course(aside=aside), at=at, content=content) for content in CONTENTS]


@pytest.mark.slow
@pytest.mark.parametrize("at", [EARLY, LAST])
@pytest.mark.parametrize("how", ["written", "raises", "hangs"])
def test_are_neighbours_the_same_with_the_quarantine_on(how: str, at: int) -> None:
    first, *others = lives(same if how == "written" else broken(how), at)
    assert [differences(first, other) for other in others] == [[] for _ in others]


def test_is_everything_public_as_without_a_quarantine() -> None:
    """Whether it can be written or not; seconds are rounded by turns of the clock in between."""

    def without_seconds(seen: Observed) -> Observed:
        return {name: value for name, value in seen.items() if not name.endswith(("steps", "view"))}

    plain = without_seconds(on_memory(Course(), at=EARLY, content=BAD))
    for aside_ in (same, broken("raises"), broken("hangs")):
        seen = on_memory(Course(aside=aside_), at=EARLY, content=BAD)
        assert differences(plain, without_seconds(seen)) == []
    assert "partition_running" in str(plain["log"])
    assert "Topic" not in str(plain["log"])


def test_is_anything_set_aside_in_these_lives() -> None:
    """The comparison would be worth little if nothing were."""
    kept: list[MemoryTechnology] = []

    def watched(technology: Technology) -> Technology:
        assert isinstance(technology, MemoryTechnology)
        kept.append(technology)
        return technology

    for content, entries in ((GOOD, []), (BAD, [EARLY])):
        on_memory(Course(aside=watched), at=EARLY, content=content)
        values = kept[-1].log.input("shop.home.quarantine", 0).values
        assert [read_quarantined(value).offset for value in values] == entries


def hears_libraries(patch: pytest.MonkeyPatch) -> None:
    """What a client says about a topic that only bad records are written to."""
    patch.setattr(logs, "unheard", ContextVar("deaf", default=False))


def tells_of_bad_records(patch: pytest.MonkeyPatch) -> None:
    """A warning for operators in the public log."""
    set_aside = Quarantine._set_aside

    def telling(self: Quarantine, *what: Any) -> None:
        set_aside(self, *what)
        structlog.get_logger().warning("library", waiting=len(self._waiting))

    patch.setattr(Quarantine, "_set_aside", telling)


def stops_when_full(patch: pytest.MonkeyPatch) -> None:
    """Back-pressure: records wait until there is room for the bad ones."""
    notice = Quarantine.notice

    def pressing(self: Quarantine, *what: Any) -> None:
        notice(self, *what)
        if self._waiting:
            raise TransportLost("quarantine: no room")

    patch.setattr(Quarantine, "notice", pressing)


def warns_of_what_it_finds(patch: pytest.MonkeyPatch) -> None:
    """A library that warns while it looks for the reason."""

    def explained(format_: Format, value: Value) -> str | None:
        reason = format_.explain(value)
        if reason is not None:
            warnings.warn(reason, stacklevel=1)
        return reason

    patch.setattr(quarantine, "_explained", explained)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leaks", "where"),
    [
        (hears_libraries, "log"),
        (tells_of_bad_records, "log"),
        (stops_when_full, "log"),
        (warns_of_what_it_finds, "warnings"),
    ],
)
def test_is_a_leak_caught(
    monkeypatch: pytest.MonkeyPatch, leaks: Callable[[pytest.MonkeyPatch], None], where: str
) -> None:
    leaks(monkeypatch)
    one, other = (
        on_memory(Course(aside=broken("told")), at=EARLY, content=content)
        for content in (GOOD, BAD)
    )
    assert where in differences(one, other)
